"""Histograms of OTLP metrics: explicit buckets, exponential buckets and summaries, with estimates of their percentiles.

In come data points of a session file, as decoded JSON. Out come ``Histogram``s; a malformed point gives ``None``. Exponential buckets
become explicit ones, so that all kinds are drawn and estimated alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from inferspan.report.otlp_lines import count_of, number, objects, whole_number

__all__ = ["ExponentialHistogram", "Histogram"]

_Number = TypeVar("_Number", int, float)

_MOST_BUCKETS = 4096
"""More than any exporter makes; SDKs make 10 to 160."""
_WIDEST_EXPONENTIAL = 320
_SCALES = (-10, 20)


@dataclass(slots=True)
class Histogram:
    """A histogram: ``counts`` has one entry more than ``bounds``; the extremes are ``None`` if not sent.

    ``sent_quantiles`` are pairs of a share and its value, of a summary whose percentiles were calculated by the program.
    """

    bounds: tuple[float, ...]
    counts: list[int]
    count: int
    sum: float | None
    minimum: float | None = None
    maximum: float | None = None
    sent_quantiles: tuple[tuple[float, float], ...] = ()

    def add(self, other: Histogram) -> None:
        """Add a delta to this one; histograms with other bounds cannot be added and replace nothing."""
        if other.bounds != self.bounds:
            return
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.sum = _total(self.sum, other.sum)
        self.minimum = _of_both(min, self.minimum, other.minimum)
        self.maximum = _of_both(max, self.maximum, other.maximum)

    def quantile(self, share: float) -> float | None:
        """Estimate a quantile by straight lines inside the buckets, as Prometheus' ``histogram_quantile`` does; ``None`` if empty.

        The result never leaves the range of what was observed, where the smallest and largest value are known.
        """
        for sent, value in self.sent_quantiles:
            if sent == share:
                return value
        if self.count <= 0 or not self.bounds:
            return None
        wanted, seen = share * self.count, 0
        for index, amount in enumerate(self.counts):
            if amount and seen + amount >= wanted:
                low = self.bounds[index - 1] if index else (0.0 if self.minimum is None else self.minimum)
                high = self.bounds[index] if index < len(self.bounds) else (self.bounds[-1] if self.maximum is None else self.maximum)
                return self._within(low + (high - low) * max(0.0, wanted - seen) / amount)
            seen += amount
        return None

    def _within(self, value: float) -> float:
        value = value if self.maximum is None else min(value, self.maximum)
        return value if self.minimum is None else max(value, self.minimum)

    @classmethod
    def of_point(cls, point: Mapping[str, Any]) -> Histogram | None:
        """Read a data point with explicit buckets."""
        bounds, counts = point.get("explicitBounds") or [], point.get("bucketCounts") or []
        count = count_of(point.get("count", 0))
        if count is None or not isinstance(bounds, list) or not isinstance(counts, list) or len(bounds) > _MOST_BUCKETS:
            return None
        # Buckets may be left out: then there is one, with every value in it.
        limits, amounts = [number(bound) for bound in bounds], [count_of(part) for part in counts or [count]]
        known_limits, known_amounts = _all(limits), _all(amounts)
        if known_limits is None or known_amounts is None or len(known_amounts) != len(known_limits) + 1:
            return None
        return cls(tuple(known_limits), known_amounts, count, number(point.get("sum")), number(point.get("min")), number(point.get("max")))

    @classmethod
    def of_summary(cls, point: Mapping[str, Any]) -> Histogram | None:
        """Read a data point of a summary, which has percentiles instead of buckets."""
        count = count_of(point.get("count", 0))
        if count is None:
            return None
        pairs = [(number(item.get("quantile", 0)), number(item.get("value", 0))) for item in objects(point, "quantileValues")]
        sent = tuple((share, value) for share, value in pairs[:_MOST_BUCKETS] if share is not None and value is not None)
        return cls((), [count], count, number(point.get("sum")), sent_quantiles=sent)


@dataclass(slots=True)
class ExponentialHistogram:
    """A histogram whose buckets grow by a constant factor, ``2 ** (2 ** -scale)``; a bucket is counted under its index."""

    scale: int
    count: int
    sum: float | None
    zeros: int
    zero_threshold: float
    positive: dict[int, int] = field(default_factory=dict)
    negative: dict[int, int] = field(default_factory=dict)
    minimum: float | None = None
    maximum: float | None = None

    @classmethod
    def of_point(cls, point: Mapping[str, Any]) -> ExponentialHistogram | None:
        """Read a data point with exponential buckets."""
        scale = whole_number(point.get("scale", 0), *_SCALES)
        count, zeros = count_of(point.get("count", 0)), count_of(point.get("zeroCount", 0))
        positive, negative = _buckets(point.get("positive")), _buckets(point.get("negative"))
        if scale is None or count is None or zeros is None or positive is None or negative is None:
            return None
        threshold = max(0.0, number(point.get("zeroThreshold", 0)) or 0.0)
        extremes = number(point.get("min")), number(point.get("max"))
        return cls(scale, count, number(point.get("sum")), zeros, threshold, positive, negative, *extremes)

    def add(self, other: ExponentialHistogram) -> None:
        """Add a delta to this one, at the coarser of the two scales."""
        scale = min(self.scale, other.scale)
        self._coarsen(self.scale - scale)
        other._coarsen(other.scale - scale)
        for mine, theirs in ((self.positive, other.positive), (self.negative, other.negative)):
            for index, amount in theirs.items():
                mine[index] = mine.get(index, 0) + amount
        while max(len(self.positive), len(self.negative)) > _WIDEST_EXPONENTIAL:
            self._coarsen(1)
        self.count += other.count
        self.zeros += other.zeros
        self.zero_threshold = max(self.zero_threshold, other.zero_threshold)
        self.sum = _total(self.sum, other.sum)
        self.minimum = _of_both(min, self.minimum, other.minimum)
        self.maximum = _of_both(max, self.maximum, other.maximum)

    def _coarsen(self, steps: int) -> None:
        """Join neighbouring buckets, two by two, ``steps`` times."""
        if steps:
            self.scale -= steps
            self.positive, self.negative = (_joined(buckets, steps) for buckets in (self.positive, self.negative))

    def explicit(self) -> Histogram:
        """The same with explicit buckets, from the lowest negative bound to the highest positive one."""
        bounds: list[float] = []
        counts: list[int] = []
        for index in sorted(self.negative, reverse=True):
            _extend(bounds, counts, -self._bound(index + 1), -self._bound(index), self.negative[index])
        if self.zeros:
            _extend(bounds, counts, -self.zero_threshold or 0.0, self.zero_threshold, self.zeros)
        for index in sorted(self.positive):
            _extend(bounds, counts, self._bound(index), self._bound(index + 1), self.positive[index])
        return Histogram(tuple(bounds), [*counts, 0] if bounds else [self.count], self.count, self.sum, self.minimum, self.maximum)

    def _bound(self, index: int) -> float:
        """The lower bound of a positive bucket, the largest double where that overflows."""
        try:
            return math.pow(2.0, math.ldexp(index, -self.scale))
        except OverflowError:
            return math.inf if index > 0 else 0.0


def _extend(bounds: list[float], counts: list[int], low: float, high: float, amount: int) -> None:
    """Append a bucket, with an empty one before it where it does not begin at the end of the last."""
    largest = 1.7976931348623157e308
    low, high = max(-largest, min(largest, low)), max(-largest, min(largest, high))
    if not bounds or low > bounds[-1]:
        bounds.append(low)
        counts.append(0)
    bounds.append(max(high, bounds[-1]))
    counts.append(amount)


def _buckets(raw: object) -> dict[int, int] | None:
    """The filled buckets of one sign by index; ``None`` if they are malformed."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        return None
    offset, counts = whole_number(raw.get("offset", 0), -(2**31), 2**31 - 1), raw.get("bucketCounts") or []
    if offset is None or not isinstance(counts, list) or len(counts) > _MOST_BUCKETS:
        return None
    amounts = _all([count_of(amount) for amount in counts])
    return None if amounts is None else {offset + place: amount for place, amount in enumerate(amounts) if amount}


def _joined(buckets: Mapping[int, int], steps: int) -> dict[int, int]:
    joined: dict[int, int] = {}
    for index, amount in buckets.items():
        joined[index >> steps] = joined.get(index >> steps, 0) + amount
    return joined


def _all(values: Iterable[_Number | None]) -> list[_Number] | None:
    kept: list[_Number] = []
    for value in values:
        if value is None:
            return None
        kept.append(value)
    return kept


def _total(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _of_both(choose: Callable[[float, float], float], one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else choose(one, other)
