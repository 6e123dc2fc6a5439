"""Session files: lines that the collector's reader and protobuf's own parser understand, equal to the official encoding."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, InMemoryLogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from inferspan import guard, semconv
from inferspan.export.files.json_lines import spans_line
from inferspan.export.files.session_file import LONGEST_LINE, LogFileExporter, MetricFileExporter, SessionFile, SpanFileExporter
from inferspan.settings import SettingsError

RESOURCE = Resource({"service.name": "model", "list": ["a", "b"]}, "https://example.org/resource")
SCOPE = InstrumentationScope("inferspan", "1.2", "https://example.org/scope", {"kind": "x"})


class Colour(IntEnum):
    """A subclass of int, as attribute value."""

    RED = 3


def parsed(line: str, message: Any) -> Any:
    """The protobuf message of a line; ids are hex in OTLP JSON and base64 in protobuf's."""

    def base64_ids(tree: Any) -> Any:
        if isinstance(tree, list):
            return [base64_ids(item) for item in tree]
        if isinstance(tree, dict):
            ids = ("traceId", "spanId", "parentSpanId")
            return {k: base64.b64encode(bytes.fromhex(v)).decode() if k in ids else base64_ids(v) for k, v in tree.items()}
        return tree

    return json_format.ParseDict(base64_ids(json.loads(line)), message)


def rich_spans() -> list[ReadableSpan]:
    """Spans with everything that a span can have, of two resources and two scopes."""
    state = TraceState([("vendor", "x:1"), ("other", "2")])
    remote = SpanContext(2**127 + 1, 2**63 + 1, True, TraceFlags(1), state)
    local = SpanContext(2**127 + 1, 5, False, TraceFlags(1))
    attributes: dict[str, Any] = {
        "text": 'quote " backslash \\ newline \n tab \t Größe 😀 \u2028',
        "empty": "",
        "lone": "a\ud800b",
        "true": True,
        "zero": 0,
        "large": 2**63 - 1,
        "small": -(2**63),
        "enum": Colour.RED,
        "double": 0.1,
        "tiny": 5e-324,
        "whole": 3.0,
        "infinite": float("inf"),
        "negative": float("-inf"),
        "texts": ("1x2", "3x4"),
        "mixed": [1, 2.5, "a", True, None],
        "none": [],
        "nothing": None,
        "bytes": b"\x00\xff",
        "map": {"traceId": "not an id", "deep": {"er": [1]}},
    }
    events = [Event("exception", {"exception.type": "ValueError", "n": 2}, 17), Event("plain", None, 18)]
    links = [Link(remote, {"why": "retry"}), Link(local)]
    error = Status(StatusCode.ERROR, "ValueError: no")
    kinds = [
        ReadableSpan(
            f"kind {kind.name}", SpanContext(9, 10 + kind.value, False), local, RESOURCE, {}, kind=kind, instrumentation_scope=SCOPE
        )
        for kind in SpanKind
    ]
    return [
        ReadableSpan("root", local, None, RESOURCE, attributes, events, links, SpanKind.SERVER, None, error, 1, 2**62, SCOPE),
        ReadableSpan(
            "child", remote, remote, RESOURCE, {"a": 1}, status=Status(StatusCode.OK), start_time=3, end_time=4, instrumentation_scope=SCOPE
        ),
        ReadableSpan(
            "other scope", remote, local, RESOURCE, None, status=Status(StatusCode.ERROR), instrumentation_scope=InstrumentationScope("b")
        ),
        ReadableSpan("other resource", remote, local, Resource({}), None, instrumentation_scope=None),
        *kinds,
    ]


def limited_spans() -> list[ReadableSpan]:
    """Spans of the SDK itself, over its limits, so that dropped counts appear."""
    from opentelemetry.sdk.trace import SpanLimits
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    limits = SpanLimits(max_span_attributes=2, max_events=1, max_links=1, max_event_attributes=1, max_link_attributes=1)
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False, span_limits=limits)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    context = SpanContext(1, 2, False)
    links = [Link(context, {"a": 1, "b": 2}), Link(context, {"a": 1, "b": 2})]
    span = provider.get_tracer("t", "1", attributes={"s": 1}).start_span("limited", attributes={"a": 1, "b": 2, "c": 3}, links=links)
    span.add_event("first", {"a": 1, "b": 2})
    span.add_event("second", {"a": 1, "b": 2})
    span.end()
    return list(exporter.get_finished_spans())


def test_spans_equal_official_encoding() -> None:
    """Every span, with events, links, status, trace state, all attribute types and dropped counts, parses into the official message."""
    spans = [*rich_spans(), *limited_spans()]
    line = spans_line(spans)
    expected = encode_spans([span for span in spans if span.name != "root"])
    found = parsed(line, ExportTraceServiceRequest())
    root = found.resource_spans[0].scope_spans[0].spans.pop(0)
    assert found == expected
    # The official encoder cannot encode a lone surrogate, so the root is compared without it.
    plain = rich_spans()[0]
    attributes = {key: value for key, value in (plain.attributes or {}).items() if key != "lone"}
    official = encode_spans([ReadableSpan(**{**arguments(plain), "attributes": attributes})]).resource_spans[0].scope_spans[0].spans[0]
    assert [item.value.string_value for item in root.attributes if item.key == "lone"] == ["a?b"]
    encoded = {item.key for item in official.attributes}
    # That of version 1.40 cannot encode null either.
    assert attributes.keys() - encoded <= {"mixed", "nothing"}
    kept = [item for item in root.attributes if item.key in encoded]
    del root.attributes[:]
    root.attributes.extend(kept)
    assert root == official


def arguments(span: ReadableSpan) -> dict[str, Any]:
    """What a span was made of."""
    names = (
        "name",
        "context",
        "parent",
        "resource",
        "events",
        "links",
        "kind",
        "status",
        "start_time",
        "end_time",
        "instrumentation_scope",
    )
    return {name: getattr(span, name) for name in names}


def test_line_has_the_shape_of_the_collectors_file() -> None:
    """One compact object: camel-case names, hex ids, 64-bit integers as strings, enums as integers."""
    span = ReadableSpan(
        "layer 1",
        SpanContext(0xAB, 0xCD, False, TraceFlags(1)),
        SpanContext(0xAB, 0xEF, False, TraceFlags(1)),
        Resource({"service.name": "m"}),
        {"a": 1},
        start_time=10,
        end_time=20,
        instrumentation_scope=InstrumentationScope("inferspan"),
    )
    assert spans_line([span]) == (
        '{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"m"}}]},'
        '"scopeSpans":[{"scope":{"name":"inferspan"},"spans":[{"traceId":"000000000000000000000000000000ab","spanId":"00000000000000cd",'
        '"parentSpanId":"00000000000000ef","flags":256,"name":"layer 1","kind":1,"startTimeUnixNano":"10","endTimeUnixNano":"20",'
        '"attributes":[{"key":"a","value":{"intValue":"1"}}],"status":{}}]}]}]}'
    )


def test_attribute_that_otlp_cannot_hold_is_left_out() -> None:
    """An integer beyond 64 bits or an unknown type costs that attribute, as in the official encoder, not the line."""
    odd: dict[str, Any] = {"big": 2**63, "list": [1, 2**64], "map": {"a": 2**64}, "odd": object(), "good": 1}
    span = ReadableSpan("s", SpanContext(1, 2, False), None, Resource({}), odd, instrumentation_scope=SCOPE)
    found = parsed(spans_line([span]), ExportTraceServiceRequest()).resource_spans[0].scope_spans[0].spans[0]
    assert [item.key for item in found.attributes] == ["good"]


def test_not_a_number_is_written_as_protobuf_does() -> None:
    """NaN, which JSON does not have, is the string that protobuf's JSON form uses."""
    span = ReadableSpan("s", SpanContext(1, 2, False), None, Resource({}), {"a": float("nan")}, instrumentation_scope=SCOPE)
    value = (
        parsed(spans_line([span]), ExportTraceServiceRequest()).resource_spans[0].scope_spans[0].spans[0].attributes[0].value.double_value
    )
    assert value != value


def test_metrics_equal_official_encoding(tmp_path: Path) -> None:
    """Sums, gauges and histograms with exemplars parse into the official message."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource=RESOURCE, shutdown_on_exit=False)
    meter = provider.get_meter("inferspan", "1", "https://example.org/scope")
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("t")
    with tracer.start_as_current_span("s") as span:
        meter.create_histogram("h", "s").record(0.3, {"a": 1})
        meter.create_counter("c").add(2**40)
        meter.create_gauge("g").set(1.5)
    data = reader.get_metrics_data()
    assert data is not None
    exporter = MetricFileExporter(tmp_path / "s.jsonl")
    exporter.export(data)
    exporter.shutdown()
    (line,) = (tmp_path / "s.jsonl").read_text().splitlines()
    assert line.startswith('{"resourceMetrics":[{"resource":{"attributes":[{"key":"service.name"')
    assert f'"traceId":"{span.get_span_context().trace_id:032x}"' in line
    assert '"asInt":"1099511627776"' in line and '"aggregationTemporality":2' in line
    assert parsed(line, ExportMetricsServiceRequest()) == encode_metrics(data)


def test_logs_equal_official_encoding(tmp_path: Path) -> None:
    """A log record with trace context and a nested body parses into the official message."""
    memory = InMemoryLogRecordExporter()
    provider = LoggerProvider(resource=RESOURCE, shutdown_on_exit=False)
    processor = BatchLogRecordProcessor(memory)
    provider.add_log_record_processor(processor)
    with TracerProvider(shutdown_on_exit=False).get_tracer("t").start_as_current_span("s") as span:
        record = LogRecord(timestamp=5, severity_number=SeverityNumber.WARN, body={"a": [1, "b"]}, attributes={"n": 1}, event_name="e")
        provider.get_logger("inferspan", "1").emit(record)
    processor.force_flush()
    logs = memory.get_finished_logs()
    processor.shutdown()
    exporter = LogFileExporter(tmp_path / "s.jsonl")
    exporter.export(logs)
    exporter.shutdown()
    (line,) = (tmp_path / "s.jsonl").read_text().splitlines()
    assert f'"spanId":"{span.get_span_context().span_id:016x}"' in line
    assert parsed(line, ExportLogsServiceRequest()) == encode_logs(logs)


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    """Exporters that append to one file at the same time write whole lines, after what was there."""
    path = tmp_path / "s.jsonl"
    path.write_text('{"resourceSpans":[]}\n')
    spans = rich_spans()[1:] * 50
    exporters = [SpanFileExporter(path) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(exporter.export, spans) for exporter in exporters for _ in range(5)]]
    for exporter in exporters:
        exporter.shutdown()
    assert results == [SpanExportResult.SUCCESS] * 20
    lines = path.read_text().splitlines()
    assert lines == ['{"resourceSpans":[]}'] + [spans_line(spans)] * 20


@pytest.mark.parametrize("path", ["missing/s.jsonl", "."])
def test_path_that_cannot_be_written_is_named(tmp_path: Path, path: str) -> None:
    """A missing directory, or a directory itself, raises one error with the setting, the value and what is allowed."""
    with pytest.raises(SettingsError, match=r"inferspan setting 'session_file' cannot be .*; use the path of a file"):
        SessionFile(tmp_path / path)


def test_full_disk_is_a_failed_export() -> None:
    """A write that fails is reported as such and raises nothing."""
    exporter = SpanFileExporter("/dev/full")
    assert exporter.export(rich_spans()) is SpanExportResult.FAILURE
    exporter.shutdown()


def test_export_after_shutdown_is_a_failed_export(tmp_path: Path) -> None:
    """What comes after the end is refused."""
    exporter = SpanFileExporter(tmp_path / "s.jsonl")
    exporter.shutdown()
    assert exporter.export(rich_spans()) is SpanExportResult.FAILURE


def test_a_batch_that_cannot_be_encoded_is_refused(tmp_path: Path, contained: list[guard.Swallowed]) -> None:
    """An error of the encoder is contained and counted, and the next batch is written."""
    odd: Any = {7: "a key that is no text"}
    span = ReadableSpan("s", SpanContext(1, 2, False), None, Resource({}), odd, instrumentation_scope=SCOPE)
    exporter = SpanFileExporter(tmp_path / "s.jsonl")
    results = [exporter.export([span]), exporter.export(rich_spans())]
    exporter.shutdown()
    assert results == [SpanExportResult.FAILURE, SpanExportResult.SUCCESS]
    assert [error.place for error in contained] == ["session file"]
    contained.clear()


def test_a_long_batch_is_divided(tmp_path: Path) -> None:
    """Readers limit the length of a line, so a batch of many large spans is written as several."""
    large = {"text": "x" * (LONGEST_LINE // 3)}
    spans = [
        ReadableSpan(f"s{number}", SpanContext(1, number + 1, False), None, RESOURCE, large, instrumentation_scope=SCOPE) for number in range(5)
    ]
    exporter = SpanFileExporter(tmp_path / "s.jsonl")
    exporter.export(spans)
    exporter.shutdown()
    lines = [json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"] for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert [[span["name"] for span in line] for line in lines] == [["s0", "s1"], ["s2"], ["s3", "s4"]]


FLUSHES = """
import os, resource, signal, sys
import inferspan
from opentelemetry import trace
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
inferspan.configure(session_file=sys.argv[1])
for room in (True, False, False, True, True):
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if room else 100, hard))
    trace.get_tracer("t").start_span("s").end()
    print(inferspan.flush())
"""


def test_flush_is_false_while_the_disk_is_full(tmp_path: Path) -> None:
    """flush() is true only if nothing was refused since the last one, and again once there is room."""
    pytest.importorskip("resource", reason="limits of POSIX")
    command = [sys.executable, "-c", FLUSHES, str(tmp_path / "s.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["True", "False", "False", "True", "True"]


def test_spans_that_the_disk_refuses_are_in_the_metric(tmp_path: Path) -> None:
    """The counter of dropped spans has them, with the file as the reason."""
    pytest.importorskip("resource", reason="limits of POSIX")
    command = [sys.executable, "-c", FLUSHES, str(tmp_path / "s.jsonl")]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    counters = [
        (point["attributes"], point["asInt"])
        for line in (tmp_path / "s.jsonl").read_bytes().splitlines()
        if b'{"resourceMetrics"' in line
        for scope in json.loads(line)["resourceMetrics"][0]["scopeMetrics"]
        for metric in scope["metrics"]
        if metric["name"] == semconv.M_SPANS_DROPPED
        for point in metric["sum"]["dataPoints"]
    ]
    assert counters[-1] == ([{"key": "reason", "value": {"stringValue": "session_file"}}], "2")
