"""The longest loop is the one that trying every period and every beginning finds."""

from __future__ import annotations

import random

import pytest

from inferspan.analysis.loops import LEAST_TOKENS, REPEATS, Loop, longest_loop


def tried(ids: list[int]) -> Loop | None:
    """The longest loop, by comparing every token with the one a period before, for every period."""
    best = None
    for period in range(1, len(ids) // REPEATS + 1):
        place = period
        while place < len(ids):
            end = place
            while end < len(ids) and ids[end] == ids[end - period]:
                end += 1
            tokens = end - place + period
            if tokens >= max(LEAST_TOKENS, REPEATS * period) and (best is None or tokens > best.tokens):
                best = Loop(tokens, period, place - period)
            place = end + 1
    return best


@pytest.mark.parametrize("seed", range(40))
def test_the_longest_loop_is_the_one_that_trying_finds(seed: int) -> None:
    """The longest loop is the one that trying finds."""
    rng = random.Random(seed)
    for _ in range(100):
        alphabet = rng.choice((1, 2, 2, 3, 5))
        ids = [rng.randrange(alphabet) for _ in range(rng.randrange(40))]
        word = [rng.randrange(alphabet) for _ in range(rng.randrange(1, 12))]
        ids += word * rng.randrange(6) + [rng.randrange(alphabet) for _ in range(rng.randrange(8))]
        assert longest_loop(ids) == tried(ids), ids


@pytest.mark.parametrize("period", [1, 2, 7, 20, 64, 333])
def test_a_loop_is_found_with_its_period_and_its_first_token(period: int) -> None:
    """A loop is found with its period and its first token."""
    healthy = list(range(1000, 1212))
    loop = [*range(period)] * 8
    assert longest_loop([*healthy, *loop]) == Loop(len(loop), period, 212)


def test_a_loop_that_ends_within_its_period_keeps_its_rest() -> None:
    """A loop that ends within its period keeps its rest."""
    assert longest_loop([9, *([1, 2, 3, 4] * 3), 1, 2, 8]) == Loop(14, 4, 1)


def test_two_times_in_a_row_are_no_loop() -> None:
    """Two times in a row are no loop."""
    assert longest_loop([*range(50), *range(50)]) is None


def test_a_row_of_seven_dots_is_no_loop() -> None:
    """A row of seven dots is no loop."""
    assert longest_loop([5, *([1] * 7), 6]) is None


def test_nothing_has_no_loop() -> None:
    """Nothing has no loop."""
    assert longest_loop([]) is None


def test_a_hundred_thousand_tokens_end_with_their_loop() -> None:
    """A hundred thousand tokens end with their loop."""
    rng = random.Random(0)
    ids = [int(rng.paretovariate(0.7)) + 100 for _ in range(60_000)] + [*range(30)] * 1500
    assert longest_loop(ids) == Loop(45_000, 30, 60_000)
