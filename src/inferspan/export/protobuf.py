"""OTLP spans packed by hand into protobuf bytes, for child spans that come in bulk.

In go names, times and plain attribute values; out come the bytes of ``Span``, framed as elements of ``ScopeSpans``, and of a whole
``ExportTraceServiceRequest`` (opentelemetry-proto 1.x, ``trace/v1/trace.proto``). Everything that is the same for all calls of a
module is packed once, so that a span costs one ``struct`` call and a few concatenations. A value that OTLP has no type for raises
``TypeError``, an integer beyond 64 bits ``OverflowError``.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "attribute",
    "attributes",
    "cut",
    "dropped_attributes",
    "error_status",
    "link",
    "request",
    "resource",
    "scope",
    "span",
    "static_part",
    "text",
    "varint",
]

# Lengths of ids are fixed, so their tags and lengths are constants: trace_id (1), span_id (2), parent_span_id (4), then the fixed64
# start (7) and end (8) and the fixed32 flags (16, a two-byte tag).
_CHILD = struct.Struct("<2s16s2s8s2s8sBQBQHI").pack
_ROOT = struct.Struct("<2s16s2s8sBQBQHI").pack
_LINK = struct.Struct("<4s16s2s8sBI").pack
_DOUBLE = struct.Struct("<Bd").pack
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def varint(number: int) -> bytes:
    """Pack a number that is not negative, seven bits a byte."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _framed(tag: bytes, body: bytes) -> bytes:
    return tag + varint(len(body)) + body


def text(tag: bytes, value: str) -> bytes:
    """Pack a text field after its tag."""
    # A lone surrogate has no UTF-8 form, and one such character must not cost the span.
    return _framed(tag, value.encode("utf-8", "replace"))


def _any_value(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, str):
        return text(b"\x0a", value)
    if isinstance(value, int):
        if not _INT64_MIN <= value <= _INT64_MAX:
            raise OverflowError(f"{value} does not fit into 64 bits")
        return b"\x18" + varint(value & 0xFFFFFFFFFFFFFFFF)
    if isinstance(value, float):
        return _DOUBLE(0x21, value)
    if isinstance(value, bytes):
        return _framed(b"\x3a", value)
    if isinstance(value, Sequence):
        return _framed(b"\x2a", b"".join(_framed(b"\x0a", _any_value(item)) for item in value))
    if isinstance(value, Mapping):
        return _framed(b"\x32", b"".join(_framed(b"\x0a", _key_value(str(key), item)) for key, item in value.items()))
    raise TypeError(f"no OTLP type for {type(value).__name__}")


@functools.lru_cache(maxsize=1024)
def _key(key: str) -> bytes:
    return text(b"\x0a", key)


def _key_value(key: str, value: Any) -> bytes:
    return _key(key) + _framed(b"\x12", _any_value(value))


def attribute(key: str, value: Any) -> bytes:
    """Pack one attribute as an element of ``Span.attributes``.

    Args:
        key: attribute name.
        value: bool, int, float, str, bytes, ``None``, or sequences and mappings of them.

    Raises:
        OverflowError: an integer does not fit into 64 bits.
        TypeError: OTLP has no type for the value.
    """
    return _framed(b"\x4a", _key_value(key, value))


def attributes(found: Mapping[str, Any]) -> bytes:
    """Pack attributes, one after the other; raises as ``attribute``."""
    packed = b""
    for key, value in found.items():
        packed += _framed(b"\x4a", _key_value(key, value))
    return packed


def static_part(name: str, kind: int, found: Mapping[str, Any]) -> bytes:
    """Pack the fields that all spans of one module or step share.

    Args:
        name: span name.
        kind: ``SpanKind`` of the protocol, 1 for internal (the API's value plus one).
        found: the attributes; see ``attribute``.
    """
    return text(b"\x2a", name) + b"\x30" + varint(kind) + attributes(found)


def dropped_attributes(count: int) -> bytes:
    """Pack how many attributes a span has lost to a limit."""
    return b"\x50" + varint(count)


def link(trace_id: bytes, span_id: bytes, flags: int, found: Mapping[str, Any] | None = None) -> bytes:
    """Pack a link to another span, for the body of a span.

    Args:
        trace_id: 16 bytes.
        span_id: 8 bytes.
        flags: ``Link.flags``; 0x100 says that the span is known to be local.
        found: attributes of the link; see ``attribute``.
    """
    if found:
        packed = b"".join(_framed(b"\x22", _key_value(key, value)) for key, value in found.items())
        return _framed(b"\x6a", b"\x0a\x10" + trace_id + b"\x12\x08" + span_id + packed + b"\x35" + flags.to_bytes(4, "little"))
    return _LINK(b"\x6a\x21\x0a\x10", trace_id, b"\x12\x08", span_id, 0x35, flags)


def error_status(description: str) -> bytes:
    """Pack the status of a span that failed, for the end of its body."""
    return _framed(b"\x7a", (text(b"\x12", description) if description else b"") + b"\x18\x02")


def span(
    trace_id: bytes,
    span_id: bytes,
    parent_id: bytes,
    flags: int,
    trace_state: str,
    static: bytes,
    start_ns: int,
    end_ns: int,
    dynamic: bytes = b"",
    status_error: str | None = None,
) -> bytes:
    """Pack one span, framed as an element of ``ScopeSpans.spans``.

    Args:
        trace_id: 16 bytes.
        span_id: 8 bytes.
        parent_id: 8 bytes, or none for a root span.
        flags: ``Span.flags``; 0x100 says that the parent is known to be local.
        trace_state: W3C trace state, as text.
        static: result of ``static_part``.
        start_ns: nanoseconds since the Unix epoch.
        end_ns: nanoseconds since the Unix epoch.
        dynamic: concatenated results of ``attribute``.
        status_error: description of an error, possibly empty; ``None`` leaves the status unset.
    """
    if parent_id:
        body = _CHILD(b"\x0a\x10", trace_id, b"\x12\x08", span_id, b"\x22\x08", parent_id, 0x39, start_ns, 0x41, end_ns, 0x0185, flags)
    else:
        body = _ROOT(b"\x0a\x10", trace_id, b"\x12\x08", span_id, 0x39, start_ns, 0x41, end_ns, 0x0185, flags)
    body = body + static + dynamic
    if trace_state:
        body += text(b"\x1a", trace_state)
    if status_error is not None:
        body += error_status(status_error)
    size = len(body)
    if 0x80 <= size < 0x4000:  # nearly every span; saves the call
        return bytes((0x12, size & 0x7F | 0x80, size >> 7)) + body
    return b"\x12" + varint(size) + body


def resource(attributes: Mapping[str, Any]) -> bytes:
    """Pack a ``Resource``, for ``request``; raises as ``attribute``."""
    return b"".join(_framed(b"\x0a", _key_value(key, value)) for key, value in attributes.items())


def scope(name: str, version: str | None = None, attributes: Mapping[str, Any] | None = None) -> bytes:
    """Pack an ``InstrumentationScope``, for ``request``; raises as ``attribute``."""
    head = text(b"\x0a", name) + (text(b"\x12", version) if version else b"")
    return head + b"".join(_framed(b"\x1a", _key_value(key, value)) for key, value in (attributes or {}).items())


def cut(spans: bytes, room: int, *, least: bool = False) -> tuple[bytes, int]:
    """The first of some packed spans, as many as fit.

    Args:
        spans: results of ``span``, joined.
        room: bytes available.
        least: whether the first one is taken though it does not fit.

    Returns:
        Those that fit, joined, and their number.
    """
    end = number = 0
    while end < len(spans):
        at, size, shift = end + 1, 0, 0
        while True:
            size |= (spans[at] & 0x7F) << shift
            shift += 7
            at += 1
            if spans[at - 1] < 0x80:
                break
        if at + size > room and not (least and not number):
            break
        end = at + size
        number += 1
    return spans[:end], number


def request(resource: bytes, scope: bytes, schema_url: str, spans: Sequence[bytes], *, resource_schema_url: str = "") -> bytes:
    """Pack an ``ExportTraceServiceRequest`` of one resource and one scope, copying the spans once.

    Args:
        resource: result of ``resource``, or any serialised ``Resource``.
        scope: result of ``scope``, or any serialised ``InstrumentationScope``.
        schema_url: schema of the spans, or an empty text.
        spans: results of ``span``, single or joined.
        resource_schema_url: schema of the resource, or an empty text.
    """
    head, last = _framed(b"\x0a", scope), text(b"\x1a", schema_url) if schema_url else b""
    size = len(head) + sum(map(len, spans)) + len(last)
    around = _framed(b"\x0a", resource) + b"\x12" + varint(size)
    end = text(b"\x1a", resource_schema_url) if resource_schema_url else b""
    return b"".join((b"\x0a", varint(len(around) + size + len(end)), around, head, *spans, last, end))
