"""The summary and the operations as text: plain lines, and rich tables in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.analysis.operations import Operations
from inferspan.cli import main
from inferspan.summaries.table import plain_table, rich_table


def test_text_has_events_modules_and_operations(session_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests, then a table of operations with units, then events by type; in 80 characters, what takes no room left out."""
    assert main(["report", str(session_path), "--text"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert any(line.startswith("24 events") or " events in 192 ms: module_end 16" in line for line in lines)
    step = next(line for line in lines if line.startswith("step decode_step"))
    assert step.split() == ["step", "decode_step", "6", "60.00", "ms", "4.00", "ms", "10.00", "ms", "10.00", "ms"]
    assert any(line.startswith("own time of steps is of those whose modules were recorded: decode_step 2 of 6") for line in lines)
    assert any(line.split()[:2] == ["module", "model.layers.0"] for line in lines)


def test_memory_is_in_mib_with_its_sign() -> None:
    """It has a column only where something measured it, and a dash where an operation has none."""
    operations = Operations()
    operations.add("request", "chat m", 1.0, memory_delta=-3 * 1024 * 1024)
    operations.add("phase", "decode", 0.5)
    lines = plain_table(operations.rows()).splitlines()
    assert lines[0].split("  ")[-3:] == ["memory MiB", "avg MiB", "clock"]
    assert lines[1].split()[-3:] == ["-3.0", "-3.0", "host"]
    assert lines[2].split()[-3:] == ["-", "-", "host"]


def test_names_reach_no_terminal_as_they_are(recording: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters of a file are replaced, and nothing is markup to rich."""
    recording.span("chat \x1b[31m[bold]m", 0, 1, trace=recording.trace(), attributes={semconv.OPERATION_NAME: "chat"})
    assert main(["report", str(recording.write(tmp_path / "s.jsonl")), "--text"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    operations = Operations()
    operations.add("module", "[red]x[/red]", 1.0)
    table = rich_table(operations.rows())
    if table is not None:
        assert str(next(iter(table.columns[0].cells))) == "module [red]x[/red]"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_gets_tables(session_path: Path) -> None:
    """In a pseudo-terminal the summary is drawn by rich."""
    pytest.importorskip("rich")
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "inferspan", "report", str(session_path), "--text"]
    process = subprocess.Popen(command, stdout=theirs, env={**os.environ, "COLUMNS": "200", "TERM": "xterm"})
    os.close(theirs)
    shown = read_all(lambda: os.read(ours, 65_536))
    assert process.wait() == 0
    os.close(ours)
    assert "Operations" in shown
    assert "module_end 16" in shown
    assert "\u2502" in shown


def read_all(read: Callable[[], bytes]) -> str:
    """Everything until the other end is closed."""
    pieces = []
    while True:
        try:
            piece = read()
        except OSError:  # how Linux says that the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces).decode()
