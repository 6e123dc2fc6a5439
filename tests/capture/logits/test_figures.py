"""Figures of the logits of a whole request are those of all of its steps, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan.capture.logits import figures as module
from inferspan.capture.logits.figures import FigureSeries
from inferspan.capture.logits.reductions import ENDED
from inferspan.capture.logits.ring import LogitRing
from inferspan.records import Moments, RowFigures

STEPS = 50


def series(steps: Sequence[tuple[Tensor, Tensor | None]]) -> FigureSeries:
    """The figures of steps with these logits ``[rows, vocabulary]`` and chosen ids ``[rows]``."""
    ring, found = LogitRing(top_k=0, capacity=1000), FigureSeries()
    for logits, chosen in steps:
        ring.append(logits, chosen)
    for step in ring.read():
        found.add(step)
    return found


def steps(rows: int, count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    """Random logits and choices."""
    generator = torch.Generator().manual_seed(rows)
    return [
        (torch.randn(rows, 40, generator=generator, dtype=torch.float64) * 3, torch.randint(40, (rows,), generator=generator))
        for _ in range(count)
    ]


def wanted(given: Sequence[tuple[Tensor, Tensor]], row: int) -> RowFigures:
    """The figures of one row, from the logits."""
    logits = torch.stack([one[row] for one, _ in given])
    shares = logits.softmax(-1)
    chosen = shares.gather(1, torch.stack([ids[row] for _, ids in given]).unsqueeze(1)).squeeze(1)
    deviations = logits.std(-1, correction=0)
    probabilities = (Moments.of(values.tolist()) for values in (shares.amax(-1), chosen))
    return RowFigures(*probabilities, *(Moments.mean_of(values.tolist()) for values in (logits.mean(-1), deviations)))


def flat(figures: RowFigures) -> list[float]:
    """All numbers of some figures that are known."""
    return [number for moments in figures if moments is not None for number in moments if number == number]


@pytest.fixture(params=[(512, 8192), (1, 64), (7, 64)], ids=["held", "step by step", "some at once"])
def _held(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is held until the end, or joined on the way."""
    for name, value in zip(("HELD_STEPS", "HELD_VALUES"), request.param, strict=True):
        monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("_held")
@pytest.mark.parametrize("rows", [1, 2, 16])
def test_each_row_has_the_figures_of_its_steps(rows: int) -> None:
    """Mean, extremes and squares are those of the plain computation, in float64."""
    given = steps(rows)
    found = series(given).read([STEPS] * rows)
    assert len(found) == rows
    for row, figures in enumerate(found):
        assert flat(figures) == pytest.approx(flat(wanted(given, row)), rel=1e-9, abs=1e-9)


@pytest.mark.usefixtures("_held")
def test_a_row_that_has_ended_has_no_more_steps() -> None:
    """Filler after the end of a row does not count."""
    given = steps(2)
    marked = [(logits, torch.stack([ids[0], ids[1] + (ENDED if step >= 10 else 0)])) for step, (logits, ids) in enumerate(given)]
    found = series(marked).read([STEPS, 10])
    assert flat(found[1]) == pytest.approx(flat(wanted(given[:10], 1)))
    assert flat(found[0]) == pytest.approx(flat(wanted(given, 0)))


@pytest.mark.usefixtures("_held")
def test_a_step_beyond_the_end_of_its_sequence_does_not_count() -> None:
    """A loop that asks late whether to stop runs a step too many."""
    given = steps(1)
    assert flat(series(given).read([STEPS - 1])[0]) == pytest.approx(flat(wanted(given[:-1], 0)))


@pytest.mark.usefixtures("_held")
@pytest.mark.parametrize("lengths", [None, [STEPS]])
def test_rows_that_are_no_sequences_give_figures_of_all_together(lengths: list[int] | None) -> None:
    """Beams are rows, and not the sequences that are returned."""
    given = steps(3)
    (found,) = series(given).read(lengths)
    assert flat(found) == pytest.approx(flat(RowFigures.together([wanted(given, row) for row in range(3)])))


@pytest.mark.usefixtures("_held")
def test_steps_of_changing_rows_give_figures_of_all_together() -> None:
    """Nothing says which row of one step is which of another."""
    two, three = steps(2), steps(3)
    (found,) = series([*two, *three]).read([STEPS, STEPS, STEPS])
    every = [*(wanted(two, row) for row in range(2)), *(wanted(three, row) for row in range(3))]
    assert flat(found) == pytest.approx(flat(RowFigures.together(every)))


def test_a_large_batch_has_its_averages() -> None:
    """Of more rows than are kept the averages are known, and no extremes; the chosen tokens' probabilities are not."""
    given = steps(20)
    (found,) = series(given).read([STEPS] * 20)
    every = RowFigures.together([wanted(given, row) for row in range(20)])
    assert found.chosen is None
    assert found.top1 is not None
    assert every.top1 is not None
    assert found.top1[:2] == pytest.approx(every.top1[:2])
    assert math.isnan(found.top1.greatest)


def test_masked_logits_have_no_figures() -> None:
    """A step in which every token is masked has no probabilities."""
    assert series([(torch.full((1, 4), -math.inf), torch.tensor([0]))]).read([1]) == []


def test_without_steps_there_are_no_figures() -> None:
    """Nothing was measured, which is not zero."""
    assert FigureSeries().read([3]) == []


def test_without_chosen_tokens_only_their_probabilities_are_missing() -> None:
    """The largest probability needs no choice."""
    (found,) = series([(torch.eye(3)[:1], None)]).read([1])
    assert found.chosen is None
    assert found.top1 is not None
