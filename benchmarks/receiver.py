"""An OTLP/HTTP receiver in a process of its own that keeps what it gets and counts spans when asked.

POST /v1/traces | /v1/metrics | /v1/logs take exports; GET /count answers with the number of spans by name, the bytes, and the first and
last moment (monotonic clock of the machine) at which spans arrived, and forgets. Decoding happens on GET only, and at the lowest priority, so that a
measured program shares the machine with less than a real collector would take.
"""

from __future__ import annotations

import collections
import gzip
import json
import os
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Arrived", "count", "receiver"]


@dataclass
class Arrived:
    """What came in since the last question."""

    spans: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    first: float | None = None
    last: float | None = None

    @property
    def total(self) -> int:
        """Spans of all names."""
        return sum(self.spans.values())


bodies: list[bytes] = []
times: list[float] = []
sizes: list[int] = []


class Handler(BaseHTTPRequestHandler):
    """Takes exports and answers counts."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Keep the body of a trace export."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sizes.append(len(body))
        if self.path.endswith("/traces"):
            bodies.append(body)
            times.append(time.monotonic())
        self._answer(b"")

    def do_GET(self) -> None:
        """Count the spans received since the last time."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        counts: collections.Counter[str] = collections.Counter()
        for body in bodies:
            data = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else zlib.decompress(body) if body[:1] == b"\x78" else body
            for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                for scope in resource.scope_spans:
                    counts.update(span.name for span in scope.spans)
        answer = {"spans": counts, "bytes": sum(sizes), "first": min(times, default=None), "last": max(times, default=None)}
        for kept in (bodies, times, sizes):
            kept.clear()
        self._answer(json.dumps(answer).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def receiver() -> Iterator[str]:
    """Run a receiver; yields its address."""
    process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


def count(address: str) -> Arrived:
    """What arrived since the last call."""
    # No proxy of the machine is asked about its own loopback.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{address}/count", timeout=120) as answer:
        return Arrived(**json.load(answer))


if __name__ == "__main__":
    with suppress(OSError, AttributeError):
        os.nice(10)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
