"""Counters as risen since their first reading: what was counted before belongs to no interval of ours.

A counter is exported with the time since when it counts, which is that of its instrument. In: a name and a value. Out: the rise.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Rises"]


class Rises:
    """The counters of one source."""

    def __init__(self) -> None:
        self._totals: dict[Hashable, tuple[float, float]] = {}

    def __call__(self, counter: Hashable, value: float) -> float:
        """By how much a counter has risen since its first reading; a reset of the counter loses what came before it."""
        last, total = self._totals.get(counter, (value, 0))
        total += max(0, value - last)
        self._totals[counter] = (value, total)
        return total
