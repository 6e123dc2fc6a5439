"""Values, one after the other -> their percentiles, in bounded memory.

The first values are kept, so that percentiles of few values are exact. Further ones are counted in buckets that grow by a constant factor
(DDSketch, Masson et al., 2019): percentiles are then at most 1 % off, whatever the distribution.
"""

from __future__ import annotations

import math
from array import array

from inferspan.metrics.summary import percentile

__all__ = ["EXACT", "RELATIVE_ERROR", "Quantiles"]

EXACT = 512
"""Values up to which percentiles are exact."""
RELATIVE_ERROR = 0.01
_GROWTH = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
_SMALLEST, _LARGEST = 1e-12, 1e12
"""Sizes outside count as these: with the growth above there are at most 2,764 buckets for each sign."""
_MIDDLE = 5_000
"""Added to the index of a positive bucket, so that those of negative values are the same with a minus, and 0 is for zero."""


class Quantiles:
    """Takes in finite values; not safe to use on several threads at once."""

    __slots__ = ("_buckets", "_values", "count")

    def __init__(self) -> None:
        self.count = 0
        self._values = array("d")
        self._buckets: dict[int, int] | None = None

    @property
    def exact(self) -> bool:
        """Whether percentiles are those of the values themselves."""
        return self._buckets is None

    def add(self, value: float) -> None:
        """Take in a value."""
        self.count += 1
        if self._buckets is not None:
            self._count(value, self._buckets)
            return
        self._values.append(value)
        if len(self._values) > EXACT:
            self._buckets = {}
            for kept in self._values:
                self._count(kept, self._buckets)
            self._values = array("d")

    def at(self, share: float) -> float | None:
        """The percentile; ``None`` of nothing.

        Args:
            share: 0 for the smallest to 1 for the largest.
        """
        if self._buckets is None:
            return percentile(self._values, share)
        rank, seen = share * (self.count - 1), 0
        for index in sorted(self._buckets):
            seen += self._buckets[index]
            if seen > rank:
                break
        if index == 0:
            return 0.0
        size = 2 * math.exp((abs(index) - _MIDDLE) * _GROWTH) / (math.exp(_GROWTH) + 1)
        return size if index > 0 else -size

    @staticmethod
    def _count(value: float, buckets: dict[int, int]) -> None:
        size = abs(value)
        index = math.ceil(math.log(min(size, _LARGEST)) / _GROWTH) + _MIDDLE if size >= _SMALLEST else 0
        index = index if value > 0 else -index
        buckets[index] = buckets.get(index, 0) + 1
