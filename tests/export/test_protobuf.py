"""Packed spans: equal, message by message, to what the official encoder makes of the same spans."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from inferspan.export import protobuf

TRACE, PARENT = 0x0123456789ABCDEF0123456789ABCDEF, 0xFEDCBA9876543210
RESOURCE = Resource({"service.name": "model", "host.name": "höst", "rank": 3, "list": ["a", "b"]}, "https://example.org/resource")
SCOPE = InstrumentationScope("inferspan", "1.2", "https://example.org/scope", {"kind": "raw"})
ATTRIBUTES: Mapping[str, Any] = {
    "text": "layer 12",
    "empty": "",
    "umlaut": "Größe 😀",
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -5,
    "large": 2**63 - 1,
    "small": -(2**63),
    "double": 1.5e-9,
    "texts": ("1x2", "3x4"),
    "ints": [1, -2, 300],
    "doubles": [0.5, -1.0],
    "bools": [True, False],
    "nothing": None,
    "none": [],
    "bytes": b"\x00\xff",
    "map": {"a": 1, "b": {"c": "d"}},
    "long": "x" * 20_000,
}


def known_to_the_official_encoder(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes without those that the installed encoder leaves out: before 1.43 it has none for an empty value."""
    encoded = encode_spans([readable(1, attributes)]).resource_spans[0].scope_spans[0].spans[0].attributes
    known = {pair.key for pair in encoded}
    assert set(attributes) - known <= {"nothing"}
    return {key: value for key, value in attributes.items() if key in known}


def readable(
    number: int, attributes: Mapping[str, Any], *, root: bool = False, error: str | None = None, state: TraceState | None = None
) -> Any:
    """A span as spans.py would make it."""
    return ReadableSpan(
        f"layer {number}",
        SpanContext(TRACE, number, False, TraceFlags(1), state),
        None if root else SpanContext(TRACE, PARENT, False, TraceFlags(1)),
        RESOURCE,
        attributes,
        kind=SpanKind.CLIENT,
        status=Status(StatusCode.UNSET) if error is None else Status(StatusCode.ERROR, error),
        start_time=1_700_000_000_000_000_000 + number,
        end_time=1_700_000_000_000_000_500 + number,
        instrumentation_scope=SCOPE,
    )


def packed(span: Any, *, static: Mapping[str, Any], dynamic: Mapping[str, Any]) -> bytes:
    """The same span, packed."""
    return protobuf.span(
        span.context.trace_id.to_bytes(16, "big"),
        span.context.span_id.to_bytes(8, "big"),
        span.parent.span_id.to_bytes(8, "big") if span.parent else b"",
        0x100,
        ",".join(f"{key}={value}" for key, value in span.context.trace_state.items()),
        protobuf.static_part(span.name, span.kind.value + 1, static),
        span.start_time,
        span.end_time,
        b"".join(protobuf.attribute(key, value) for key, value in dynamic.items()),
        span.status.description or "" if span.status.status_code is StatusCode.ERROR else None,
    )


def test_request_equals_official_encoding() -> None:
    """A packed request parses into the message that the official encoder makes of the same spans."""
    attributes = known_to_the_official_encoder(ATTRIBUTES)
    half = dict(list(attributes.items())[:9]), dict(list(attributes.items())[9:])
    spans = [
        readable(1, attributes),
        readable(2, {}),
        readable(3, {"a": 1}, root=True),
        readable(4, {}, error="ValueError: bad\nshape"),
        readable(5, {}, error=""),
        readable(6, {}, state=TraceState([("vendor", "x:1"), ("other", "2")])),
    ]
    parts = [
        packed(spans[0], static=half[0], dynamic=half[1]),
        *(packed(span, static=span.attributes, dynamic={}) for span in spans[1:]),
    ]
    data = protobuf.request(
        protobuf.resource(RESOURCE.attributes),
        protobuf.scope(SCOPE.name, SCOPE.version, SCOPE.attributes),
        SCOPE.schema_url or "",
        parts,
        resource_schema_url=RESOURCE.schema_url,
    )
    expected = encode_spans(spans)
    for span in expected.resource_spans[0].scope_spans[0].spans:
        if span.status.code == 0:
            span.ClearField("status")  # an unset status is written as an empty message there, and not at all here
    assert ExportTraceServiceRequest.FromString(data) == expected


@pytest.mark.parametrize("size", [0, 1, 40, 127, 128, 129, 16_300, 16_383, 16_384, 3_000_000])
def test_any_length_is_framed(size: int) -> None:
    """Spans on both sides of every length of a length prefix are read back."""
    span = readable(1, {"a": "x" * size})
    data = protobuf.request(protobuf.resource(RESOURCE.attributes), protobuf.scope("s"), "", [packed(span, static={}, dynamic=span.attributes)] * 2)
    found = ExportTraceServiceRequest.FromString(data).resource_spans[0].scope_spans[0].spans
    assert [item.attributes[0].value.string_value for item in found] == ["x" * size] * 2


def test_lone_surrogate_is_replaced() -> None:
    """A text that has no UTF-8 form costs that character, not the span."""
    data = protobuf.request(b"", protobuf.scope("s"), "", [packed(readable(1, {}), static={"a": "b\ud800c"}, dynamic={})])
    assert ExportTraceServiceRequest.FromString(data).resource_spans[0].scope_spans[0].spans[0].attributes[0].value.string_value == "b?c"


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, [1, 2**64]])
def test_integer_beyond_64_bits_is_refused(value: Any) -> None:
    """An integer that the protocol cannot hold raises instead of being sent as another number."""
    with pytest.raises(OverflowError, match="64 bits"):
        protobuf.attribute("a", value)


def test_unknown_type_is_refused() -> None:
    """A value without an OTLP type raises a TypeError that names the type."""
    with pytest.raises(TypeError, match="complex"):
        protobuf.attribute("a", 1j)


def test_span_costs_a_fraction_of_the_official_encoding() -> None:
    """Packing a span with static attributes is at least eight times cheaper than encoding it."""
    attributes = {f"inferspan.key.{number}": "value" for number in range(6)}
    span = readable(1, attributes)
    static = protobuf.static_part(span.name, 1, attributes)
    ids = TRACE.to_bytes(16, "big"), PARENT.to_bytes(8, "big")

    def fastest(action: Any, repeats: int) -> float:
        times = []
        for _ in range(repeats):
            before = time.perf_counter()
            action()
            times.append(time.perf_counter() - before)
        return min(times)

    ours = fastest(lambda: [protobuf.span(ids[0], ids[1], ids[1], 0x100, "", static, 1, 2) for _ in range(500)], 20)
    official = fastest(lambda: encode_spans([span] * 500), 5)
    assert ours < official / 8
