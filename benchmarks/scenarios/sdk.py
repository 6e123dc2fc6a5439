"""From objects of the SDK, as in-memory exporters and readers keep them, to the plain form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.scenarios.trees import Log, Metric, Point, Span

__all__ = ["log_of", "metrics_of", "span_of"]


def _scope(scope: Any) -> str:
    return " ".join(filter(None, [scope.name, getattr(scope, "schema_url", None)]))


def _dropped(bag: Any) -> int:
    return int(getattr(bag, "dropped", 0) or 0)


def span_of(span: Any) -> Span:
    """A ``ReadableSpan``."""
    return Span(
        id=f"{span.context.span_id:016x}",
        parent=f"{span.parent.span_id:016x}" if span.parent else "",
        trace=f"{span.context.trace_id:032x}",
        start=span.start_time,
        end=span.end_time,
        name=span.name,
        kind=span.kind.name,
        status=span.status.status_code.name,
        message=span.status.description or "",
        scope=_scope(span.instrumentation_scope),
        resource=dict(span.resource.attributes),
        attributes=dict(span.attributes or {}),
        events=[(event.name, dict(event.attributes or {})) for event in span.events],
        links=[(f"{link.context.span_id:016x}", dict(link.attributes or {})) for link in span.links],
        dropped=(span.dropped_attributes, span.dropped_events, span.dropped_links),
        state=",".join(f"{key}={value}" for key, value in span.context.trace_state.items()),
    )


def _point(point: Any) -> Point:
    found = Point(dict(point.attributes or {}), exemplars=bool(getattr(point, "exemplars", None)))
    if hasattr(point, "value"):
        found.value = point.value
        return found
    found.count, found.sum, found.least, found.most = point.count, point.sum, point.min, point.max
    found.bounds, found.buckets = list(point.explicit_bounds), list(point.bucket_counts)
    return found


def metrics_of(data: Any) -> Iterable[Metric]:
    """All metrics of ``MetricsData``."""
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                temporality = getattr(metric.data, "aggregation_temporality", None)
                words = [type(metric.data).__name__, temporality.name if temporality is not None else ""]
                words += ["MONOTONIC"] if getattr(metric.data, "is_monotonic", False) else []
                yield Metric(
                    scope=_scope(scope.scope),
                    name=metric.name,
                    kind=" ".join(filter(None, words)),
                    unit=metric.unit or "",
                    description=metric.description or "",
                    points=[_point(point) for point in metric.data.data_points],
                )


def log_of(data: Any) -> Log:
    """A ``ReadableLogRecord``."""
    record = data.log_record
    return Log(
        event=record.event_name or "",
        body=record.body,
        severity=record.severity_number.name if record.severity_number is not None else "",
        scope=_scope(data.instrumentation_scope),
        span=f"{record.span_id:016x}" if record.span_id else "",
        attributes=dict(record.attributes or {}),
    )
