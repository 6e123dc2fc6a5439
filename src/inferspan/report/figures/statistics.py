"""Metric series and operations of a session -> ``timeline`` and ``statistics`` of the JSON report.

In comes a ``Session``; out come plain values: seconds since the recording began, values in the unit of the metric.
"""

from __future__ import annotations

from typing import Any

from inferspan.report.metric_series import Series
from inferspan.report.plain import plain, unknown_as_none
from inferspan.report.session import Session

__all__ = ["metric_statistics", "operation_statistics", "timeline"]


def begin_of(session: Session) -> int:
    """Nanoseconds since the epoch of the first span, else of the first point; 0 of a session with neither."""
    times = [series.points[0][0] for series in session.series if series.points and series.points[0][0]]
    return session.tally.first_ns or min(times, default=0)


def timeline(session: Session, labels: list[str]) -> list[dict[str, Any]]:
    """One entry for each series with points: name, unit, attributes, process, and points as [time, value].

    Of joined points there are [mean time, mean, lowest, highest].
    """
    begin = begin_of(session)
    return [
        {
            "name": plain(series.name),
            "unit": plain(series.unit),
            "attributes": plain(series.attributes),
            "process": labels[series.resource],
            "points": [[(point[0] - begin) / 1e9 if point[0] else None, *map(plain, point[1:4])] for point in series.points],
        }
        for series in session.series
        if series.points
    ]


def metric_statistics(session: Session, labels: list[str]) -> list[dict[str, Any]]:
    """One entry for each series: count, min, max, average, p50 and p95 of what was recorded, or the total of a counter."""
    return [
        {"name": plain(series.name), "unit": plain(series.unit), "attributes": plain(series.attributes), "process": labels[series.resource]}
        | _figures(series)
        for series in session.series
    ]


def _figures(series: Series) -> dict[str, Any]:
    histogram = series.histogram
    if histogram is not None:
        average = histogram.sum / histogram.count if histogram.sum is not None and histogram.count else None
        figures = {
            "count": histogram.count, "min": histogram.minimum, "max": histogram.maximum, "average": average,
            "p50": histogram.quantile(0.5), "p95": histogram.quantile(0.95), "total": histogram.sum,
        }  # fmt: skip
    elif series.counts_up:
        figures = {"count": series.count, "total": series.last}
    else:
        figures = {
            "count": series.count, "min": series.minimum, "max": series.maximum, "average": series.average,
            "p50": series.quantiles.at(0.5), "p95": series.quantiles.at(0.95),
        }  # fmt: skip
    known = {name: unknown_as_none(value) if isinstance(value, float) else value for name, value in figures.items()}
    return {name: plain(value) for name, value in known.items() if value is not None}


def operation_statistics(session: Session) -> list[dict[str, Any]]:
    """One entry for each operation, by kind and total: see ``analysis.operations.OperationRow``."""
    return [plain(row.as_dict()) for row in session.tally.operations.rows()]
