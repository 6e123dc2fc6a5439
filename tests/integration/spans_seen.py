"""Spans as the two ends give them, brought to one form: Jaeger's JSON and OTLP JSON -> ``Seen``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Seen", "children", "from_jaeger", "from_otlp", "log_records", "otlp_value"]


@dataclass(frozen=True)
class Seen:
    """One span. Times are nanoseconds (Jaeger's are whole microseconds)."""

    trace: str
    id: str
    parent: str
    name: str
    start: int
    end: int
    attributes: Mapping[str, Any]
    error: bool
    events: tuple[tuple[str, Mapping[str, Any]], ...] = ()


def from_jaeger(spans: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """Spans of Jaeger's HTTP API, by start."""
    seen = []
    for span in spans:
        assert not span["warnings"], span["warnings"]
        tags = {tag["key"]: tag["value"] for tag in span["tags"]}
        parent = next((reference["spanID"] for reference in span["references"] if reference["refType"] == "CHILD_OF"), "")
        events = tuple(
            (str(fields.get("event", "")), fields) for fields in ({f["key"]: f["value"] for f in log["fields"]} for log in span["logs"])
        )
        start, end = span["startTime"] * 1000, (span["startTime"] + span["duration"]) * 1000
        error = tags.get("error") in (True, "true")
        seen.append(Seen(span["traceID"], span["spanID"], parent, span["operationName"], start, end, tags, error, events))
    return sorted(seen, key=lambda span: span.start)


def otlp_value(value: Mapping[str, Any]) -> Any:
    """The plain value of an OTLP JSON ``AnyValue``; 64-bit integers are texts there."""
    if not value:
        return None
    ((kind, inner),) = value.items()
    if kind == "intValue":
        return int(inner)
    if kind == "doubleValue":
        return float(inner)
    if kind == "arrayValue":
        return [otlp_value(item) for item in inner.get("values", ())]
    if kind == "kvlistValue":
        return {item["key"]: otlp_value(item["value"]) for item in inner.get("values", ())}
    return inner


def _attributes(items: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {item["key"]: otlp_value(item["value"]) for item in items}


def from_otlp(lines: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """Spans of OTLP JSON objects, by start."""
    seen = []
    for span in _items(lines, "resourceSpans", "scopeSpans", "spans"):
        events = tuple((event["name"], _attributes(event.get("attributes", ()))) for event in span.get("events", ()))
        attributes = _attributes(span.get("attributes", ()))
        start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        error = span.get("status", {}).get("code") == 2
        parent = span.get("parentSpanId", "")
        seen.append(Seen(span["traceId"], span["spanId"], parent, span["name"], start, end, attributes, error, events))
    return sorted(seen, key=lambda span: span.start)


def log_records(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Log records of OTLP JSON objects: event name, severity, attributes, trace and span id."""
    return [
        {
            "event": record.get("eventName", ""),
            "severity": record.get("severityNumber", 0),
            "attributes": _attributes(record.get("attributes", ())),
            "trace": record.get("traceId", ""),
            "span": record.get("spanId", ""),
        }
        for record in _items(lines, "resourceLogs", "scopeLogs", "logRecords")
    ]


def _items(lines: Iterable[Mapping[str, Any]], resources: str, scopes: str, items: str) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        for resource in line.get(resources, ()):
            for scope in resource.get(scopes, ()):
                yield from scope.get(items, ())


def children(spans: Iterable[Seen], parent: Seen) -> list[Seen]:
    """The spans directly under one, by start."""
    return sorted((span for span in spans if span.parent == parent.id), key=lambda span: span.start)
