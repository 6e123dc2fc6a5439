"""Setting ``live``: what a program shows of itself on a terminal, in a pipe, and where nothing was asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import inferspan

PROGRAM = """
import sys, time
import torch
import inferspan
model = torch.nn.Linear(2, 2)
with inferspan.instrument(model, nvml=False, **eval(sys.argv[1])):
    with inferspan.session("nightly \\x1b[2J run"):
        model(torch.ones(1, 2))
        time.sleep(0.6)
print("the program's own output")
"""
LIVE = "dict(live=True, display_interval=0.1)"


def _start(settings: str, stderr: int) -> subprocess.Popen[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "INFERSPAN_", "NO_COLOR"))}
    environ.update(PYTHONPATH=str(Path(inferspan.__file__).parents[1]), TERM="xterm", COLUMNS="140")
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, settings]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=stderr, text=True)


def _on_a_terminal(settings: str) -> tuple[int, str, str]:
    """Exit status, standard output, and what a terminal at standard error got."""
    ours, theirs = os.openpty()
    process = _start(settings, theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    return process.returncode, out, shown.decode(errors="replace")


@pytest.fixture(scope="module")
def terminal() -> tuple[int, str, str]:
    """A run with the display on a terminal."""
    pytest.importorskip("rich")
    return _on_a_terminal(LIVE)


@pytest.fixture(scope="module")
def pipe() -> tuple[int, str, str]:
    """A run with the display in a pipe."""
    process = _start(LIVE, subprocess.PIPE)
    out, shown = process.communicate(timeout=60)
    return process.returncode, out, shown


def test_a_terminal_gets_frames(terminal: tuple[int, str, str]) -> None:
    """Each block is in a coloured frame with the session in its title."""
    assert "╭" in terminal[2]
    assert "session nightly" in terminal[2]
    assert "CPU: " in terminal[2]


def test_a_pipe_gets_plain_lines(pipe: tuple[int, str, str]) -> None:
    """No control sequences."""
    assert "\x1b" not in pipe[2]
    assert "session nightly" in pipe[2]
    assert "  CPU: " in pipe[2]


@pytest.mark.parametrize("where", ["terminal", "pipe"])
def test_the_program_ends_as_without_it(where: str, request: pytest.FixtureRequest) -> None:
    """Its exit status and standard output are its own."""
    status, out, _ = request.getfixturevalue(where)
    assert (status, out) == (0, "the program's own output\n")


def test_names_do_not_steer_the_terminal(terminal: tuple[int, str, str]) -> None:
    """A name of the program that clears the screen is shown without its control characters."""
    assert "\x1b[2J" not in terminal[2]


def test_nothing_is_shown_unasked() -> None:
    """Without the setting a terminal gets nothing of it."""
    assert "CPU: " not in _on_a_terminal("dict()")[2]


def test_a_closed_standard_error_does_not_matter() -> None:
    """A reader that goes away breaks nothing."""
    read, write = os.pipe()
    process = _start(LIVE, write)
    os.close(write)
    os.close(read)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "the program's own output\n")
