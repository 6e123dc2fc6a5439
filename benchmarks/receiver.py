"""An OTLP/HTTP receiver in a process of its own that keeps what it gets and counts spans when asked.

POST /v1/traces | /v1/metrics | /v1/logs take exports; GET /count answers ``{"spans": {name: n}, "bytes": n}`` and forgets. Decoding
happens on GET only, so that a measured program shares the machine with as little as a real collector on another host would take.
"""

from __future__ import annotations

import collections
import gzip
import json
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

bodies: list[bytes] = []
size = 0


class Handler(BaseHTTPRequestHandler):
    """Takes exports and answers counts."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Keep the body of a trace export."""
        global size
        body = self.rfile.read(int(self.headers["Content-Length"]))
        size += len(body)
        if self.path.endswith("/traces"):
            bodies.append(body)
        self._answer(b"")

    def do_GET(self) -> None:
        """Count the spans received since the last time."""
        global size
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        counts: collections.Counter[str] = collections.Counter()
        for body in bodies:
            data = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else zlib.decompress(body) if body[:1] == b"\x78" else body
            for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                for scope in resource.scope_spans:
                    counts.update(span.name for span in scope.spans)
        answer = json.dumps({"spans": counts, "bytes": size}).encode()
        bodies.clear()
        size = 0
        self._answer(answer)

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


def count(address: str) -> dict[str, Any]:
    """Spans by name, and bytes, that arrived since the last call."""
    with urllib.request.urlopen(f"{address}/count", timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
