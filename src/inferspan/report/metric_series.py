"""OTLP metric objects -> series: for every metric and attribute set its points over time and its histogram.

In come the ``metrics`` objects of a session file, in any order and from several processes. Out come ``Series`` with a bounded number
of points: beyond it neighbouring points are joined. Delta points are added up, cumulative ones replace each other. Malformed points are
counted and left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inferspan.analysis.quantiles import Quantiles
from inferspan.report.histogram import ExponentialHistogram, Histogram
from inferspan.report.otlp_lines import Value, attributes_of, moment, number, objects, text_of, whole_number

__all__ = ["MOST_POINTS", "Histogram", "Point", "Series", "SeriesTable"]

MOST_POINTS = 10_000
"""Points of a series, where the setting ``max_data_points`` says nothing else."""
_MOST_OF_ALL = 500_000
"""Points of all series together, 100 bytes each: with more, each series may have half as many."""
_FEWEST = 10
_MOST_SERIES = 20_000
_DELTA = (1, "1", "AGGREGATION_TEMPORALITY_DELTA")
_KINDS = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")


Point = tuple[Any, ...]
"""(Nanoseconds since the epoch, value), or, of joined points, (time, mean, lowest, highest, their number) at their mean time."""


@dataclass(slots=True)
class Series:
    """One metric with one attribute set of one resource.

    Values that were sent as integers stay integers: 64 bits do not fit into a double. Figures are those of all points. ``counts_up`` says
    that only the last one means anything: of joined points of a counter the later one is kept. ``joined`` counts points that have none of
    their own any longer; the newest point always has.
    """

    name: str
    kind: str
    unit: str
    description: str
    attributes: Mapping[str, Value]
    resource: int
    points: list[Point] = field(default_factory=list)
    most: int = MOST_POINTS
    joined: int = 0
    histogram: Histogram | None = None
    exponential: ExponentialHistogram | None = None
    counts_up: bool = False
    count: int = 0
    total: float = 0.0
    minimum: int | float | None = None
    maximum: int | float | None = None
    quantiles: Quantiles = field(default_factory=Quantiles, compare=False)

    @property
    def average(self) -> float | None:
        """Mean of all points."""
        return self.total / self.count if self.count else None

    @property
    def last(self) -> int | float | None:
        """The newest value; ``None`` for a histogram."""
        found: int | float | None = self.points[-1][1] if self.points else None
        return found

    def append(self, time_ns: int, value: int | float) -> None:
        """Add a point; when there are too many, neighbouring ones are joined."""
        self.points.append((time_ns, value))
        self.count += 1
        if not self.counts_up:
            self.total += float(value)
            self.minimum = value if self.minimum is None else min(self.minimum, value)
            self.maximum = value if self.maximum is None else max(self.maximum, value)
            self.quantiles.add(float(value))
        if len(self.points) > self.most:
            self.join()

    def sort(self) -> None:
        """Bring the points into the order of time: readings with their own times are written after exports of the same second."""
        self.points.sort(key=lambda point: point[0])

    def join(self) -> None:
        """Join neighbouring points until there are no more than ``most``."""
        while len(self.points) > self.most:
            self.sort()
            older, newest = self.points[:-1], self.points[-1]
            pairs = [self._one_of(older[place : place + 2]) for place in range(0, len(older), 2)]
            self.joined += len(older) - len(pairs)
            self.points = [*pairs, newest]

    def _one_of(self, pair: list[Point]) -> Point:
        if len(pair) == 1 or self.counts_up:
            return pair[-1]
        (time, mean, low, high, count), (time_2, mean_2, low_2, high_2, count_2) = map(_whole, pair)
        both = count + count_2
        middle = (time * count + time_2 * count_2) // both
        return middle, (mean * count + mean_2 * count_2) / both, min(low, low_2), max(high, high_2), both


def _whole(point: Point) -> Point:
    return point if len(point) > 2 else (*point, point[1], point[1], 1)


class SeriesTable:
    """Collects the points of a file into series; ``unreadable`` counts points, ``unknown`` metrics, ``over`` points of further series.

    Args:
        most: points of a series.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self._points = 0
        self._series: dict[tuple[object, ...], Series] = {}
        self.unreadable = 0
        self.unknown = 0
        self.over = 0

    def add(self, metric: Mapping[str, Any], resource: int, known: dict[Value, Value]) -> None:
        """Take in one OTLP ``metric`` object of the resource with this number."""
        kinds = [kind for kind in _KINDS if isinstance(metric.get(kind), dict)]
        self.unknown += not kinds
        for kind in kinds:
            data = metric[kind]
            delta = data.get("aggregationTemporality") in _DELTA
            for point in objects(data, "dataPoints"):
                series = self._find(metric, kind, attributes_of(point, known), resource)
                if series is None:
                    self.over += 1
                    continue
                before = len(series.points)
                self.unreadable += not _ADD[kind](series, point, delta)
                self._points += len(series.points) - before
        while self._points > _MOST_OF_ALL and self._most > _FEWEST:
            self._most = max(_FEWEST, self._most // 2)
            self._join_all()

    def _join_all(self) -> None:
        for series in self._series.values():
            series.most = self._most
            series.join()
        self._points = sum(len(series.points) for series in self._series.values())

    def joined(self) -> tuple[int, int]:
        """The number of points that were joined with a neighbour, and that of their series."""
        joined = [series.joined for series in self._series.values() if series.joined]
        return sum(joined), len(joined)

    def sorted(self) -> list[Series]:
        """The series that hold something, by name and attributes."""
        for series in self._series.values():
            series.sort()
        kept = [series for series in self._series.values() if series.points or series.histogram is not None]
        return sorted(kept, key=lambda series: (series.name, sorted((key, str(value)) for key, value in series.attributes.items())))

    def _find(self, metric: Mapping[str, Any], kind: str, attributes: dict[str, Value], resource: int) -> Series | None:
        name, unit = text_of(metric.get("name")), text_of(metric.get("unit"))
        key = (name, kind, resource, tuple(sorted((name, repr(value)) for name, value in attributes.items())))
        found = self._series.get(key)
        if found is None and len(self._series) < _MOST_SERIES:
            found = self._series[key] = Series(name, kind, unit, text_of(metric.get("description")), attributes, resource, most=self._most)
            found.counts_up = kind == "sum" and metric[kind].get("isMonotonic") is True
        return found


def _add_number(series: Series, point: Mapping[str, Any], delta: bool) -> bool:
    value = whole_number(point["asInt"]) if "asInt" in point else number(point.get("asDouble"))
    if value is None:
        return False
    if delta and series.last is not None:
        value += series.last
        if not math.isfinite(value):
            return False
    series.append(moment(point.get("timeUnixNano")), value)
    return True


def _add_histogram(series: Series, point: Mapping[str, Any], delta: bool) -> bool:
    histogram = Histogram.of_point(point)
    if histogram is None:
        return False
    if delta and series.histogram is not None:
        series.histogram.add(histogram)
    else:
        series.histogram = histogram
    return True


def _add_exponential(series: Series, point: Mapping[str, Any], delta: bool) -> bool:
    histogram = ExponentialHistogram.of_point(point)
    if histogram is None:
        return False
    if delta and series.exponential is not None:
        series.exponential.add(histogram)
    else:
        series.exponential = histogram
    series.histogram = series.exponential.explicit()
    return True


def _add_summary(series: Series, point: Mapping[str, Any], delta: bool) -> bool:
    histogram = Histogram.of_summary(point)
    series.histogram = histogram or series.histogram
    return histogram is not None


_ADD = {
    "gauge": _add_number,
    "sum": _add_number,
    "histogram": _add_histogram,
    "exponentialHistogram": _add_exponential,
    "summary": _add_summary,
}
