"""Metric series of a recording -> the figures that rules ask for: means, largest values and rises, by name and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .spans import SeriesLike

__all__ = ["Metrics"]

_ANY: Mapping[str, Any] = {}


class Metrics:
    """Series by name.

    Args:
        series: of one or several processes.
        between: nanoseconds since the epoch; points outside are passed over, if a gauge has points inside. Default: all.
    """

    def __init__(self, series: Iterable[SeriesLike], between: tuple[int, int] | None = None) -> None:
        self._found: dict[str, list[SeriesLike]] = {}
        self._between = between
        for one in series:
            self._found.setdefault(one.name, []).append(one)

    def series(self, name: str, wanted: Mapping[str, Any] = _ANY) -> list[SeriesLike]:
        """The series of a metric whose attributes have the wanted values."""
        return [one for one in self._found.get(name, ()) if _has(one.attributes, wanted)]

    def mean(self, name: str, wanted: Mapping[str, Any] = _ANY) -> float | None:
        """Mean of a gauge over its points and series."""
        means = [mean for one in self.series(name, wanted) if (mean := self._mean(one)) is not None]
        return sum(means) / len(means) if means else None

    def _mean(self, one: SeriesLike) -> float | None:
        if self._between is not None:
            inside = [float(point[1]) for point in one.points if self._between[0] <= point[0] <= self._between[1]]
            if inside:
                return sum(inside) / len(inside)
        return one.average

    def highest(self, name: str, wanted: Mapping[str, Any] = _ANY) -> float | None:
        """Largest value of a gauge."""
        found = [float(one.maximum) for one in self.series(name, wanted) if one.maximum is not None]
        return max(found, default=None)

    def last(self, name: str, wanted: Mapping[str, Any] = _ANY) -> float | None:
        """Sum of the last values: of counters that begin at 0 what they counted."""
        found = [float(one.last) for one in self.series(name, wanted) if one.last is not None]
        return sum(found) if found else None

    @staticmethod
    def counted(one: SeriesLike, most: float) -> float:
        """Seconds that a counter has counted in the recording, of which at most ``most`` can have been before its first point.

        A first value above that goes back further than the recording, to others of its process: only what was added later counts.
        """
        if not one.points or one.last is None:
            return 0.0
        first, last = float(one.points[0][1]), float(one.last)
        return max(0.0, last - first) if first > most else last

    def points(self, name: str, wanted: Mapping[str, Any] = _ANY) -> int:
        """The largest number of points of a series of this metric."""
        return max((len(one.points) for one in self.series(name, wanted)), default=0)


def _has(attributes: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(attributes.get(key) == value for key, value in wanted.items())
