"""Requests that fit the receivers, and exporters made from the environment."""

from __future__ import annotations

import logging
import random
import sys
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanContext

from inferspan.export.exporters import REQUEST_LIMIT, GuardedSpans, build_exporter, within_limit
from inferspan.export.older_exporters import MODULES_OF_RETRIES, sends_itself

RESOURCE = Resource({})


def span(attributes: Any, **more: Any) -> ReadableSpan:
    """A span with these attributes."""
    return ReadableSpan("layer", SpanContext(2**127, 2**63, False), None, RESOURCE, attributes, start_time=1, end_time=2, **more)


class Receiver(SpanExporter):
    """Keeps what it is sent; refuses the requests whose numbers it is told."""

    def __init__(self, refuse: tuple[int, ...] = ()) -> None:
        self.requests: list[list[ReadableSpan]] = []
        self._refuse = refuse

    def export(self, spans: Any) -> SpanExportResult:
        self.requests.append(list(spans))
        return SpanExportResult.FAILURE if len(self.requests) - 1 in self._refuse else SpanExportResult.SUCCESS


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([5], [[5]]),
        ([3, 3, 4], [[3, 3, 4]]),
        ([6, 6, 6], [[6], [6], [6]]),
        ([1, 50, 1, 9], [[1], [50], [1, 9]]),
        ([4, 4, 4, 4], [[4, 4], [4, 4]]),
    ],
)
def test_batches_are_cut(sizes: list[int], expected: list[list[int]]) -> None:
    """Parts are as large as the limit allows; an item over the limit is alone; none is lost or moved."""
    assert [list(part) for part in within_limit(sizes, lambda item: int(item), 10)] == expected


def test_requests_stay_below_the_limit() -> None:
    """Whatever attributes, events and links spans have, no encoded request is larger than the limit, and all spans arrive in order."""
    spans = [
        *(span({"text": "x" * 50_000}) for _ in range(20)),
        *(span({"text": "字" * 20_000}) for _ in range(20)),
        *(span({"texts": ["abc"] * 5_000}) for _ in range(20)),
        *(span({"ints": [-1] * 10_000}) for _ in range(20)),
        *(span({"map": {"k" * 100: ["v" * 100] * 300}}) for _ in range(20)),
        *(span({}, events=[Event("e" * 1000, {"text": "x" * 30_000})]) for _ in range(20)),
        *(span({}, links=[Link(SpanContext(1, 2, False), {"text": "x" * 30_000})]) for _ in range(20)),
    ]
    receiver, limit = Receiver(), 200_000
    assert GuardedSpans(lambda: receiver, limit=limit).export(spans) is SpanExportResult.SUCCESS
    assert [item for request in receiver.requests for item in request] == spans
    assert max(encode_spans(request).ByteSize() for request in receiver.requests) < limit
    assert len(receiver.requests) < 120


def test_full_batch_of_ordinary_spans_is_one_request() -> None:
    """A whole batch of spans with a dozen attributes is not cut."""
    receiver = Receiver()
    attributes = {f"inferspan.some.attribute.{number}": "a value" for number in range(10)}
    GuardedSpans(lambda: receiver).export([span({**attributes, "a": 1, "b": 2.5})] * 2048)
    assert [len(request) for request in receiver.requests] == [2048]
    assert encode_spans(receiver.requests[0]).ByteSize() < REQUEST_LIMIT


def test_part_that_fails_fails_the_batch() -> None:
    """One refused request makes the export a failure, and the others are sent all the same."""
    receiver = Receiver(refuse=(0,))
    assert GuardedSpans(lambda: receiver, limit=300).export([span({"a": "x" * 200})] * 3) is SpanExportResult.FAILURE
    assert len(receiver.requests) == 3


@pytest.mark.parametrize(
    ("environ", "http", "over_grpc"),
    [
        ({}, Compression.NoCompression, grpc.Compression.NoCompression),
        *(
            ({"OTEL_EXPORTER_OTLP_ENDPOINT": address}, Compression.NoCompression, grpc.Compression.NoCompression)
            for address in ("http://localhost:4318", "http://127.0.0.1:4318", "http://[::1]:4318")
        ),
        *(
            ({"OTEL_EXPORTER_OTLP_ENDPOINT": address}, Compression.Gzip, grpc.Compression.Gzip)
            for address in ("http://collector:4318", "https://10.0.0.1", "http://localhost.example.org:4318")
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://far:1/v1/traces"},
            Compression.Gzip,
            grpc.Compression.Gzip,
        ),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, Compression.Gzip, grpc.Compression.Gzip),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "none"}, Compression.NoCompression, grpc.Compression.NoCompression),
        (
            {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none"},
            Compression.NoCompression,
            grpc.Compression.NoCompression,
        ),
        ({"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "deflate"}, Compression.Deflate, grpc.Compression.Deflate),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, Compression.Gzip, grpc.Compression.Gzip),
    ],
)
def test_compression(
    environ: dict[str, str], http: Any, over_grpc: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both protocols take none, gzip and deflate; the default is gzip, none on this machine; unknown is gzip, which is said."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING, logger="inferspan"):
        exporters = [build_exporter(f"otlp_proto_{kind}", "traces", environ) for kind in ("http", "grpc")]
    assert exporters[0]._compression.value == http.value
    assert exporters[1]._compression == over_grpc
    assert bool(caplog.records) is ("zstd" in environ.values())
    for exporter in exporters:
        exporter.shutdown()


@pytest.mark.parametrize(("text", "seconds"), [("3", 3.0), ("0.5", 0.5), ("10000", 10.0), ("999", 999.0), ("never", 10.0)])
@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_timeout(kind: str, text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds, as in all of Python's exporters; a thousand and more can only mean the specification's milliseconds."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", text)
    exporter = build_exporter(f"otlp_proto_{kind}", "traces", {"OTEL_EXPORTER_OTLP_TIMEOUT": text})
    assert (exporter._client if kind == "http" and not sends_itself(exporter) else exporter)._timeout == seconds
    exporter.shutdown()


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_missing_package_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the exporter's package the error says what to install."""
    monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter", None)
    with pytest.raises(ImportError, match=f"pip install opentelemetry-exporter-otlp-proto-{kind}"):
        build_exporter(f"otlp_proto_{kind}", "traces", {})


def test_retries_leave_the_global_generator_alone() -> None:
    """A collector that is down does not change what a seeded program draws."""
    failing = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    random.seed(3)
    before = random.getstate()
    for name in ("otlp_proto_http", "otlp_proto_grpc"):
        exporter = build_exporter(name, "traces", failing)
        of_http = MODULES_OF_RETRIES[0] if sends_itself(exporter) else "opentelemetry.exporter.otlp.common.http"
        module = sys.modules[of_http if "http" in name else "opentelemetry.exporter.otlp.proto.grpc.exporter"]
        assert 0.8 <= module.random.uniform(0.8, 1.2) <= 1.2
        exporter.shutdown()
    assert random.getstate() == before
