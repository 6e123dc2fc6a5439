"""A receiver over HTTP whose answers are chosen, and recordings to send to it."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped, unused-ignore]

from tests.support.otlp_receivers import REQUESTS

Reply = tuple[int, dict[str, str], bytes]
SIGNALS = {"resourceSpans": "traces", "resourceMetrics": "metrics", "resourceLogs": "logs"}
_IDS = ("traceId", "spanId", "parentSpanId")


def _with_base64(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_with_base64(item) for item in tree]
    if isinstance(tree, dict):
        return {
            key: base64.b64encode(bytes.fromhex(value)).decode() if key in _IDS else _with_base64(value) for key, value in tree.items()
        }
    return tree


def requests_of(line: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Signals and messages of a line, by protobuf's own reader of JSON."""
    return [(SIGNALS[key], ParseDict(_with_base64({key: line[key]}), REQUESTS[SIGNALS[key]]())) for key in line]


def items_of(messages: list[tuple[str, Any]]) -> list[bytes]:
    """Every span, metric and log record with its resource and scope, sorted: what a transport may not change."""
    found = []
    for _, message in messages:
        for resource in message.ListFields()[0][1] if message.ListFields() else ():
            head = resource.resource.SerializeToString(deterministic=True) + resource.schema_url.encode()
            scopes = next(value for field, value in resource.ListFields() if field.name.startswith("scope_"))
            for scope in scopes:
                inner = scope.scope.SerializeToString(deterministic=True) + scope.schema_url.encode()
                items = next((value for field, value in scope.ListFields() if field.name in ("spans", "metrics", "log_records")), ())
                for item in items:  # a collector's file writes "body":{} for a record without a body
                    if item.DESCRIPTOR.name == "LogRecord" and not item.body.ListFields():
                        item.ClearField("body")
                found += [head + inner + item.SerializeToString(deterministic=True) for item in items]
    return sorted(found)


def file_items(path: Path) -> list[bytes]:
    """The items of a file of JSON lines."""
    return items_of([request for line in path.read_text().splitlines() for request in requests_of(json.loads(line))])


def as_frames(path: Path) -> bytes:
    """A file of JSON lines as a collector's file exporter writes it with ``format: proto``."""
    messages = [message.SerializeToString() for line in path.read_text().splitlines() for _, message in requests_of(json.loads(line))]
    return b"".join(struct.pack(">I", len(message)) + message for message in messages)


class Scripted:
    """What a receiver was sent, and what it answers."""

    def __init__(self, reply: Callable[[int, str, Any], Reply]) -> None:
        self.reply = reply
        self.requests: list[tuple[str, Any, dict[str, str]]] = []
        self.endpoint = ""


@contextmanager
def scripted(reply: Callable[[int, str, Any], Reply]) -> Iterator[Scripted]:
    """An OTLP/HTTP receiver; ``reply`` gets the number of the request from 0 on, its signal and its message."""
    receiver = Scripted(reply)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            plain = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            signal = self.path.rpartition("/")[2]
            message = REQUESTS[signal].FromString(plain)
            status, headers, content = receiver.reply(len(receiver.requests), signal, message)
            receiver.requests.append((signal, message, {key.lower(): value for key, value in self.headers.items()}))
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            with contextlib.suppress(ConnectionError):  # a client that was interrupted is gone
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    receiver.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
