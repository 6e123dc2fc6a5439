"""From OTLP JSON to the plain form: what a receiver was sent, and the lines of a session file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.scenarios.trees import Log, Metric, Point, Span

__all__ = ["logs_of", "metrics_of", "spans_of"]

_KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_STATUS = ("UNSET", "OK", "ERROR")
_TEMPORALITY = ("", "DELTA", "CUMULATIVE")


def _value(found: Mapping[str, Any]) -> Any:
    if "arrayValue" in found:
        return [_value(part) for part in found["arrayValue"].get("values", ())]
    if "kvlistValue" in found:
        return _attributes(found["kvlistValue"].get("values"))
    if "intValue" in found:
        return int(found["intValue"])
    if "doubleValue" in found:
        return float(found["doubleValue"])
    return next(iter(found.values()), None)


def _attributes(found: Iterable[Mapping[str, Any]] | None) -> dict[str, Any]:
    return {item["key"]: _value(item.get("value", {})) for item in found or ()}


def _scopes(message: Mapping[str, Any], signal: str) -> Iterable[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    for resource in message.get(f"resource{signal}", ()):
        for part in resource.get(f"scope{signal}", ()):
            scope = " ".join(filter(None, [part.get("scope", {}).get("name"), part.get("schemaUrl")]))
            yield resource.get("resource", {}), scope, part


def spans_of(message: Mapping[str, Any]) -> Iterable[Span]:
    """Spans of an ``ExportTraceServiceRequest``; enumerations are numbers."""
    for resource, scope, part in _scopes(message, "Spans"):
        for span in part.get("spans", ()):
            status = span.get("status", {})
            yield Span(
                id=span["spanId"],
                parent=span.get("parentSpanId", ""),
                trace=span["traceId"],
                start=int(span["startTimeUnixNano"]),
                end=int(span["endTimeUnixNano"]),
                name=span["name"],
                kind=_KINDS[span.get("kind", 0)],
                status=_STATUS[status.get("code", 0)],
                message=status.get("message", ""),
                scope=scope,
                resource=_attributes(resource.get("attributes")),
                attributes=_attributes(span.get("attributes")),
                events=[(event["name"], _attributes(event.get("attributes"))) for event in span.get("events", ())],
                links=[(link["spanId"], _attributes(link.get("attributes"))) for link in span.get("links", ())],
                dropped=tuple(int(span.get(f"dropped{what}Count", 0)) for what in ("Attributes", "Events", "Links")),  # type: ignore[arg-type]
                state=span.get("traceState", ""),
            )


def _point(point: Mapping[str, Any]) -> Point:
    found = Point(_attributes(point.get("attributes")), exemplars=bool(point.get("exemplars")))
    if "asInt" in point or "asDouble" in point:
        found.value = int(point["asInt"]) if "asInt" in point else float(point["asDouble"])
        return found
    found.count, found.sum = int(point.get("count", 0)), point.get("sum")
    found.least, found.most = point.get("min"), point.get("max")
    found.bounds = [float(bound) for bound in point.get("explicitBounds", ())]
    found.buckets = [int(count) for count in point.get("bucketCounts", ())]
    return found


def metrics_of(message: Mapping[str, Any]) -> Iterable[Metric]:
    """Metrics of an ``ExportMetricsServiceRequest``."""
    for _, scope, part in _scopes(message, "Metrics"):
        for metric in part.get("metrics", ()):
            kind = next(one for one in ("gauge", "sum", "histogram", "exponentialHistogram") if one in metric)
            data = metric[kind]
            words = [kind.capitalize(), _TEMPORALITY[data.get("aggregationTemporality", 0)], "MONOTONIC" if data.get("isMonotonic") else ""]
            yield Metric(
                scope=scope,
                name=metric["name"],
                kind=" ".join(filter(None, words)),
                unit=metric.get("unit", ""),
                description=metric.get("description", ""),
                points=[_point(point) for point in data.get("dataPoints", ())],
            )


def logs_of(message: Mapping[str, Any]) -> Iterable[Log]:
    """Log records of an ``ExportLogsServiceRequest``."""
    for _, scope, part in _scopes(message, "Logs"):
        for record in part.get("logRecords", ()):
            yield Log(
                event=record.get("eventName", ""),
                body=_value(record.get("body", {})),
                severity=str(record.get("severityNumber", "")),
                scope=scope,
                span=record.get("spanId", ""),
                attributes=_attributes(record.get("attributes")),
            )
