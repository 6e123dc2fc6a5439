"""OTLP receivers inside the test process: what they are sent is decoded and kept."""

from __future__ import annotations

import gzip
import socket
import threading
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

REQUESTS: dict[str, Any] = {
    "traces": trace_service_pb2.ExportTraceServiceRequest,
    "metrics": metrics_service_pb2.ExportMetricsServiceRequest,
    "logs": logs_service_pb2.ExportLogsServiceRequest,
}


def attributes_of(owner: Any) -> dict[str, Any]:
    """Attributes of a protobuf message, as plain values."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value") or "string_value") for item in owner.attributes}


class Received:
    """What a receiver was sent: (signal, message, headers, encoding, size on the wire) of each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any, dict[str, str], str, int]] = []
        self.endpoint = ""
        self.answers: dict[str, Any] = {}
        """Messages that answer requests of a signal, instead of empty ones."""

    def of(self, signal: str) -> list[Any]:
        """Messages of one signal."""
        return [message for kind, message, *_ in self.requests if kind == signal]

    def spans(self) -> list[Any]:
        """All spans, in order of arrival."""
        return [s for message in self.of("traces") for r in message.resource_spans for scope in r.scope_spans for s in scope.spans]

    def metrics(self) -> list[Any]:
        """All metrics, in order of arrival, without those of the SDK about itself, which older releases send unasked."""
        found = [m for message in self.of("metrics") for r in message.resource_metrics for scope in r.scope_metrics for m in scope.metrics]
        return [metric for metric in found if not metric.name.startswith("otel.sdk.")]

    def logs(self) -> list[Any]:
        """All log records, in order of arrival."""
        return [x for message in self.of("logs") for r in message.resource_logs for scope in r.scope_logs for x in scope.log_records]


@contextmanager
def http_receiver() -> Iterator[Received]:
    """An OTLP/HTTP receiver on a free port."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            encoding = self.headers.get("Content-Encoding", "none")
            plain = body if encoding == "none" else gzip.decompress(body) if encoding == "gzip" else zlib.decompress(body)
            signal = self.path.removeprefix("/v1/")
            headers = {key.lower(): value for key, value in self.headers.items()}
            received.requests.append((signal, REQUESTS[signal].FromString(plain), headers, encoding, len(plain)))
            answer = received.answers[signal].SerializeToString() if signal in received.answers else b""
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    received.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_receiver(port: int = 0) -> Iterator[Received]:
    """An OTLP/gRPC receiver on a free port, or on this one, with the default limit of 4 MiB a message."""
    received = Received()

    def servicer(base: Any, signal: str, reply: Any) -> Any:
        class Servicer(base):  # type: ignore[misc, unused-ignore]
            def Export(self, request: Any, context: Any) -> Any:
                # gRPC decompresses before anything of ours runs, and keeps the encoding to itself.
                received.requests.append((signal, request, dict(context.invocation_metadata()), "unknown", request.ByteSize()))
                return received.answers.get(signal, reply)

        return Servicer()

    pool = ThreadPoolExecutor(4)
    server = grpc.server(pool)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(
        servicer(trace_service_pb2_grpc.TraceServiceServicer, "traces", trace_service_pb2.ExportTraceServiceResponse()), server
    )
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(
        servicer(metrics_service_pb2_grpc.MetricsServiceServicer, "metrics", metrics_service_pb2.ExportMetricsServiceResponse()), server
    )
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(
        servicer(logs_service_pb2_grpc.LogsServiceServicer, "logs", logs_service_pb2.ExportLogsServiceResponse()), server
    )
    received.endpoint = f"http://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(0).wait()
        pool.shutdown()


RECEIVERS = {"http/protobuf": http_receiver, "grpc": grpc_receiver}


@contextmanager
def dead_endpoint(kind: str) -> Iterator[str]:
    """An endpoint that does not work: ``closed`` refuses connections, ``silent`` accepts them and never answers."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = listener.getsockname()[1]
    if kind == "closed":
        listener.close()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        listener.close()


def trace_ids(spans: Sequence[Any]) -> set[str]:
    """Trace ids of spans, as hex."""
    return {span.trace_id.hex() for span in spans}
