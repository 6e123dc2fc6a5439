"""Values, one after the other -> their percentiles, in bounded memory.

The first values are kept, so that percentiles of few values are exact. Further ones are counted in buckets that grow by a constant factor
(DDSketch, Masson et al., 2019): percentiles are then at most 1 % off, whatever the distribution.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

from inferspan.metrics.summary import percentile

__all__ = ["EXACT", "GROWTH", "RELATIVE_ERROR", "SMALLEST", "Quantiles"]

EXACT = 512
"""Values up to which percentiles are exact."""
RELATIVE_ERROR = 0.01
GROWTH = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
"""Logarithm of the factor from one bucket to the next."""
SMALLEST, _LARGEST = 1e-12, 1e12
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
        self._bound()

    def join(self, count: int, values: bytes, zeros: int, buckets: Mapping[int, int] | None) -> None:
        """Take in values of zero and more that were added up elsewhere, by the same rules.

        Args:
            count: how many.
            values: the values themselves, as doubles one after the other; empty if they are in buckets.
            zeros: values below ``SMALLEST``.
            buckets: number of values by the rounded up quotient of their logarithm and ``GROWTH``; ``None`` if there are ``values``.
        """
        self.count += count
        kept = array("d", values)
        if buckets is None and self._buckets is None:
            self._values.extend(kept)
            self._bound()
            return
        into = self._start_buckets() if self._buckets is None else self._buckets
        for value in kept:
            self._count(value, into)
        for index, number in {0: zeros, **{index + _MIDDLE: number for index, number in (buckets or {}).items()}}.items():
            if number:
                into[index] = into.get(index, 0) + number

    def _bound(self) -> None:
        if len(self._values) > EXACT:
            self._start_buckets()

    def _start_buckets(self) -> dict[int, int]:
        self._buckets = {}
        for kept in self._values:
            self._count(kept, self._buckets)
        self._values = array("d")
        return self._buckets

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
        size = 2 * math.exp((abs(index) - _MIDDLE) * GROWTH) / (math.exp(GROWTH) + 1)
        return size if index > 0 else -size

    @staticmethod
    def _count(value: float, buckets: dict[int, int]) -> None:
        size = abs(value)
        index = math.ceil(math.log(min(size, _LARGEST)) / GROWTH) + _MIDDLE if size >= SMALLEST else 0
        index = index if value > 0 else -index
        buckets[index] = buckets.get(index, 0) + 1
