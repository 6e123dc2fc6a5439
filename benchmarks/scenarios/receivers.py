"""OTLP receivers inside the process, over HTTP and gRPC: what they are sent is kept as OTLP JSON."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

__all__ = ["Received", "grpc_receiver", "http_receiver"]

_REQUESTS: dict[str, Any] = {
    "traces": trace_service_pb2.ExportTraceServiceRequest,
    "metrics": metrics_service_pb2.ExportMetricsServiceRequest,
    "logs": logs_service_pb2.ExportLogsServiceRequest,
}


class Received:
    """The messages that came, in order, of all signals."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.messages: list[dict[str, Any]] = []

    def take(self, message: Any) -> None:
        """Keep a protobuf message."""
        self.messages.append(json_format.MessageToDict(message, use_integers_for_enums=True))


def _plain(body: bytes, encoding: str) -> bytes:
    return gzip.decompress(body) if encoding == "gzip" else zlib.decompress(body) if encoding == "deflate" else body


@contextmanager
def http_receiver() -> Iterator[Received]:
    """Listens on a free port of the loopback."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = _plain(self.rfile.read(int(self.headers["Content-Length"])), self.headers.get("Content-Encoding", ""))
            received.take(_REQUESTS[self.path.removeprefix("/v1/")].FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

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
def grpc_receiver() -> Iterator[Received]:
    """Listens on a free port of the loopback."""
    import grpc  # type: ignore[import-untyped, unused-ignore]

    received = Received()

    def servicer(base: Any, reply: Any) -> Any:
        class Servicer(base):  # type: ignore[misc, unused-ignore]
            def Export(self, request: Any, context: Any) -> Any:
                received.take(request)
                return reply

        return Servicer()

    pool = ThreadPoolExecutor(4)
    server = grpc.server(pool)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(
        servicer(trace_service_pb2_grpc.TraceServiceServicer, trace_service_pb2.ExportTraceServiceResponse()), server
    )
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(
        servicer(metrics_service_pb2_grpc.MetricsServiceServicer, metrics_service_pb2.ExportMetricsServiceResponse()), server
    )
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(
        servicer(logs_service_pb2_grpc.LogsServiceServicer, logs_service_pb2.ExportLogsServiceResponse()), server
    )
    received.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(0).wait()
        pool.shutdown()
