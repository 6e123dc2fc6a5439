"""What becomes of telemetry that cannot be delivered: what ``flush()`` says, what is counted, and what the log has."""

from __future__ import annotations

import http.server
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsPartialSuccess, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsPartialSuccess, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse

from inferspan import guard
from inferspan.export.delivery import Delivery, Destination, destination_of, own_lines_only
from inferspan.export.reasons import likely_reason
from tests.export.program import Program
from tests.support.otlp_receivers import RECEIVERS, Received, dead_endpoint


class Clock:
    """Seconds that a test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def http_answers(status: int, page: bytes = b"") -> Iterator[str]:
    """A server that answers every request with one status, and this page."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


BODY = """
otlp.configure()
record()
refused = otlp.force_flush(20)
print(json.dumps([refused, otlp.force_flush(20)]))
os._exit(0)
"""
TRACES_ONLY = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}


@pytest.mark.parametrize(("status", "words"), [(302, "redirects"), (401, "401: the token"), (403, "403: the token"), (404, "404: it has no"), (503, "503 Service")])
def test_flush_is_false_when_the_receiver_refuses(program: Program, status: int, words: str) -> None:
    """A status that is no success makes the flush false, and one sentence names address and status; a flush of nothing is true."""
    with http_answers(status) as endpoint:
        address = endpoint.removeprefix("http://")
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://me:hunter2@{address}", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=hunter2"}
        assert program(BODY, **environ, **TRACES_ONLY) == [[False, True]]
    (line,) = program.log("WARNING")
    assert line.startswith(f"inferspan cannot send traces to {endpoint}: ")
    assert words in line
    assert "opentelemetry" not in program.errors
    assert "hunter2" not in program.errors


def rejecting(signal: str, count: int, words: str) -> Any:
    """The answer of a receiver that takes a request and rejects so many items of it."""
    if signal == "traces":
        return ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=count, error_message=words))
    if signal == "metrics":
        return ExportMetricsServiceResponse(partial_success=ExportMetricsPartialSuccess(rejected_data_points=count, error_message=words))
    return ExportLogsServiceResponse(partial_success=ExportLogsPartialSuccess(rejected_log_records=count, error_message=words))


COUNTED = """
otlp.configure()
from inferspan import guard
record()
flushed = otlp.force_flush(20)
record()
print(json.dumps([flushed, otlp.force_flush(20), guard.error_counts()]))
os._exit(0)
"""


@pytest.mark.parametrize(("signal", "items"), [("traces", "1 spans"), ("metrics", "1 data points"), ("logs", "1 log records")])
def test_flush_is_false_when_the_receiver_rejects_items(program: Program, receiver: Received, signal: str, items: str) -> None:
    """A partial success is no delivery: the flush is false, the items are counted, and one sentence has their number and the reason."""
    receiver.answers[signal] = rejecting(signal, 1, "too old\x07\nby far, hunter2")
    assert program(COUNTED, OTEL_EXPORTER_OTLP_HEADERS="team=hunter2") == [[False, False, {f"export of {signal}": 2}]]
    (line,) = program.log("WARNING")
    assert line.startswith(f"inferspan sends {signal} to {receiver.endpoint}, which rejected {items}: too old? by far, ...; your program is not affected")


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
def test_warning_of_a_receiver_is_told_once(program: Program, receiver: Received, signal: str) -> None:
    """An answer with words and no rejected items is a delivery, and its words are one line."""
    receiver.answers[signal] = rejecting(signal, 0, "use the new path")
    assert program(COUNTED) == [[True, True, {}]]
    (line,) = program.log("WARNING")
    assert line.startswith(f"inferspan sends {signal} to {receiver.endpoint}, which warns: use the new path; ")


def test_rejected_packed_spans_are_counted(program: Program, receiver: Received) -> None:
    """Spans that are sent beside the SDK's pipeline are rejected like the others."""
    body = """
    from inferspan.export import protobuf
    otlp.configure()
    sink = otlp.raw_sink(trace.get_tracer_provider())
    static = protobuf.static_part("layer 1", 1, {})
    sink.offer(b"".join(protobuf.span(b"t" * 16, n.to_bytes(8, "big"), b"p" * 8, 0x100, "", static, n, n + 1) for n in range(1, 11)), 10)
    print(json.dumps([otlp.force_flush(20), sink.dropped]))
    os._exit(0)
    """
    receiver.answers["traces"] = rejecting("traces", 4, "too old")
    assert program(body, **TRACES_ONLY) == [[False, 4]]
    assert [line.partition(";")[0] for line in program.log("WARNING")] == [f"inferspan sends traces to {receiver.endpoint}, which rejected 4 spans: too old"]


def test_web_page_is_no_delivery(program: Program) -> None:
    """A web server that answers everything with a page has taken nothing."""
    with http_answers(200, b"<!DOCTYPE html><html><body>hello</body></html>") as endpoint:
        assert program(BODY, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **TRACES_ONLY) == [[False, True]]
    (line,) = program.log("WARNING")
    assert line.startswith(f"inferspan cannot send traces to {endpoint}: it answers with a web page")


def test_rejections_are_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The numbers since the last line are in the next one."""
    clock = Clock()
    destination = Destination("http://c:4318", clock=clock)
    for _ in range(3):
        destination.rejected("traces", 5, "too old")
        destination.rejected("metrics", 2, "too old")
        clock.now += 30
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "inferspan sends traces to http://c:4318, which rejected 5 spans: too old",
        "inferspan sends traces to http://c:4318, which rejected 4 data points, 10 spans: too old",
    ]


@pytest.mark.parametrize("protocol", list(RECEIVERS))
@pytest.mark.parametrize(("kind", "words"), [("closed", "nothing listens there"), ("silent", "no answer came in time")])
def test_flush_is_false_when_nobody_answers(program: Program, protocol: str, kind: str, words: str) -> None:
    """Retries that gave up and a timeout make the flush false, with one sentence and none of the SDK's, urllib3's or gRPC's lines."""
    with dead_endpoint(kind) as endpoint:
        found = program(BODY, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, **TRACES_ONLY)
    assert found == [[False, True]]
    (line,) = program.log("WARNING")
    assert words in line
    assert not [line for line in program.errors.splitlines() if not line.startswith("inferspan")]


def test_flush_is_false_after_its_time(program: Program) -> None:
    """A receiver that takes longer than the caller will wait makes the flush false."""
    body = "otlp.configure()\nrecord()\nprint(json.dumps(otlp.force_flush(0.2)))\nos._exit(0)"
    with dead_endpoint("silent") as endpoint:
        assert program(body, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) == [False]


def test_flush_is_false_after_a_refusal_that_nobody_asked_for(program: Program) -> None:
    """What was refused on its own schedule counts at the next flush."""
    body = """
    otlp.configure()
    record()
    from inferspan import guard
    end = time.monotonic() + 20
    while not guard.error_counts() and time.monotonic() < end:
        time.sleep(0.02)
    print(json.dumps([guard.error_counts(), otlp.force_flush(20), otlp.force_flush(20)]))
    os._exit(0)
    """
    with http_answers(401) as endpoint:
        found = program(body, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_BSP_SCHEDULE_DELAY="50", **TRACES_ONLY)
    assert found == [[{"export of traces": 1}, False, True]]


def test_full_queue_makes_the_flush_false(program: Program) -> None:
    """What found no place in the queue is counted and told, and the SDK's line for each is not."""
    body = """
    otlp.configure()
    for _ in range(50):
        record()
    print(json.dumps(otlp.force_flush(20)))
    os._exit(0)
    """
    with RECEIVERS["http/protobuf"]() as received:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint, "OTEL_BSP_MAX_QUEUE_SIZE": "20", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "20"}
        # The first batch occupies the thread, so that the rest has to wait.
        assert program(body, **environ, **TRACES_ONLY) in ([False], [True])
        lost = 50 - len(received.spans())
    assert len(program.log("WARNING")) == (1 if lost else 0)
    assert "Queue full" not in program.errors


def test_lines_about_a_hosts_exporter_stay(program: Program) -> None:
    """The host's own exporter of the same class logs as before, while ours to the same address does not."""
    body = """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    otlp.configure()
    record()
    otlp.force_flush(20)
    print("-- host", file=sys.stderr, flush=True)
    host = TracerProvider(shutdown_on_exit=False)
    host.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    host.get_tracer("host").start_span("host").end()
    os._exit(0)
    """
    with http_answers(401) as endpoint:
        program(body, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, **TRACES_ONLY)
    before, _, after = program.errors.partition("-- host")
    assert "opentelemetry.exporter" not in before
    assert "Failed to export span" in after


def test_an_address_is_told_once_a_minute_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """One sentence at once, one with counts a minute later, one at the end; nothing in between."""
    clock = Clock()
    destination = Destination("http://c:4318", clock=clock)
    for _ in range(10):
        destination.lost("traces", 100, "nothing listens there")
        clock.now += 7
        destination.lost("metrics", 3, "nothing listens there")
    destination.sent("traces")
    destination.sent("metrics")
    destination.sent("metrics")
    assert caplog.messages == [
        "inferspan cannot send traces to http://c:4318: nothing listens there; your program is not affected, and this is said at most once"
        " a minute",
        "inferspan still cannot send to http://c:4318: nothing listens there; 17 requests with 27 metrics, 800 spans since the last such line",
        "inferspan sends to http://c:4318 again; not sent were 1000 spans, 30 metrics",
    ]


def test_signal_that_arrives_does_not_end_the_trouble_of_another(caplog: pytest.LogCaptureFixture) -> None:
    """Refused traces beside metrics that arrive are one sentence, not one at every change."""
    clock = Clock()
    destination = Destination("http://c:4318", clock=clock)
    for _ in range(5):
        destination.lost("traces", 1, "401")
        destination.sent("metrics")
        clock.now += 5
    assert len(caplog.messages) == 1


def test_address_that_comes_and_goes_is_told_at_most_twice_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Failures that alternate with successes do not flood the log."""
    clock = Clock()
    destination = Destination("http://c:4318", clock=clock)
    for _ in range(29):
        destination.lost("traces", 1, "no answer came in time")
        destination.sent("traces")
        clock.now += 2
    assert len(caplog.messages) == 2


def test_signals_to_one_address_share_what_is_logged() -> None:
    """Traces and metrics of one endpoint have one destination; secrets are no part of its name."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:hunter2@127.0.0.1:9/x?key=hunter2"}
    assert destination_of("otlp_proto_http", "traces", environ) is destination_of("otlp_proto_http", "metrics", environ)
    assert destination_of("otlp_proto_http", "traces", environ).address == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("address", "line", "words"),
    [
        ("http://c:4317", "('Connection aborted.', RemoteDisconnected('Remote end closed'))", "4317 speaks gRPC"),
        ("http://c:9", r"('Connection aborted.', BadStatusLine('\x00\x00\x18\x04'))", "it speaks gRPC"),
        ("http://c:9", "Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got frame type 79)", "does not speak gRPC"),
        ("http://c:9", "error code: StatusCode.UNAUTHENTICATED, error details: secret", "401: the token"),
        ("http://c:9", "NameResolutionError(\"Failed to resolve 'c'\")", "its host name is not known"),
        ("https://c:9", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "its certificate is not trusted"),
        ("https://c:9", "SSLError(1, '[SSL: WRONG_VERSION_NUMBER]')", "does it speak TLS"),
        ("http://c:9", "Invalid header value: secret", "no reason that is known"),
    ],
)
def test_reasons(address: str, line: str, words: str) -> None:
    """The likely reason is told in our words, without anything of what the library said."""
    assert words in likely_reason(address, [line])
    assert "secret" not in likely_reason(address, [line])


def test_exporter_that_raises_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """An exception of an exporter is told by its type, counted, and goes no further."""

    def send() -> bool:
        raise KeyError("secret")

    before = guard.error_counts().get("export of logs", 0)
    delivery = Delivery("logs", Destination("somewhere"))
    assert not delivery.attempt(send, 3)
    assert delivery.refused == 3
    assert guard.error_counts()["export of logs"] == before + 1
    assert "the exporter raised KeyError" in caplog.text
    assert "secret" not in caplog.text


def test_only_lines_of_the_attempt_are_kept_back(caplog: pytest.LogCaptureFixture) -> None:
    """Warnings of the libraries on this thread are taken; those on other threads, of others and of lower levels stay."""
    ours, others = logging.getLogger("urllib3.connectionpool"), logging.getLogger("program")
    caplog.set_level(logging.DEBUG)

    def in_thread(call: Callable[..., None], text: str) -> None:
        thread = threading.Thread(target=call, args=(text,))
        thread.start()
        thread.join()

    with own_lines_only() as lines:
        ours.warning("attempt")
        ours.debug("detail")
        ours.debug("GET /?key=hunter2")
        others.warning("program")
        in_thread(ours.warning, "another thread")
    ours.warning("after")
    assert lines == ["attempt", "GET /?key=hunter2"]
    assert caplog.messages == ["detail", "program", "another thread", "after"]
