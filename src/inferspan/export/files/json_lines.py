"""Spans, metrics and log records as OTLP JSON lines, in the format of the collector's file exporter.

In come finished spans and OTLP messages; out comes one compact JSON object, ``{"resourceSpans":[...]}``, ``{"resourceMetrics":[...]}`` or
``{"resourceLogs":[...]}``, with hex ids, 64-bit integers as strings and enums as integers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from inferspan.semconv import SCOPE

__all__ = ["message_line", "record_line", "spans_line"]

_ID_FIELDS = ("traceId", "spanId", "parentSpanId")
_LINE = json.JSONEncoder(separators=(",", ":")).encode


def spans_line(spans: Sequence[ReadableSpan]) -> str:
    """Encode spans as one OTLP JSON object, without going through protobuf (which takes several times as long)."""
    # Objects are compared by identity: hashing a Resource costs more than encoding a span.
    resources: dict[int, tuple[Any, dict[int, tuple[Any, list[str]]]]] = {}
    for span in spans:
        _, scopes = resources.setdefault(id(span.resource), (span.resource, {}))
        scopes.setdefault(id(span.instrumentation_scope), (span.instrumentation_scope, []))[1].append(_span(span))
    return '{"resourceSpans":[%s]}' % ",".join(
        '{"resource":{%s},"scopeSpans":[%s]%s}' % (_attributes(resource.attributes)[1:], _scopes(scopes.values()), _schema(resource))
        for resource, scopes in resources.values()
    )


def _scopes(scopes: Iterable[tuple[Any, list[str]]]) -> str:
    return ",".join('{"scope":{%s},"spans":[%s]%s}' % (_scope(scope), ",".join(spans), _schema(scope)) for scope, spans in scopes)


def _span(span: ReadableSpan) -> str:
    context, parent = span.context, span.parent
    status = span.status
    parts = [
        f'"traceId":"{context.trace_id:032x}","spanId":"{context.span_id:016x}"',
        f',"traceState":{_text(_trace_state(context.trace_state))}' if context.trace_state else "",
        f',"parentSpanId":"{parent.span_id:016x}"' if parent else "",
        f',"flags":{_flags(parent)},"name":{_text(span.name)},"kind":{span.kind.value + 1}',
        f',"startTimeUnixNano":"{span.start_time}"' if span.start_time else "",
        f',"endTimeUnixNano":"{span.end_time}"' if span.end_time else "",
        _attributes(span.attributes),
        f',"droppedAttributesCount":{span.dropped_attributes}' if span.dropped_attributes else "",
        ',"events":[%s]' % ",".join(_event(event) for event in span.events) if span.events else "",
        f',"droppedEventsCount":{span.dropped_events}' if span.dropped_events else "",
        ',"links":[%s]' % ",".join(_link(link) for link in span.links) if span.links else "",
        f',"droppedLinksCount":{span.dropped_links}' if span.dropped_links else "",
        f',"status":{{"message":{_text(status.description)},"code":{status.status_code.value}}}'
        if status.description
        else f',"status":{{"code":{status.status_code.value}}}'
        if status.status_code.value
        else ',"status":{}',
    ]
    return "{%s}" % "".join(parts)


def _event(event: Any) -> str:
    dropped = f',"droppedAttributesCount":{event.dropped_attributes}' if event.dropped_attributes else ""
    return f'{{"timeUnixNano":"{event.timestamp}","name":{_text(event.name)}{_attributes(event.attributes)}{dropped}}}'


def _link(link: Any) -> str:
    # The protobuf encoder leaves the trace state of links out as well.
    context = link.context
    dropped = f',"droppedAttributesCount":{link.dropped_attributes}' if link.dropped_attributes else ""
    ids = f'"traceId":"{context.trace_id:032x}","spanId":"{context.span_id:016x}"'
    return f'{{{ids}{_attributes(link.attributes)}{dropped},"flags":{_flags(context)}}}'


def _flags(parent: Any) -> int:
    # SpanFlags: whether the parent is remote is known (0x100), and it is (0x200).
    return 0x300 if parent and parent.is_remote else 0x100


def _trace_state(state: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in state.items())


def _scope(scope: Any) -> str:
    if scope is None:
        return ""
    version = f',"version":{_text(scope.version)}' if scope.version else ""
    return f'"name":{_text(scope.name)}{version}{_attributes(scope.attributes)}'


def _schema(owner: Any) -> str:
    url = owner.schema_url if owner is not None else None
    return f',"schemaUrl":{_text(url)}' if url else ""


def _attributes(attributes: Mapping[str, Any] | None) -> str:
    """All attributes with their field name and a leading comma, or nothing."""
    if not attributes:
        return ""
    return ',"attributes":[%s]' % ",".join(
        [f'{{"key":{_text(key)},"value":{encoded}}}' for key, value in attributes.items() if (encoded := _value(value)) is not None]
    )


def _value(value: Any) -> str | None:
    """An ``AnyValue``, or ``None`` for what OTLP cannot hold; the protobuf encoder drops those attributes too."""
    kind = type(value)
    if kind is str:
        return f'{{"stringValue":{_text(value)}}}'
    if kind is bool:
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    if kind is int:
        return f'{{"intValue":"{value}"}}' if -(2**63) <= value < 2**63 else None
    if kind is float:
        return f'{{"doubleValue":{value!r}}}' if isfinite(value) else f'{{"doubleValue":{_nonfinite(value)}}}'
    if value is None:
        return "{}"
    return _other_value(value)


def _other_value(value: Any) -> str | None:
    for base in (bool, str, int, float):  # subclasses, such as the members of an IntEnum
        if isinstance(value, base):
            return _value(base.__str__(value) if base is str else base(value))
    if isinstance(value, bytes):
        return f'{{"bytesValue":"{base64.b64encode(value).decode("ascii")}"}}'
    if isinstance(value, Sequence):
        items = [_value(item) for item in value]
        return None if None in items else '{"arrayValue":{"values":[%s]}}' % ",".join(item for item in items if item)
    if isinstance(value, Mapping):
        pairs = [(str(key), _value(item)) for key, item in value.items()]
        if any(item is None for _, item in pairs):
            return None
        return '{"kvlistValue":{"values":[%s]}}' % ",".join(f'{{"key":{_text(key)},"value":{item}}}' for key, item in pairs)
    return None


def _nonfinite(value: float) -> str:
    # JSON has no such numbers; this is how protobuf's JSON form writes them.
    return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'


def _text(value: str | None) -> str:
    value = value or ""
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate would make the line unreadable
    return encode_basestring_ascii(value)


def record_line(resource: Any, event: str, attributes: Mapping[str, Any], time_ns: int) -> str:
    """Encode one log record of ours, an event of severity INFO, as one OTLP JSON object."""
    record = f'"timeUnixNano":"{time_ns}","severityNumber":9,"severityText":"INFO","eventName":{_text(event)}{_attributes(attributes)}'
    holder = _attributes(getattr(resource, "attributes", None))[1:]
    return '{"resourceLogs":[{"resource":{%s},"scopeLogs":[{"scope":{"name":%s},"logRecords":[{%s}]}]%s}]}' % (
        holder, _text(SCOPE), record, _schema(resource),
    )  # fmt: skip


def message_line(message: Any) -> str:
    """Encode a protobuf message of the OTLP services as one OTLP JSON object."""
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped, unused-ignore]  # its types are a package apart

    return _LINE(_hex_ids(MessageToDict(message, use_integers_for_enums=True)))


def _hex_ids(tree: Any) -> Any:
    # Attribute keys are values in this format, never field names, so an attribute called "traceId" is not touched.
    if isinstance(tree, list):
        return [_hex_ids(item) for item in tree]
    if isinstance(tree, dict):
        return {
            key: base64.b64decode(value).hex() if key in _ID_FIELDS and isinstance(value, str) else _hex_ids(value)
            for key, value in tree.items()
        }
    return tree
