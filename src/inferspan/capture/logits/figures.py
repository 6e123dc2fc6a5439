"""Figures of the logits of a whole request, sequence by sequence: what is left of its steps when these have been handed over.

In: the statistics of each step, on the host. Out: one ``RowFigures`` a sequence, or one of all together where rows and sequences are not
the same or not known one by one. Bounded: values are joined to sums as they come, but for the newest steps, which may prove to be none.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from inferspan.records import Moments, RowFigures

from .statistics import StepLogits

__all__ = ["FigureSeries"]

HELD_STEPS = 512
"""Steps that are held before their values are taken out."""
HELD_VALUES = 8192
"""Values of one kind that are held at most before the older ones are joined."""
NEWEST = 32
"""Steps that are not joined: a loop may have run a few beyond the end of its sequences."""


class FigureSeries:
    """Figures of the steps of one request."""

    __slots__ = ("_batch", "_chosen", "_means", "_mixed", "_parts", "_stds", "_steps", "_sums", "_top1")

    def __init__(self) -> None:
        self._steps: list[StepLogits] = []
        """Steps that were added and not looked at."""
        self._batch = 0
        self._top1, self._chosen, self._means, self._stds = array("d"), array("d"), array("d"), array("d")
        """Values of the newest steps: of each step one for every row; NaN where there is none."""
        self._parts: list[list[RowFigures]] = []
        """Joined ones, by row."""
        self._mixed: list[RowFigures] = []
        """Those of steps with other rows, of all rows together."""
        self._sums = [0.0, 0.0, 0.0, 0.0]
        """Of steps whose rows were not kept: rows, and the sums over these of largest probability, mean and deviation."""

    def add(self, step: StepLogits) -> None:
        """Add a step, the next one of the request."""
        self._steps.append(step)
        if len(self._steps) >= HELD_STEPS:
            self._look()

    def _look(self) -> None:
        """Take the values out of the steps, of those that lie side by side in one go."""
        steps, self._steps = self._steps, []
        place = 0
        while place < len(steps):
            begin, first = place, steps[place]
            last = first
            place += 1
            while place < len(steps) and steps[place].follows(last):
                last = steps[place]
                place += 1
            batch = first.batch
            if first.rows_kept != batch:
                for step in steps[begin:place]:
                    self._add_mean(step)
                continue
            if batch != self._batch:
                self._part_with_rows()
                self._batch = batch
            first.add_figures(last, self._top1, self._chosen, self._means, self._stds)
            if len(self._top1) > HELD_VALUES + NEWEST * batch:
                self._join(len(self._top1) - NEWEST * batch)

    def _add_mean(self, step: StepLogits) -> None:
        mean = step.mean
        if mean.top1 is None or mean.mean is None or mean.std is None:
            return
        rows = step.running or step.batch
        self._sums = [old + rows * new for old, new in zip(self._sums, (1.0, mean.top1, mean.mean, mean.std), strict=True)]

    def _join(self, count: int) -> None:
        """Join the first ``count`` values of each kind, row by row."""
        batch = self._batch
        columns = [column[:count] for column in (self._top1, self._chosen, self._means, self._stds)]
        new = [_figures(*(column[row::batch] for column in columns)) for row in range(batch)]
        old = self._parts or [[] for _ in new]
        self._parts = [[RowFigures.together([*parts, figures])] for parts, figures in zip(old, new, strict=True)]
        for column in (self._top1, self._chosen, self._means, self._stds):
            del column[:count]

    def _part_with_rows(self) -> None:
        """The rows change, so they are none of one sequence each."""
        if self._batch and self._top1:
            self._join(len(self._top1))
        self._mixed += [figures for parts in self._parts for figures in parts]
        self._parts = []

    def read(self, lengths: Sequence[int] | None) -> list[RowFigures]:
        """The figures of all steps.

        Args:
            lengths: tokens of each sequence, where the rows of the steps are those; ``None`` where they are not.

        Returns:
            One for each row if there are as many ``lengths``, without steps beyond the end of a sequence; else one of all together. Empty
            if no step was added.
        """
        self._look()
        batch = self._batch
        apart = lengths is not None and len(lengths) == batch and not self._mixed and not self._sums[0]
        rows: list[RowFigures] = []
        for row in range(batch):
            done = self._parts[row] if self._parts else []
            joined = RowFigures.together(done)
            most = lengths[row] if apart and lengths is not None else len(self._top1)
            left = max(0, most - (joined.top1.number if joined.top1 is not None else 0))
            columns = (self._top1, self._chosen, self._means, self._stds)
            rows.append(RowFigures.together([joined, _figures(*(column[row::batch][:left] for column in columns))]))
        if apart and batch > 1:
            return rows
        rows += self._mixed
        if self._sums[0]:
            number, *sums = self._sums
            top1, mean, std = (Moments(int(number), one / number, math.nan, math.nan, math.nan) for one in sums)
            rows.append(RowFigures(top1, None, mean, std))
        together = RowFigures.together(rows)
        return [together] if together != RowFigures() else []


def _figures(top1: array[float], logprobs: array[float], means: array[float], stds: array[float]) -> RowFigures:
    chosen = Moments.of([math.exp(value) for value in logprobs if value == value])
    return RowFigures(Moments.of(top1), chosen, Moments.mean_of(means), Moments.mean_of(stds))
