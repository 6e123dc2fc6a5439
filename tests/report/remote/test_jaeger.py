"""A trace of Jaeger: its answer as spans, and answers that are none."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from inferspan.report.remote.jaeger import trace_id_of, write_trace
from inferspan.report.session import SessionFileError, read_session
from tests.explain.made import Run, make

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class _Jaeger(ThreadingHTTPServer):
    """Answers every path with the same code and text, and remembers the paths."""

    code, text = 200, b"{}"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.sent: list[str | None] = []
        self.raw: bytes | None = None
        self.stop = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        server.sent.append(self.headers["Authorization"])
        if server.raw is not None:
            self.wfile.write(server.raw)
            while server.raw.endswith(b"...") and not server.stop.wait(0.05):
                self.wfile.write(b" ")
            return
        self.send_response(server.code)
        self.end_headers()
        self.wfile.write(server.text)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def jaeger() -> Iterator[_Jaeger]:
    """A server on a free port of the loopback."""
    server = _Jaeger()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.stop.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_trace_becomes_a_file_that_the_reader_takes(jaeger: _Jaeger, tmp_path: Path) -> None:
    """What Jaeger's API v3 answers is OTLP JSON inside of a result."""
    make(tmp_path / "session.jsonl", Run(requests=1))
    lines = [json.loads(line) for line in (tmp_path / "session.jsonl").read_text().splitlines()]
    blocks = [block for line in lines for block in line.get("resourceSpans", ())]
    jaeger.text = json.dumps({"result": {"resourceSpans": blocks}}).encode()
    found = read_session(write_trace(jaeger.address + "/", TRACE, tmp_path))
    assert jaeger.asked == [f"/api/v3/traces/{TRACE}"]
    assert [request.span.span_id for request in found.requests] == [
        request.span.span_id for request in read_session(tmp_path / "session.jsonl").requests
    ]
    assert found.tally.levels["step"] == 33


ANSWERS: dict[str, tuple[int, bytes, str]] = {
    "an unknown trace": (404, b"{}", "has no trace"),
    "a result without spans": (200, b'{"result": {"resourceSpans": []}}', "has no trace"),
    "an error": (503, b"", "answers 503"),
    "a page": (200, b"<html></html>", "is no Jaeger with the API v3"),
    "other JSON": (200, b'{"data": []}', "is no Jaeger with the API v3"),
    "a list": (200, b"[]", "is no Jaeger with the API v3"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_other_answers_are_one_sentence(name: str, jaeger: _Jaeger, tmp_path: Path) -> None:
    """The address and what to do."""
    jaeger.code, jaeger.text, sentence = ANSWERS[name]
    with pytest.raises(SessionFileError, match=sentence):
        write_trace(jaeger.address, TRACE, tmp_path)


RAW: dict[str, tuple[bytes, str]] = {
    "no HTTP": (b"GARBAGE\r\n\r\n", "is no Jaeger with the API v3"),
    "a header without an end": (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n{}", "is no Jaeger with the API v3"),
    "too many headers": (b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 300 + b"\r\n{}", "is no Jaeger with the API v3"),
    "a chunk without a size": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}", "is no Jaeger with the API v3"),
    "nothing": (b"", "no Jaeger answers"),
    "a reason that steers a terminal": (b"HTTP/1.1 999 \x1b[31mBad\r\nContent-Length: 0\r\n\r\n", r"answers 999 \?\[31mBad: check"),
    "a redirect": (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "answers 302 Found: give the address that it leads to"),
    "a redirect to a file": (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/hosts\r\n\r\n", "answers 302 Found: give the address"),
    "scopes that are none": (
        b'HTTP/1.1 200 OK\r\n\r\n{"result": {"resourceSpans": [{"x": "' + b"y" * (17 << 20) + b'", "scopeSpans": 7}]}}', "holds no OTLP JSON"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RAW)
def test_what_is_no_answer_is_one_sentence(name: str, jaeger: _Jaeger, tmp_path: Path) -> None:
    """Whatever a port answers."""
    jaeger.raw, sentence = RAW[name]
    with pytest.raises(SessionFileError) as raised:
        read_session(write_trace(jaeger.address, TRACE, tmp_path))
    if name != "scopes that are none":
        assert re.search(sentence, str(raised.value))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\n\r\n...", b"HTTP/1.1 200 OK\r\nX: ..."], ids=["body", "header"])
def test_an_answer_that_does_not_end(begin: bytes, jaeger: _Jaeger, tmp_path: Path) -> None:
    """A byte now and then keeps no command waiting."""
    jaeger.raw, started = begin, time.monotonic()
    with pytest.raises(SessionFileError, match=r"not complete after 0\.5 s"):
        write_trace(jaeger.address, TRACE, tmp_path, seconds=0.5)
    assert time.monotonic() - started < 20


def test_a_body_over_the_limit_is_not_held(jaeger: _Jaeger, tmp_path: Path) -> None:
    """It is refused with the remedy."""
    jaeger.text = b" " * (4 << 20)
    with pytest.raises(SessionFileError, match="larger than 1 MiB: explain a session file instead"):
        write_trace(jaeger.address, TRACE, tmp_path, most=1 << 20)


def test_credentials_are_sent_and_not_told(jaeger: _Jaeger, tmp_path: Path) -> None:
    """As basic authentication, decoded as in every URL."""
    jaeger.code = 503
    with pytest.raises(SessionFileError, match=f"^Jaeger at {jaeger.address} answers 503"):
        write_trace(jaeger.address.replace("//", "//me:se%63ret@"), TRACE, tmp_path)
    assert jaeger.sent == ["Basic " + base64.b64encode(b"me:secret").decode()]


@pytest.mark.parametrize(
    "address",
    [
        "ftp://me:secret@host", "http://me:secret@[::1", "http://me:secret@", "http://me:secret@host with space/", "http://host/?token=secret",
        "http://me:secret@host:99999999", "http://me:secret@\u2100host", "http://\x1bsecret/", "secret",
    ],
)  # fmt: skip
def test_what_is_no_address_is_not_repeated(address: str, tmp_path: Path) -> None:
    """It may hold a password."""
    with pytest.raises(SessionFileError, match="is no address of Jaeger") as raised:
        write_trace(address, TRACE, tmp_path)
    assert "secret" not in str(raised.value)


def test_ids_of_traces() -> None:
    """Short ids are filled up, a traceparent is taken apart."""
    assert trace_id_of(TRACE.upper()) == TRACE
    assert trace_id_of(f"00-{TRACE}-00f067aa0ba902b7-01") == TRACE
    assert trace_id_of("00f067aa0ba902b7") == "0" * 16 + "00f067aa0ba902b7"


@pytest.mark.parametrize("text", ["", "xyz", TRACE + "0", "../../etc"])
def test_other_texts_are_no_ids(text: str) -> None:
    """They never become part of an address."""
    with pytest.raises(ValueError, match="is no id of a trace"):
        trace_id_of(text)
