"""What a replay sends is what the file holds, in every format and over both protocols."""

from __future__ import annotations

import gzip
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.replay.conftest import LOGS, METRICS, START, Command, span, spans_line
from tests.replay.receivers import as_frames, file_items, items_of
from tests.support.otlp_receivers import RECEIVERS, http_receiver

FORMATS: dict[str, Callable[[Path], bytes]] = {
    "json": Path.read_bytes,
    "json-gzip": lambda path: gzip.compress(path.read_bytes()),
    "proto": as_frames,
    "proto-gzip": lambda path: gzip.compress(as_frames(path)),
}


def arrived(received: Any) -> list[bytes]:
    """The items that a receiver was sent."""
    return items_of([(signal, message) for signal, message, *_ in received.requests])


@pytest.mark.parametrize("protocol", RECEIVERS)
@pytest.mark.parametrize("kind", FORMATS)
def test_all_of_a_file_arrives(recording: Path, tmp_path: Path, replay: Command, protocol: str, kind: str) -> None:
    """Every span, metric and log record arrives once, unchanged, and the command says how many."""
    file = tmp_path / "given"
    file.write_bytes(FORMATS[kind](recording))
    with RECEIVERS[protocol]() as received:
        done = replay(file, "--endpoint", received.endpoint, "--protocol", protocol)
    assert arrived(received) == file_items(recording)
    assert done.stdout == f"{received.endpoint} ({protocol}) accepted 2 spans, 5 data points, 1 log record\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_standard_input_is_read(recording: Path, replay: Command) -> None:
    """``-`` is standard input, as of other commands."""
    with http_receiver() as received:
        done = replay("-", "--endpoint", received.endpoint, stdin=recording.read_text())
    assert (done.returncode, arrived(received)) == (0, file_items(recording))


def test_several_files_are_one_replay(recording: Path, replay: Command) -> None:
    """They are sent one after the other, and counted together."""
    with http_receiver() as received:
        done = replay(recording, recording, "--endpoint", received.endpoint)
    assert len(arrived(received)) == 2 * len(file_items(recording))
    assert "accepted 4 spans, 10 data points, 2 log records" in done.stdout


def test_the_environment_names_receiver_and_headers(recording: Path, replay: Command) -> None:
    """Without options the variables of OpenTelemetry count; headers are sent and never printed."""
    with http_receiver() as received:
        done = replay(
            recording, OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20s3cret,x-team=a"
        )
    assert done.returncode == 0
    assert {headers["authorization"] for _, _, headers, *_ in received.requests} == {"Bearer s3cret"}
    assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_an_address_of_host_and_port_is_enough(recording: Path, replay: Command, protocol: str) -> None:
    """On a command line nobody means TLS by leaving the scheme away; a path of a signal at its end is not doubled."""
    with RECEIVERS[protocol]() as received:
        place = received.endpoint.removeprefix("http://")
        done = replay(recording, "--endpoint", place if protocol == "grpc" else f"{place}/v1/traces", "--protocol", protocol)
    assert (done.returncode, len(received.spans())) == (0, 2)


def test_grpc_gets_the_headers_too(recording: Path, replay: Command) -> None:
    """Over gRPC they are metadata."""
    with RECEIVERS["grpc"]() as received:
        replay(recording, "--endpoint", received.endpoint, "--protocol", "grpc", OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20t")
    assert {headers["authorization"] for _, _, headers, *_ in received.requests} == {"Bearer t"}


def test_now_moves_every_moment_alike(recording: Path, replay: Command) -> None:
    """The latest moment becomes now, all distances stay, and an unknown moment stays unknown."""
    begun = time.time_ns()
    with http_receiver() as received:
        replay(recording, "--endpoint", received.endpoint, "--now")
    ended = time.time_ns()
    first, rich = received.spans()
    exemplar = received.metrics()[2].histogram.data_points[0].exemplars[0]
    level = received.metrics()[1].gauge.data_points
    moved = first.start_time_unix_nano - START
    assert begun <= START + 3_000_000_000 + moved <= ended
    assert [at - moved - START for at in (rich.start_time_unix_nano, rich.end_time_unix_nano, rich.events[0].time_unix_nano)] == [10**9, 2 * 10**9, 10**9]
    assert exemplar.time_unix_nano - moved - START == 2 * 10**9
    assert [point.start_time_unix_nano - moved for point in level] == [-moved, START]
    assert [point.time_unix_nano - moved - START for point in level] == [3 * 10**9] * 2
    record = received.logs()[0]
    assert (record.time_unix_nano - moved - START, record.observed_time_unix_nano - moved - START) == (10**9, 2 * 10**9)
    assert (rich.links[0].trace_id.hex(), exemplar.trace_id) == ("2e" * 16, rich.trace_id)


def test_now_needs_files(replay: Command) -> None:
    """What can be read only once cannot be moved; the message says what to do."""
    done = replay("/dev/stdin", "--now", "--endpoint", "http://127.0.0.1:9")
    assert (done.returncode, "save it to a file first" in done.stderr) == (2, True)


def test_damaged_lines_are_named_and_the_rest_is_sent(tmp_path: Path, replay: Command) -> None:
    """Each has its line and its reason; one span that cannot be read costs itself only."""
    wrong = [
        "nonsense",
        '{"a": 1}',
        json.dumps(spans_line(span(0), span(1, traceId="12"), span(2, startTimeUnixNano="soon"), span(3, spanId=""), span(4))),
        json.dumps(spans_line(span(5)))[:80] + json.dumps(spans_line(span(6))),
        json.dumps({"resourceSpans": [{"scopeSpans": 7}]}),
        json.dumps(LOGS)[:100],
    ]
    path = tmp_path / "damaged.jsonl"
    path.write_text("\n".join(wrong))
    with http_receiver() as received:
        done = replay(path, "--endpoint", received.endpoint)
    assert [each.name for each in received.spans()] == ["step 0", "step 4", "step 6"]
    assert done.stderr.splitlines() == [
        f"{path}:1: not JSON",
        f"{path}:2: JSON, but not of OTLP: it has no resourceSpans, resourceMetrics or resourceLogs",
        f"{path}:3: span 2: traceId is not what it must be",
        f"{path}:3: span 3: startTimeUnixNano is not what it must be",
        f"{path}:3: span 4: it has no ids",
        f"{path}:4: a record breaks off where another one begins; that one is sent",
        f"{path}:5: resourceSpans: scopeSpans is no list",
        f"{path}:6: the last line breaks off",
    ]
    assert done.stdout.splitlines()[1] == f"damaged: 8 lines or parts of lines of {path}"
    assert done.returncode == 1


def test_many_damaged_lines_are_counted(tmp_path: Path, replay: Command) -> None:
    """Twenty are named, all are counted."""
    path = tmp_path / "damaged.jsonl"
    path.write_text("x\n" * 500 + json.dumps(METRICS) + "\n")
    with http_receiver() as received:
        done = replay(path, "--endpoint", received.endpoint)
    assert (done.stderr.count("not JSON"), "damaged: 500 lines" in done.stdout, done.returncode) == (20, True, 1)


def test_damaged_messages_of_protobuf(recording: Path, tmp_path: Path, replay: Command) -> None:
    """A message of garbage is skipped; an impossible length ends the file, which is said."""
    frames = as_frames(recording)
    path = tmp_path / "out.pb"
    path.write_bytes(b"\0\0\0\5\x0a\xff\xff\xff\xff" + frames + b"\xff\xff\xff\xff" + frames)
    with http_receiver() as received:
        done = replay(path, "--endpoint", received.endpoint)
    assert arrived(received) == file_items(recording)
    assert done.stderr.splitlines() == [
        f"{path}:1: not a message of OTLP",
        f"{path}:5: no message has 4,294,967,295 bytes, so the rest cannot be read",
    ]


@pytest.mark.parametrize("cut", [2, 30])
def test_a_torn_file_of_protobuf(recording: Path, tmp_path: Path, replay: Command, cut: int) -> None:
    """What a killed collector left is sent up to where it breaks off."""
    path = tmp_path / "out.pb"
    path.write_bytes(as_frames(recording)[:-cut])
    with http_receiver() as received:
        done = replay(path, "--endpoint", received.endpoint)
    assert (done.stderr, done.returncode) == (f"{path}:3: the last message breaks off\n", 1)


def test_a_torn_gzip_file(recording: Path, tmp_path: Path, replay: Command) -> None:
    """The lines before the break are sent."""
    path = tmp_path / "session.jsonl.gz"
    path.write_bytes(gzip.compress(recording.read_bytes() + random.Random(1).randbytes(4000).hex().encode())[:-30])
    with http_receiver() as received:
        done = replay(path, "--endpoint", received.endpoint)
    assert len(arrived(received)) == 7
    assert ("the compressed file breaks off" in done.stderr, done.returncode) == (True, 1)


def test_zstd_says_what_to_do(tmp_path: Path, replay: Command) -> None:
    """A collector's zstd file is refused with the fix."""
    path = tmp_path / "out.zst"
    path.write_bytes(b"\0\0\r\x51\x28\xb5\x2f\xfd" + b"x" * 20)
    done = replay(path, "--endpoint", "http://127.0.0.1:9")
    assert (done.returncode, "without `compression: zstd`, or unpack it first" in done.stderr) == (2, True)


def test_large_lines_are_divided_and_small_ones_joined(tmp_path: Path, replay: Command) -> None:
    """No request is above the limit of receivers, and a line for each span is not a request for each span."""
    path = tmp_path / "session.jsonl"
    large = [span(number, attributes=[{"key": "text", "value": {"stringValue": "x" * 100_000}}]) for number in range(60)]
    lines = [spans_line(*large), *(spans_line(span(number)) for number in range(100, 400))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with RECEIVERS["grpc"]() as received:
        done = replay(path, "--endpoint", received.endpoint, "--protocol", "grpc")
    assert (done.returncode, len(received.spans())) == (0, 360)
    assert len(received.requests) <= 6
    assert max(size for *_, size in received.requests) <= 3 * 1024 * 1024


def test_an_empty_file(tmp_path: Path, replay: Command) -> None:
    """There is nothing to send, which is an error."""
    path = tmp_path / "empty.jsonl"
    path.touch()
    done = replay(path, "--endpoint", "http://127.0.0.1:9")
    assert (done.returncode, "the files hold no telemetry" in done.stderr) == (2, True)


def test_no_receiver_is_named(recording: Path, replay: Command) -> None:
    """The message names option and variable."""
    done = replay(recording)
    assert done.returncode == 2
    assert re.search("--endpoint http://localhost:4318, or set OTEL_EXPORTER_OTLP_ENDPOINT", done.stderr)
