"""Counters as increases since their first reading: counts from before it belong to no exported interval.

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
        """By how much a counter has risen since its first reading; at a reset of the counter the part before it is lost."""
        last, total = self._totals.get(counter, (value, 0))
        total += max(0, value - last)
        self._totals[counter] = (value, total)
        return total
