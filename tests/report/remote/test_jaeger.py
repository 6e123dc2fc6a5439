"""A trace of Jaeger: its answer as spans, and answers that are none."""

from __future__ import annotations

import json
import threading
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

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
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
