"""What a receiver answers is what the command says: partial success, refusals, waiting, and the reason where nothing can be sent."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse

from tests.replay.conftest import Command, span, spans_line
from tests.replay.receivers import Reply, items_of, scripted
from tests.support.otlp_receivers import RECEIVERS, dead_endpoint, grpc_receiver, http_receiver

OK: Reply = (200, {}, b"")


def test_what_a_receiver_rejects_is_counted(recording: Path, replay: Command) -> None:
    """Partial success: the rejected span is not among the accepted, and the receiver's words are shown."""
    part = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=1, error_message="too old\x1b[31m\nby far"))

    def reply(number: int, signal: str, message: Any) -> Reply:
        return (200, {"Content-Type": "application/x-protobuf"}, part.SerializeToString()) if signal == "traces" else OK

    with scripted(reply) as receiver:
        done = replay(recording, "--endpoint", receiver.endpoint)
    assert done.stdout.splitlines() == [f"{receiver.endpoint} (http/protobuf) accepted 1 span, 5 data points, 1 log record", "refused: 1 span"]
    assert done.stderr == f"{receiver.endpoint}: traces refused: too old?[31m by far\n"
    assert done.returncode == 1


def test_a_partial_success_in_json_is_counted(recording: Path, replay: Command) -> None:
    """Some receivers answer in JSON."""
    body = json.dumps({"partialSuccess": {"rejectedSpans": "2", "errorMessage": "no"}}).encode()
    with scripted(lambda number, signal, message: (200, {"Content-Type": "application/json"}, body if signal == "traces" else b"{}")) as receiver:
        done = replay(recording, "--endpoint", receiver.endpoint)
    assert "accepted 5 data points, 1 log record\nrefused: 2 spans" in done.stdout


def test_only_the_items_at_fault_are_refused(tmp_path: Path, replay: Command) -> None:
    """A request that is refused is divided until one span remains."""
    path = tmp_path / "session.jsonl"
    path.write_text(json.dumps(spans_line(*map(span, range(50)))) + "\n")

    def reply(number: int, signal: str, message: Any) -> Reply:
        names = [each.name for each in message.resource_spans[0].scope_spans[0].spans]
        return (400, {}, b"") if "step 33" in names else OK

    with scripted(reply) as receiver:
        done = replay(path, "--endpoint", receiver.endpoint)
    assert "accepted 49 spans\nrefused: 1 span\n" in done.stdout
    assert (done.returncode, "400: it could not read the request" in done.stderr) == (1, True)


def test_a_receiver_that_refuses_everything_is_left(tmp_path: Path, replay: Command) -> None:
    """It is not asked about each of a thousand spans."""
    path = tmp_path / "session.jsonl"
    path.write_text(json.dumps(spans_line(*map(span, range(1000)))) + "\n")
    with scripted(lambda number, signal, message: (400, {}, b"")) as receiver:
        done = replay(path, "--endpoint", receiver.endpoint)
    assert (done.returncode, len(receiver.requests) < 100, "it refuses everything" in done.stderr) == (2, True, True)


def test_a_busy_receiver_is_asked_again(recording: Path, replay: Command) -> None:
    """Nothing is lost and nothing is counted twice; it is asked when it wants to be."""
    with scripted(lambda number, signal, message: (503, {"Retry-After": "0"}, b"") if number in (0, 1, 3) else OK) as receiver:
        done = replay(recording, "--endpoint", receiver.endpoint)
    assert "accepted 2 spans, 5 data points, 1 log record" in done.stdout
    assert (done.returncode, len(receiver.requests)) == (0, 6)


def test_a_receiver_that_stays_busy_ends_the_replay(recording: Path, replay: Command) -> None:
    """After the given time the rest is not sent, and the exit code says so."""
    with scripted(lambda number, signal, message: (503, {"Retry-After": "0.1"}, b"") if signal != "traces" else OK) as receiver:
        done = replay(recording, "--endpoint", receiver.endpoint, "--retry", "1")
    assert (done.returncode, "accepted 2 spans\n" in done.stdout) == (1, True)
    assert "stopped; the rest was not sent" in done.stderr


def test_a_receiver_of_traces_alone_gets_them(recording: Path, replay: Command) -> None:
    """404 for metrics and logs, as of Jaeger, is no reason not to send traces."""
    with scripted(lambda number, signal, message: OK if signal == "traces" else (404, {}, b"")) as receiver:
        done = replay(recording, "--endpoint", receiver.endpoint)
    assert "accepted 2 spans\nrefused: 5 data points, 1 log record" in done.stdout
    assert (done.returncode, "metrics refused: 404: it has no receiver for OTLP at this path" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "401: the token in OTEL_EXPORTER_OTLP_HEADERS is missing or not accepted"),
        (403, "403: the token in OTEL_EXPORTER_OTLP_HEADERS may not write here"),
        (302, "it redirects to another address"),
        (500, "it answers 500 Internal Server Error"),
    ],
)
def test_what_stays_so_ends_the_replay(recording: Path, replay: Command, status: int, reason: str) -> None:
    """One request, one line with the reason, exit code 2."""
    with scripted(lambda number, signal, message: (status, {"Location": "http://elsewhere"}, b"")) as receiver:
        done = replay(recording, "--endpoint", receiver.endpoint)
    assert (done.returncode, len(receiver.requests)) == (2, 1)
    assert reason in done.stderr


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_nothing_listens(recording: Path, replay: Command, protocol: str) -> None:
    """It is said at once, with the address."""
    with dead_endpoint("closed") as address:
        done = replay(recording, "--endpoint", address, "--protocol", protocol)
    assert (done.returncode, done.stderr) == (2, f"inferspan: stopped: {address}: nothing listens there\n")


def test_the_wrong_protocol_is_named(recording: Path, replay: Command) -> None:
    """HTTP to a port of gRPC, and gRPC to a port of HTTP: the reason has the fix."""
    with grpc_receiver() as received:
        done = replay(recording, "--endpoint", received.endpoint)
    assert (done.returncode, "gRPC" in done.stderr or "OTLP over HTTP" in done.stderr) == (2, True)
    with http_receiver() as received:
        done = replay(recording, "--endpoint", received.endpoint, "--protocol", "grpc")
    assert (done.returncode, "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in done.stderr) == (2, True)


def test_an_interrupt_tells_what_was_accepted(tmp_path: Path) -> None:
    """Ctrl-C in the middle: the counts so far, and the exit code of an interrupt."""
    path = tmp_path / "session.jsonl"
    large = [span(number, attributes=[{"key": "text", "value": {"stringValue": "x" * 500_000}}]) for number in range(30)]
    path.write_text("".join(json.dumps(spans_line(each)) + "\n" for each in large))
    reached, go_on = threading.Event(), threading.Event()
    taken: dict[bytes, int] = {}

    def reply(number: int, signal_name: str, message: Any) -> Reply:
        # A client that has waited too long sends a message again: what is accepted counts once.
        key = message.SerializeToString(deterministic=True)
        if key in taken or len(taken) < 2:
            taken[key] = len(items_of([(signal_name, message)]))
            return OK
        reached.set()
        go_on.wait(300)
        return OK

    with scripted(reply) as receiver:
        command = [sys.executable, "-m", "inferspan", "replay", str(path), "--endpoint", receiver.endpoint]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert reached.wait(300)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        go_on.set()
    assert out == f"{receiver.endpoint} (http/protobuf) accepted {sum(taken.values())} spans\n"
    assert (process.returncode, err) == (130, "inferspan: interrupted\n")


LIMIT = 600 * 1024 * 1024
"""Bytes of address space that are left for what a file holds."""


def limited(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command with little memory."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT + (1 << 30), LIMIT + (1 << 30)))

    command = [sys.executable, "-m", "inferspan", "replay", *map(str, arguments)]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, env=environ, preexec_fn=limit, capture_output=True, text=True, timeout=600, check=False)


def test_an_endless_line_is_not_held(tmp_path: Path) -> None:
    """A line of 2 GiB (sparse on the disk) is skipped with its number, and what precedes it is sent."""
    path = tmp_path / "endless.jsonl"
    path.write_text(json.dumps(spans_line(span(0))) + "\n{")
    with path.open("r+b") as file:
        file.truncate(2 << 30)
    with http_receiver() as received:
        done = limited(path, "--endpoint", received.endpoint)
    assert [each.name for each in received.spans()] == ["step 0"]
    assert done.returncode == 1, done.stderr
    assert f"{path}:2: the line is longer than 32 MiB" in done.stderr


def test_a_decompression_bomb_is_left(tmp_path: Path) -> None:
    """What expands a thousand times is no telemetry."""
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write((json.dumps(spans_line(span(0))) + "\n").encode())
        for _ in range(300):
            file.write(bytes(1 << 20))
    with http_receiver() as received:
        done = limited(path, "--endpoint", received.endpoint)
    assert len(received.spans()) == 1
    assert (done.returncode, "the rest is not read: it expands more than 150 times" in done.stderr) == (1, True), done.stderr
