"""The interval of a change: how often it is wrong, and what it needs."""

from __future__ import annotations

import math
import random

import pytest

from inferspan.diff.statistics import FEWEST, FEWEST_RUNS, Change, change, middle_mean, student
from tests.diff.recordings import noise

ALPHA = 0.0005


def compared(count: int, slower: float, seed: int, drift: float = 0.0) -> Change:
    """One side against another one that is slower by a factor, with noise and drift of their own."""
    a, b = noise(count, 2 * seed, deviation=0.02), noise(count, 2 * seed + 1, deviation=0.02)
    wander = random.Random(seed)
    level = 0.0
    for place in range(count):
        level += wander.gauss(0, drift)
        a[place] *= math.exp(level)
        b[place] *= math.exp(level) * slower
    found = change([a], [b])
    assert found is not None
    return found


def test_no_change_is_passed_as_often_as_the_interval_says() -> None:
    """Of 400 comparisons of equal sides some 5 % lie beyond the end of the interval of 5 %."""
    beyond = sum(found.log_ratio > found.reach(0.05) for found in (compared(60, 1.0, seed) for seed in range(400)))
    assert 8 <= beyond <= 32


def test_slow_downs_of_3_percent_are_found() -> None:
    """At least 95 of 100 with 100 pairs at a deviation of 2 %, one in twenty an outlier, and a drift that both sides share."""
    found = [compared(100, 1.03, seed, drift=0.01) for seed in range(100)]
    assert sum(one.log_ratio > one.reach(ALPHA) for one in found) >= 95


def test_the_estimate_is_the_planted_factor() -> None:
    """Outliers on either side do not move it."""
    assert compared(400, 1.03, 1).ratio == pytest.approx(1.03, abs=0.006)


def test_sides_of_other_lengths_are_not_paired() -> None:
    """They are compared all the same."""
    found = change([noise(60, 1)], [[1.1 * value for value in noise(50, 2)]])
    assert found is not None
    assert (found.paired, found.count) == (False, 50)
    assert found.ratio == pytest.approx(1.1, abs=0.01)


def test_drift_that_both_sides_share_costs_no_precision() -> None:
    """Pairs of neighbours have the same level, so their ratios do not see it."""
    assert compared(100, 1.0, 3, drift=0.05).error == pytest.approx(compared(100, 1.0, 3).error, rel=1e-6)


def test_runs_are_resampled_as_a_whole_from_five_on() -> None:
    """Levels that differ from run to run are then in the interval."""
    levels = [math.exp(random.Random(seed).gauss(0, 0.05)) for seed in range(2 * FEWEST_RUNS)]
    sides = [[[level * value for value in noise(30, 100 + place)] for place, level in enumerate(half)] for half in (levels[:5], levels[5:])]
    together = change([[value for run in sides[0] for value in run]], [[value for run in sides[1] for value in run]])
    apart = change(*sides)
    assert apart is not None
    assert together is not None
    assert (apart.runs, together.runs) == (FEWEST_RUNS, 0)
    assert apart.reach(0.05) > 2 * together.reach(0.05)


def test_too_few_values_say_nothing() -> None:
    """One fewer than the least."""
    assert change([[1.0] * (FEWEST - 1)], [[1.0] * 100]) is None
    assert change([[1.0] * FEWEST], [[1.0] * FEWEST]) is not None
    assert change([], []) is None


def test_equal_values_have_no_width() -> None:
    """A figure without noise, such as the peak of an allocator, is known exactly."""
    found = change([[4.0] * 20], [[5.0] * 20])
    assert found is not None
    assert list(found.interval(ALPHA)) == pytest.approx([1.25, 1.25])


def test_equal_input_gives_equal_output_and_leaves_the_random_stream() -> None:
    """The seed is the comparison's own."""
    random.seed(5)
    before = random.getstate()
    assert compared(50, 1.02, 1) == compared(50, 1.02, 1)
    assert random.getstate() == before


def test_long_recordings_are_joined() -> None:
    """The time of a comparison does not grow with them, and the interval stays."""
    a, b = noise(6_000, 1), noise(6_000, 2)
    found, whole = change([a], [b], most=500), change([a], [b], most=6_000)
    assert found is not None
    assert whole is not None
    assert found.log_ratio == whole.log_ratio
    assert found.error == pytest.approx(whole.error, rel=0.25)


def test_needed_requests_follow_the_square_of_the_noise() -> None:
    """Twice the error needs four times as many."""
    one, twice = Change(0.0, 0.01, 40, 100, True, 0), Change(0.0, 0.02, 40, 100, True, 0)
    assert twice.needed(ALPHA, 0.03, 0.05) == pytest.approx(4 * one.needed(ALPHA, 0.03, 0.05), rel=0.01)


def test_the_middle_mean_bears_a_quarter_of_wrong_values() -> None:
    """On one side or on both."""
    assert middle_mean([1.0] * 6 + [1e9] * 2) == 1.0
    assert middle_mean([-1e9, -1e9, 1.0, 2.0, 3.0, 4.0, 1e9, 1e9]) == 2.5


@pytest.mark.parametrize(
    ("alpha", "freedom", "expected"),
    [(0.05, 1, 6.314), (0.05, 2, 2.920), (0.001, 3, 10.215), (0.001, 4, 7.173), (0.0002, 12, 4.847), (0.025, 10, 2.228), (0.001, 1e6, 3.090)],
)
def test_quantiles_of_student(alpha: float, freedom: float, expected: float) -> None:
    """As in tables."""
    assert student(alpha, freedom) == pytest.approx(expected, rel=2e-3)
