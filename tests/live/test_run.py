"""The commands ``live`` and ``tail`` as a person runs them: in pipes and in a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.cli import main
from tests.live.telemetry import metric, module, request, spans, step

COMMAND = [sys.executable, "-m", "inferspan"]
PATIENCE = 60.0


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session file of one request with two tokens, a module and a reading."""
    path = tmp_path / "s.jsonl"
    lines = [
        metric(semconv.M_ACTIVE, 1),
        metric(semconv.M_SYSTEM_MEMORY_USAGE, 2**30, more={semconv.MEMORY_STATE: "used"}),
        spans(request(more={semconv.OUTPUT_TOKENS: 2}), step(0, "sure", -0.01), step(1, "\x1b[2Jdoubt", -3.0), module("layers.0", 0.5)),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _until(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.05)
    raise AssertionError("it did not come")


def _interrupt(process: subprocess.Popen[Any]) -> None:
    """Ctrl-C; a command that does not end by it is killed, so that the test fails and nothing waits for it."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(PATIENCE)
    finally:
        process.kill()


def test_a_pipe_ends_with_the_last_figures(session: Path) -> None:
    """What was piped in is shown when it is over, and nothing waits."""
    done = subprocess.run([*COMMAND, "live", "-"], input=session.read_bytes(), capture_output=True, timeout=PATIENCE)
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "1 running; 1 request ended" in text
    assert "modules: layers.0 500 ms in 1 call" in text
    assert "memory 1,024.0 MiB" in text


def test_tail_prints_a_request_a_line(session: Path) -> None:
    """With its tokens below it, without characters that steer a terminal."""
    done = subprocess.run([*COMMAND, "tail", "-", "--from-start"], input=session.read_bytes(), capture_output=True, timeout=PATIENCE)
    first, second = done.stdout.decode().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d  chat tiny  5 in 2 out  2.00 s  TTFT 500 ms  TPOT 100 ms  stop", first)
    assert second == "  sure?[2Jdoubt"


def test_tail_shows_requests_while_they_end(session: Path) -> None:
    """One that is written after the start comes at once."""
    with subprocess.Popen([*COMMAND, "tail", str(session)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        seen = ""

        def look() -> str:
            nonlocal seen
            with session.open("a") as file:  # again and again: it may not have opened the file yet
                file.write(json.dumps(spans(request(more={semconv.OUTPUT_TOKENS: 1}))) + "\n")
            seen += ((process.stdout.read() if process.stdout else b"") or b"").decode()
            return seen

        try:
            _until(look)
        finally:
            _interrupt(process)
    assert "chat tiny  5 in 1 out" in seen
    assert process.returncode in (0, 130)


def _first_words(command: list[str]) -> str:
    """What a command says on standard error before anything happens."""
    with subprocess.Popen([*COMMAND, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            return process.stderr.readline()
        finally:
            _interrupt(process)


def test_tail_tells_how_many_requests_it_leaves_out(session: Path) -> None:
    """And the option that shows them."""
    assert _first_words(["tail", str(session)]) == "inferspan: 1 earlier request is not shown; --from-start shows them\n"


@pytest.mark.parametrize("command", ["live", "tail"])
def test_a_file_that_is_waited_for_is_told(command: str, tmp_path: Path) -> None:
    """Silence would look like a program that does nothing."""
    path = tmp_path / "later.jsonl"
    assert _first_words([command, str(path)]) == f"inferspan: waiting for {path}, which does not exist yet\n"


@pytest.mark.parametrize("command", ["live", "tail"])
def test_a_file_of_something_else_ends_the_command(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    path = tmp_path / "s.py"
    path.write_text("print(1)\n")
    assert main([command, str(path)]) == 2
    assert f"inferspan: session file {path} holds no OTLP JSON lines" in capsys.readouterr().err


def test_live_listens_for_exporters(tmp_path: Path) -> None:
    """It says where, and shows what came; Ctrl-C ends it without a traceback."""
    errors = (tmp_path / "errors").open("w+")
    out = (tmp_path / "out").open("w+")
    process = subprocess.Popen([*COMMAND, "live", "--listen", "127.0.0.1:0", "--interval", "0.1"], stdout=out, stderr=errors)
    try:
        where = _until(lambda: re.search(r"OTEL_EXPORTER_OTLP_ENDPOINT=(http://127.0.0.1:\d+) ", Path(errors.name).read_text()))[1]
        body = json.dumps(spans(request())).encode()
        sent = urllib.request.Request(where + "/v1/traces", data=body, headers={"Content-Type": "application/json"})
        urllib.request.urlopen(sent, timeout=10).close()
        _until(lambda: "1 request ended" in Path(out.name).read_text())
    finally:
        _interrupt(process)
    assert "Traceback" not in Path(errors.name).read_text()
    errors.close()
    out.close()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("command", [["live", "--interval", "0.2"], ["tail", "--from-start"]])
def test_a_terminal_gets_colours(session: Path, command: list[str]) -> None:
    """The display is drawn by rich, and names of the file do not steer the terminal."""
    pytest.importorskip("rich")
    import pty

    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen([*COMMAND, *command, str(session)], stdout=slave, stderr=slave, stdin=slave, env=environment)
    os.close(slave)
    seen = b""
    os.set_blocking(master, False)

    def look() -> bool:
        nonlocal seen
        try:
            seen += os.read(master, 65536)
        except (BlockingIOError, OSError):
            pass
        return b"layers.0" in seen if command[0] == "live" else b"doubt" in seen

    try:
        _until(look)
    finally:
        _interrupt(process)
        os.close(master)
    assert b"\x1b[" in seen
    assert b"\x1b[2Jdoubt" not in seen


def test_an_address_that_is_taken_names_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    """A collector may listen there already."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["live", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 2
    assert "give another port" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["live", "tail"])
def test_a_directory_is_told(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    assert main([command, str(tmp_path)]) == 2
    assert "is a directory: give the path of a session file" in capsys.readouterr().err
