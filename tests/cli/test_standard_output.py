"""``-`` as an output is standard output, which then holds nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inferspan.cli import main
from inferspan.settings import Settings, SettingsError
from tests.runs.recordings import recording

Run = Callable[..., int]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A session file; the current folder is empty, so that a file named ``-`` shows."""
    path = tmp_path / "in" / "s.jsonl"
    path.parent.mkdir()
    recording(path)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return str(path)


@pytest.mark.parametrize("command", ["report", "aggregate", "trend"])
def test_json_goes_to_standard_output_alone(command: str, session: str, capsys: pytest.CaptureFixture[str]) -> None:
    """So that it can be piped; what the command tells goes to standard error."""
    assert main([command, session, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert "schema" in json.loads(out)
    assert "wrote standard output" in err
    assert list(Path().iterdir()) == []


def test_a_page_goes_to_standard_output(session: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The page alone."""
    assert main(["report", session, "-o", "-"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("<!doctype html>") or out.startswith("<!DOCTYPE html>")
    assert out.rstrip().endswith("</html>")
    assert "wrote standard output" in err


def test_merged_lines_go_to_standard_output(session: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them can be read again."""
    assert main(["aggregate", session, "-o", "-"]) == 0
    out, err = capsys.readouterr()
    assert [line for line in map(json.loads, out.splitlines()) if not isinstance(line, dict)] == []
    assert "wrote standard output: " in err


def test_two_outputs_do_not_fit_into_standard_output(session: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They could not be told apart."""
    cases = {
        ("report", session, "-o", "-", "--json", "-"): "-o and --json cannot both go to standard output",
        ("report", session, "--json", "-", "--text"): "--json and --text cannot both go to standard output",
        ("aggregate", session, "-o", "-", "--json", "-"): "-o and --json cannot both go to standard output",
    }
    for arguments, expected in cases.items():
        assert main(list(arguments)) == 2
        assert expected in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["demo", "--session", "-"], ["demo", "--report", "-"], ["bundle", "-"], ["stack", "down", "--dir", "-"]])
def test_other_outputs_say_that_they_cannot_be(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file or folder of that name is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert list(tmp_path.iterdir()) == []


def test_spans_of_a_program_go_to_standard_output(tmp_path: Path) -> None:
    """As --trace-output says; a setting names the path."""
    program = tmp_path / "app.py"
    program.write_text("import inferspan\nwith inferspan.stage('work'):\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "inferspan", "run", "--trace-output", "-", program],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {next(iter(json.loads(line))) for line in done.stdout.splitlines()} <= {"resourceSpans", "resourceMetrics", "resourceLogs"}
    assert not (tmp_path / "-").exists()
    with pytest.raises(SettingsError, match="/dev/stdout"):
        Settings.resolve({"session_file": "-"})


@pytest.mark.parametrize("command", ["aggregate", "trend"])
def test_standard_input_is_read(command: str, session: str) -> None:
    """As report reads it."""
    done = subprocess.run(
        [sys.executable, "-m", "inferspan", command, "-"], input=Path(session).read_bytes(), capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
