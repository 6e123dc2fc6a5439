"""Packed spans on their way out: same receiver, same resource, bounded, and only where nobody else has to see them."""

from __future__ import annotations

import importlib.util
import textwrap
import threading
import time
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from inferspan import guard
from inferspan.export import protobuf
from inferspan.export.raw_sender import OtlpSpanSender, raw_sink
from tests.export.program import HOST, Program
from tests.support.otlp_receivers import Received, attributes_of

STATIC = protobuf.static_part("layer 1", 1, {"inferspan.module.name": "model.layers.1"})


def packed(number: int, *, size: int = 0) -> bytes:
    """A packed span with this id, and a text of this size."""
    text = protobuf.attribute("text", "x" * size) if size else b""
    return protobuf.span(b"t" * 16, number.to_bytes(8, "big"), b"p" * 8, 0x100, "", STATIC, number, number + 1, text)


class Wire:
    """Where a sink sends to: keeps requests, and may refuse them or hold them up."""

    def __init__(self, *, success: bool = True) -> None:
        self.requests: list[bytes] = []
        self.go = threading.Event()
        self.go.set()
        self._success = success

    def send(self, data: bytes) -> bool:
        """Take one request."""
        self.go.wait(10)
        self.requests.append(data)
        return self._success

    def ids(self) -> list[int]:
        """Ids of all spans, in order of arrival."""
        messages = [ExportTraceServiceRequest.FromString(data) for data in self.requests]
        return [
            int.from_bytes(s.span_id, "big") for m in messages for r in m.resource_spans for scope in r.scope_spans for s in scope.spans
        ]


def sink_to(wire_: Wire, **limits: float) -> OtlpSpanSender:
    """A sink that sends nothing by itself."""
    head = protobuf.resource({"service.name": "m"}), protobuf.scope("inferspan"), "", ""
    return OtlpSpanSender(lambda: wire_.send, lambda: head, **{"delay": 60.0, **limits})  # type: ignore[arg-type]


def offer(sink: OtlpSpanSender, *spans: bytes) -> int:
    """Queue some packed spans."""
    return sink.offer(b"".join(spans), len(spans))


def test_requests_are_cut_and_keep_their_order() -> None:
    """All spans arrive in order, in requests below the limit; one over the limit travels alone."""
    wire_ = Wire()
    sink = sink_to(wire_, limit=5_000)
    assert offer(sink, *(packed(number, size=400) for number in range(1, 101))) == 100
    assert offer(sink, packed(101, size=20_000), packed(102)) == 2
    assert sink.flush(10)
    assert wire_.ids() == list(range(1, 103))
    assert sorted(map(len, wire_.requests))[-2] < 5_100
    assert sink.dropped == 0
    sink.close(5)


def test_full_queue_refuses_and_counts() -> None:
    """What does not fit is refused, from the end, and counted; what was taken is sent."""
    wire_ = Wire()
    one = len(packed(1))
    sink = sink_to(wire_, room=10 * one)
    assert offer(sink, *map(packed, range(1, 9))) == 8
    assert offer(sink, *map(packed, range(9, 14))) == 2
    assert offer(sink, packed(14)) == 0
    assert sink.dropped == 4
    assert sink.flush(10)
    assert wire_.ids() == list(range(1, 11))
    assert offer(sink, packed(15)) == 1
    sink.close(5)
    assert wire_.ids()[-1] == 15
    assert offer(sink, packed(16)) == 0


def test_spans_leave_without_being_asked() -> None:
    """The thread sends after the delay, or at once when much is waiting."""
    wire_ = Wire()
    sink = sink_to(wire_, delay=0.05)
    offer(sink, packed(1))
    busy_wire = Wire()
    busy = sink_to(busy_wire)
    offer(busy, packed(1, size=3_200_000))
    deadline = time.monotonic() + 5
    while not (wire_.requests and busy_wire.requests) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (wire_.ids(), busy_wire.ids()) == ([1], [1])
    sink.close(5)
    busy.close(5)


def test_request_that_is_lost_is_counted() -> None:
    """Spans that the receiver did not take are counted as dropped, and the flush says so."""
    sink = sink_to(Wire(success=False))
    offer(sink, packed(1), packed(2))
    assert not sink.flush(10)
    assert sink.dropped == 2
    sink.close(5)


def test_error_while_sending_is_contained(contained: list[guard.Swallowed]) -> None:
    """An exception of the exporter's private parts costs that request and nothing else."""

    def send(data: bytes) -> bool:
        raise AttributeError("gone")

    sink = OtlpSpanSender(lambda: send, lambda: (b"", b"", "", ""), delay=60)
    offer(sink, packed(1))
    assert not sink.flush(10)
    assert sink.dropped == 1
    assert [(error.place, error.kind) for error in contained] == [("raw span export", "AttributeError")]
    contained.clear()
    sink.close(5)


RAW = """
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from inferspan.export import protobuf
STATIC = protobuf.static_part("layer 1", 1, {"inferspan.module.name": "model.layers.1"})
def pack(first, count):
    return b"".join(protobuf.span(b"t" * 16, n.to_bytes(8, "big"), b"p" * 8, 0x100, "", STATIC, n, n + 1) for n in range(first, first + count)), count
"""


def test_spans_arrive_beside_the_others(program: Program, receiver: Received) -> None:
    """Fifty thousand packed spans, also those of a forked child, reach the receiver of the provider, with its resource and headers."""
    body = """
    otlp.configure()
    record()
    sink = otlp.raw_sink(trace.get_tracer_provider(), scope=InstrumentationScope("inferspan", "9"))
    assert otlp.raw_sink(trace.get_tracer_provider(), scope=InstrumentationScope("inferspan", "9")) is sink
    taken = sink.offer(*pack(1, 50_000))
    flushed = otlp.force_flush(20)
    child = os.fork()
    if child == 0:
        sink.offer(*pack(100_001, 10))
        os._exit(0 if otlp.force_flush(10) else 1)
    status = os.waitpid(child, 0)[1]
    sink.offer(*pack(200_001, 10))
    print(json.dumps([taken, flushed, status, sink.dropped]))
    """
    environ = {"OTEL_EXPORTER_OTLP_HEADERS": "team=ml", "OTEL_SERVICE_NAME": "chat"}
    assert program(RAW + textwrap.dedent(body), **environ) == [[50_000, True, 0, 0]]
    numbers = sorted(int.from_bytes(span.span_id, "big") for span in receiver.spans() if span.trace_id == b"t" * 16)
    assert numbers == [*range(1, 50_001), *range(100_001, 100_011), *range(200_001, 200_011)]
    raw = [m.resource_spans[0] for m in receiver.of("traces") if m.resource_spans[0].scope_spans[0].scope.name == "inferspan"]
    assert {resource.scope_spans[0].scope.version for resource in raw} == {"9"}
    assert {attributes_of(resource.resource)["service.name"] for resource in raw} == {"chat"}
    assert len({attributes_of(resource.resource)["service.instance.id"] for resource in raw}) == 2
    assert {headers["team"] for signal, _, headers, _, _ in receiver.requests if signal == "traces"} == {"ml"}
    assert max(size for *_, size in receiver.requests) <= 3 * 1024 * 1024 + 1000


def test_first_spans_of_several_threads(program: Program, receiver: Received) -> None:
    """They share one sender, whose spans a flush sends."""
    body = """
    import threading
    otlp.configure()
    provider, barrier, sinks = trace.get_tracer_provider(), threading.Barrier(16), []
    def work(number):
        barrier.wait()
        sink = otlp.raw_sink(provider)
        sink.offer(*pack(10 * number + 1, 10))
        sinks.append(sink)
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(json.dumps([len({id(sink) for sink in sinks}), otlp.force_flush(20)]))
    sys.stdout.flush()
    os._exit(0)
    """
    assert program(RAW + textwrap.dedent(body)) == [[1, True]]
    assert sorted(int.from_bytes(span.span_id, "big") for span in receiver.spans()) == [*range(1, 161)]


@pytest.mark.parametrize(
    ("setup", "environ"),
    [
        (HOST, {}),
        ("otlp.configure(session_file='s.jsonl')", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}),
        ("otlp.configure()", {"OTEL_TRACES_EXPORTER": "console"}),
        ("otlp.configure()", {"OTEL_TRACES_EXPORTER": "otlp_proto_http,otlp_proto_grpc"}),
        (
            "otlp.configure()\nfrom opentelemetry.sdk.trace import SpanProcessor\ntrace.get_tracer_provider().add_span_processor(SpanProcessor())",
            {},
        ),
        ("", {}),
    ],
)
def test_no_sink_where_others_must_see_the_spans(program: Program, setup: str, environ: dict[str, str]) -> None:
    """A host's provider, a file, a console, two receivers or a processor of the host: spans have to go through the provider."""
    body = f"{setup}\nsink = otlp.raw_sink(trace.get_tracer_provider())\nprint(json.dumps(sink is None))\nsys.stdout.flush()\nos._exit(0)"
    assert program(body, **environ) == [True]


def test_foreign_provider_has_no_sink(tmp_path: Path) -> None:
    """A provider that this module did not make gives nothing."""
    assert raw_sink(TracerProvider(shutdown_on_exit=False)) is None


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_missing_private_part_means_no_sink(program: Program, kind: str) -> None:
    """If another release of the exporters lacks what the sink stands on, there is no sink, and one line says so."""
    hidden = {"http": "_OTLPHTTPClient.export", "grpc": "OTLPSpanExporter._translate_data"}[kind]
    module = {"http": "opentelemetry.exporter.otlp.common.http", "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"}[kind]
    if kind == "http" and importlib.util.find_spec("opentelemetry.exporter.otlp.common") is None:  # before 1.45 the exporter sends itself
        hidden, module = "OTLPSpanExporter._export", "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    owner, name = hidden.split(".")
    body = f"""
    import {module} as module
    otlp.configure()
    module.{owner}.__abstractmethods__ = frozenset()
    for base in module.{owner}.__mro__:
        if "{name}" in vars(base):
            delattr(base, "{name}")
    print(json.dumps(otlp.raw_sink(trace.get_tracer_provider()) is None))
    sys.stdout.flush()
    os._exit(0)
    """
    assert program(body, OTEL_EXPORTER_OTLP_PROTOCOL={"http": "http/protobuf", "grpc": "grpc"}[kind]) == [True]
    assert program.log("WARNING") == [
        "raw span sink failed (AttributeError); your program is not affected, further failures here are only counted"
    ]
