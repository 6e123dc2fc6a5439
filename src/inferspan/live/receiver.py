"""An OTLP/HTTP receiver on this machine: what programs export, as decoded OTLP JSON objects.

In come POST requests to ``/v1/traces``, ``/v1/metrics`` and ``/v1/logs``, protobuf or JSON, plain or gzipped, of a bounded size; each is
handed on, and answered as the specification asks. Nothing is kept and nothing is forwarded.
"""

from __future__ import annotations

import base64
import http.server
import json
import socket
import threading
import zlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

__all__ = ["Receiver", "address"]

MOST = 64 << 20
"""Bytes of a message, unpacked; exporters send a few MiB."""
_IDS = ("traceId", "spanId", "parentSpanId")
_SIGNALS = {"/v1/traces": "trace", "/v1/metrics": "metrics", "/v1/logs": "logs"}
_REQUESTS = {"trace": "ExportTraceServiceRequest", "metrics": "ExportMetricsServiceRequest", "logs": "ExportLogsServiceRequest"}


def address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, ``PORT`` or ``[IPV6]:PORT``.

    Raises:
        ValueError: it is something else; the text names what is allowed.
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{text!r} is no address: use HOST:PORT, such as 127.0.0.1:4318")
    return host.strip("[]") or "127.0.0.1", int(port)


class Receiver:
    """Listens until the block ends.

    Args:
        where: host and port; port 0 takes a free one.
        take: called with each decoded message, on a thread of the server.

    Raises:
        OSError: the address is in use, or may not be listened on.
    """

    def __init__(self, where: tuple[str, int], take: Callable[[Mapping[str, Any]], object]) -> None:
        class Handler(_Handler):
            handed_to = staticmethod(take)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET

        self._server = Server(where, Handler)
        serve = {"poll_interval": 0.1}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs=serve, name="inferspan-receiver", daemon=True)

    @property
    def where(self) -> str:
        """The address to send to, such as ``http://127.0.0.1:4318``."""
        host, port = self._server.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    handed_to: Callable[[Mapping[str, Any]], object]

    def do_POST(self) -> None:
        signal = _SIGNALS.get(self.path.split("?")[0])
        if signal is None:
            self._answer(404, b"", close=True)
            return
        size = self.headers.get("Content-Length", "")
        if not size.isascii() or not size.isdigit():
            self._answer(411, b"", close=True)
            return
        if int(size) > MOST:
            self._answer(413, b"", close=True)
            return
        try:
            body = _unpacked(self.rfile.read(int(size)), self.headers.get("Content-Encoding", "identity"))
            kind = self.headers.get("Content-Type", "").split(";")[0].strip()
            decoded = json.loads(body) if kind == "application/json" else _decoded(signal, body)
        except Exception as error:  # bytes of anybody
            self._answer(400, f"{type(error).__name__}\n".encode(), close=True)
            return
        if isinstance(decoded, dict):
            type(self).handed_to(decoded)
        self._answer(200, b"{}" if kind == "application/json" else b"", kind=kind)

    def do_GET(self) -> None:
        self._answer(405, b"this is an OTLP/HTTP receiver: send with POST to /v1/traces, /v1/metrics and /v1/logs\n", close=True)

    def _answer(self, status: int, body: bytes, *, kind: str = "text/plain", close: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if close:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal belongs to the display."""


def _unpacked(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise ValueError(encoding)
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    found = unpacker.decompress(body, MOST)
    if not unpacker.eof:
        raise ValueError("too large, or cut off")
    return found


def _decoded(signal: str, body: bytes) -> Any:
    """The OTLP JSON form of a protobuf message: identifiers are hexadecimal there, not base64 as protobuf's own JSON has them."""
    import importlib

    to_dict = importlib.import_module("google.protobuf.json_format").MessageToDict

    module = importlib.import_module(f"opentelemetry.proto.collector.{signal}.v1.{signal}_service_pb2")
    message = getattr(module, _REQUESTS[signal]).FromString(body)
    decoded = to_dict(message)
    _with_hexadecimal_ids(decoded)
    return decoded


def _with_hexadecimal_ids(value: Any) -> None:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            for key in _IDS:
                if isinstance(one.get(key), str):
                    one[key] = base64.b64decode(one[key]).hex()
            waiting.extend(part for part in one.values() if isinstance(part, dict | list))
        elif isinstance(one, list):
            waiting.extend(part for part in one if isinstance(part, dict | list))
