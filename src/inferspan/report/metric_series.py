"""OTLP metric objects -> series: for every metric and attribute set its points over time and its histogram.

In come the ``metrics`` objects of a session file, in any order and from several processes. Out come ``Series`` with a bounded number
of points. Delta points are added up, cumulative ones replace each other. Malformed points are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inferspan.report.otlp_lines import Value, attributes_of, integer, number, objects

__all__ = ["Histogram", "Series", "SeriesTable"]

_MOST_POINTS = 240
_DELTA = (1, "1", "AGGREGATION_TEMPORALITY_DELTA")


@dataclass(slots=True)
class Histogram:
    """An explicit-bucket histogram: ``counts`` has one entry more than ``bounds``; the extremes are ``None`` if not sent."""

    bounds: tuple[float, ...]
    counts: list[int]
    count: int
    sum: float | None
    minimum: float | None = None
    maximum: float | None = None

    def add(self, other: Histogram) -> None:
        """Add a delta to this one; histograms with other bounds cannot be added and replace nothing."""
        if other.bounds != self.bounds:
            return
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.sum = None if self.sum is None or other.sum is None else self.sum + other.sum
        self.minimum = _least(self.minimum, other.minimum)
        self.maximum = None if self.maximum is None or other.maximum is None else max(self.maximum, other.maximum)

    def quantile(self, share: float) -> float | None:
        """Estimate a quantile by straight lines inside the buckets, as Prometheus' ``histogram_quantile`` does; ``None`` if empty.

        The result never leaves the range of what was observed, where the smallest and largest value are known.
        """
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


@dataclass(slots=True)
class Series:
    """One metric with one attribute set of one resource; ``points`` are (nanoseconds since the epoch, value)."""

    name: str
    kind: str
    unit: str
    description: str
    attributes: Mapping[str, Value]
    resource: int
    points: list[tuple[int, float]] = field(default_factory=list)
    histogram: Histogram | None = None

    @property
    def last(self) -> float | None:
        """The newest value; ``None`` for a histogram."""
        return self.points[-1][1] if self.points else None

    def append(self, time_ns: int, value: float) -> None:
        """Add a point; when there are too many, every second one is given up."""
        self.points.append((time_ns, value))
        if len(self.points) > _MOST_POINTS:
            self.points = self.points[-1::-2][::-1]


class SeriesTable:
    """Collects the points of a file into series."""

    def __init__(self) -> None:
        self._series: dict[tuple[object, ...], Series] = {}

    def add(self, metric: Mapping[str, Any], resource: int, known: dict[Value, Value]) -> None:
        """Take in one OTLP ``metric`` object of the resource with this number."""
        for kind in ("gauge", "sum", "histogram"):
            data = metric.get(kind)
            if not isinstance(data, dict):
                continue
            delta = data.get("aggregationTemporality") in _DELTA
            for point in objects(data, "dataPoints"):
                series = self._find(metric, kind, attributes_of(point, known), resource)
                if kind == "histogram":
                    _add_histogram(series, point, delta=delta)
                else:
                    _add_number(series, point, delta=delta)

    def sorted(self) -> list[Series]:
        """The series that hold something, by name and attributes."""
        kept = [series for series in self._series.values() if series.points or series.histogram is not None]
        return sorted(kept, key=lambda series: (series.name, sorted((key, str(value)) for key, value in series.attributes.items())))

    def _find(self, metric: Mapping[str, Any], kind: str, attributes: dict[str, Value], resource: int) -> Series:
        name, unit = str(metric.get("name", "")), str(metric.get("unit", ""))
        key = (name, kind, resource, tuple(sorted((name, repr(value)) for name, value in attributes.items())))
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = Series(name, kind, unit, str(metric.get("description", "")), attributes, resource)
        return found


def _add_number(series: Series, point: Mapping[str, Any], *, delta: bool) -> None:
    value = number(point["asInt"]) if "asInt" in point else number(point.get("asDouble"))
    if value is None:
        return
    if delta and series.last is not None:
        value += series.last
    series.append(integer(point.get("timeUnixNano")), value)


def _add_histogram(series: Series, point: Mapping[str, Any], *, delta: bool) -> None:
    bounds, counts = point.get("explicitBounds") or [], point.get("bucketCounts") or []
    if not isinstance(bounds, list) or not isinstance(counts, list):
        return
    # Buckets may be left out: then there is one, with every value in it.
    counts = counts or [point.get("count")]
    limits = [number(bound) for bound in bounds]
    if None in limits or len(counts) != len(limits) + 1:
        return
    histogram = Histogram(
        bounds=tuple(limit for limit in limits if limit is not None),
        counts=[integer(count) for count in counts],
        count=integer(point.get("count")),
        sum=number(point.get("sum")),
        minimum=number(point.get("min")),
        maximum=number(point.get("max")),
    )
    if delta and series.histogram is not None:
        series.histogram.add(histogram)
    else:
        series.histogram = histogram


def _least(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)
