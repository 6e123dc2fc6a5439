"""What a person sees: on a pipe, on a terminal with and without rich, and where the encoding is ASCII."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doctor.conftest import clean

COMMAND = [sys.executable, "-m", "inferspan", "doctor", "--no-send"]


def environment(folder: str, **more: str) -> dict[str, str]:
    """An environment with one problem."""
    return clean({"PYTHONPATH": folder, "INFERSPAN_TOPK": "3", "INFERSPAN_SESSION_FILE": "s.jsonl", "INFERSPAN_EXTENSION": "0", **more})


def on_a_terminal(environ: dict[str, str], folder: Path) -> tuple[int, str]:
    """Exit code and output of the command in a pseudo-terminal of 80 columns."""
    pty = pytest.importorskip("pty")
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, (40).to_bytes(2, sys.byteorder) + (80).to_bytes(2, sys.byteorder) + bytes(4))
    process = subprocess.Popen(COMMAND, env=environ, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    found = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        found += piece
    os.close(ours)
    return process.wait(120), found.decode("utf-8", "replace")


def test_text_on_a_pipe(without_torch: str, tmp_path: Path) -> None:
    """Plain text; the problems come once more at the end, each with its fix."""
    done = subprocess.run(COMMAND, env=environment(without_torch), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    start = lines.index("Environment")
    assert lines[start + 3 : start + 5] == [
        "  X INFERSPAN_TOPK                 nobody reads it",
        "                                   fix: did you mean INFERSPAN_TOP_K?",
    ]
    assert lines[-3:] == ["1 problem:", " 1. INFERSPAN_TOPK: nobody reads it", "    fix: did you mean INFERSPAN_TOP_K?"]


def test_without_a_problem(without_torch: str, tmp_path: Path) -> None:
    """It says so."""
    environ = environment(without_torch)
    del environ["INFERSPAN_TOPK"]
    done = subprocess.run(COMMAND, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Nothing to fix.")


def test_colours_on_a_terminal(without_torch: str, tmp_path: Path) -> None:
    """With rich the state of a line has a colour, and no line is wider than the terminal."""
    pytest.importorskip("rich")
    code, text = on_a_terminal({**environment(without_torch), "TERM": "xterm-256color"}, tmp_path)
    assert code == 1
    assert "\x1b[1;31m  X INFERSPAN_TOPK" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r\n", "\n")
    assert max(len(line.rpartition("\r")[2]) for line in plain.split("\n") if "/" not in line) <= 80
    assert "looking ...\r           \rVersions" in plain


def test_a_terminal_without_rich(without_torch: str, tmp_path: Path) -> None:
    """The same text without colours."""
    (Path(without_torch) / "rich.py").write_text("raise ImportError('no rich')\n")
    code, text = on_a_terminal({**environment(without_torch), "TERM": "xterm-256color"}, tmp_path)
    assert (code, "\x1b" in text, "  X INFERSPAN_TOPK" in text) == (1, False, True)


def test_a_terminal_of_ascii(without_torch: str, tmp_path: Path) -> None:
    """Names that it cannot show are escaped; nothing fails."""
    folder = tmp_path / "caf\u00e9"
    folder.mkdir()
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TERM": "dumb"}
    code, text = on_a_terminal({**environment(without_torch, INFERSPAN_SESSION_FILE="s\u00e9.jsonl"), **ascii_only}, folder)
    assert (code, "Traceback" in text, text.isascii()) == (1, False, True)
    assert "can be written" in text
