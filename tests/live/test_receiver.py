"""The receiver of a live display, with the exporters of OpenTelemetry."""

from __future__ import annotations

import gzip
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from inferspan.live import receiver as module
from inferspan.live.receiver import Receiver, address


class _Got(list[Mapping[str, Any]]):
    where = ""


@pytest.fixture
def got() -> Iterator[_Got]:
    """What arrives at a receiver on a free port."""
    found = _Got()
    with Receiver(("127.0.0.1", 0), found.append) as receiver:
        found.where = receiver.where
        yield found


def _post(got: _Got, body: bytes, path: str = "/v1/traces", **headers: str) -> int:
    sent = urllib.request.Request(got.where + path, data=body, headers={key.replace("_", "-"): value for key, value in headers.items()})
    try:
        with urllib.request.urlopen(sent, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
def test_spans_of_the_sdk_arrive_as_otlp_json(got: _Got, compression: Compression) -> None:
    """Identifiers are hexadecimal, as in OTLP JSON, and not base64."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(got.where + "/v1/traces", compression=compression)))
    with provider.get_tracer("t").start_as_current_span("work") as span:
        pass
    (line,) = got
    found = line["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert (found["name"], found["spanId"]) == ("work", f"{span.get_span_context().span_id:016x}")


def test_json_is_taken_as_it_is(got: _Got) -> None:
    """OTLP/HTTP may be JSON too."""
    line: dict[str, Any] = {"resourceSpans": [{"scopeSpans": []}]}
    assert _post(got, json.dumps(line).encode(), Content_Type="application/json") == 200
    assert got == [line]


@pytest.mark.parametrize(
    ("body", "path", "headers", "status"),
    [
        (b"\xff\xff", "/v1/traces", {}, 400),
        (b"{", "/v1/traces", {"Content_Type": "application/json"}, 400),
        (b"x", "/v1/traces", {"Content_Encoding": "gzip"}, 400),
        (b"x", "/v1/traces", {"Content_Encoding": "br"}, 400),
        (b"", "/", {}, 404),
    ],
)
def test_what_is_no_otlp_is_refused(got: _Got, body: bytes, path: str, headers: dict[str, str], status: int) -> None:
    """With the status that says why, and the next message is taken."""
    assert _post(got, body, path, **headers) == status
    assert _post(got, b"{}", Content_Type="application/json") == 200


def test_a_decompression_bomb_is_refused(got: _Got, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would unpack to more than a message may have is not unpacked."""
    monkeypatch.setattr(module, "MOST", 1000)
    assert _post(got, gzip.compress(b"x" * 100_000), Content_Encoding="gzip") == 400


def test_a_message_that_is_too_long_is_refused(got: _Got, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its announced length, before it is read."""
    monkeypatch.setattr(module, "MOST", 10)
    assert _post(got, b"x" * 100) == 413


def test_nothing_is_left_after_the_block() -> None:
    """Neither a thread nor a socket."""
    with Receiver(("127.0.0.1", 0), lambda _: None) as receiver:
        where = receiver.where
    assert not [thread for thread in threading.enumerate() if thread.name == "inferspan-receiver"]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(where, timeout=5)


@pytest.mark.parametrize(
    ("text", "want"), [("127.0.0.1:1", ("127.0.0.1", 1)), ("4318", ("127.0.0.1", 4318)), ("[::1]:5", ("::1", 5)), (":6", ("127.0.0.1", 6))]
)
def test_addresses(text: str, want: tuple[str, int]) -> None:
    """Of the forms that people write."""
    assert address(text) == want


@pytest.mark.parametrize("text", ["", "x", "host:", "host:99999", "host:-1"])
def test_what_is_no_address_is_told(text: str) -> None:
    """With the form that is allowed."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        address(text)
