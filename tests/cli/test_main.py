"""The command: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import inferspan
from inferspan import semconv
from inferspan.cli import main
from inferspan.settings import describe


@pytest.fixture
def session_file(tmp_path: Path) -> Path:
    """A session file with one failed forward."""
    span = {
        "traceId": "1" * 32, "spanId": "2" * 16, "name": "forward tiny", "startTimeUnixNano": "1000", "endTimeUnixNano": "2001000",
        "status": {"code": 2}, "attributes": [{"key": semconv.ERROR_TYPE, "value": {"stringValue": "ValueError"}}],
    }  # fmt: skip
    path = tmp_path / "session.jsonl"
    line = {"resourceSpans": [{"scopeSpans": [{"scope": {"name": semconv.SCOPE}, "spans": [span]}]}]}
    path.write_text(json.dumps(line) + "\n")
    return path


def test_report_writes_the_page(session_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page is written where -o says, and one line says so."""
    output = session_file.with_name("out.html")
    assert main(["report", str(session_file), "-o", str(output), "--title", "Run <1>"]) == 0
    assert "<title>Run &lt;1&gt; - inferspan</title>" in output.read_text()
    assert capsys.readouterr() == (f"wrote {output}: 1 request, 1 failed, 0 metric series\n", "")


def test_report_goes_beside_the_session_by_default(session_file: Path) -> None:
    """Without -o the page has the session's name."""
    assert main(["report", str(session_file)]) == 0
    assert session_file.with_suffix(".html").is_file()


def test_report_as_text(session_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --text the table is printed and no file is written."""
    assert main(["report", str(session_file), "--text"]) == 0
    assert "1  forward tiny      -   -    -     -     -      -   2.00 ms  error ValueError" in capsys.readouterr().out
    assert [path.name for path in session_file.parent.iterdir()] == ["session.jsonl"]


def test_failures_are_one_line_and_exit_code_2(session_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot work says why and what to do, in one line on standard error."""
    missing = session_file.with_name("missing.jsonl")
    cases = {
        ("report", str(missing)): "No such file or directory. Check the path",
        ("report", str(session_file), "-o", str(missing / "a.html")): "give another path with -o",
        ("report", str(session_file), "-o", str(session_file)): "would overwrite the session file",
        ("demo", "--session", str(session_file / "s.jsonl")): "give another path with --session",
    }
    for arguments, expected in cases.items():
        assert main(list(arguments)) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), expected in err) == ("", 1, True), err


def test_settings_lists_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Every setting is listed with its variable."""
    assert main(["settings"]) == 0
    out = capsys.readouterr().out
    assert [name for name, variable, _, _ in describe() if f"{name}  ({variable}" not in out] == []


def test_version_names_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions are read from the installed distributions; one that is not installed says so."""
    assert main(["version"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"inferspan", "torch", "transformers", "opentelemetry-sdk", "python", "platform", "recorder"} <= set(names)


def test_own_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The usual option prints the version of this package alone."""
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert (done.value.code, capsys.readouterr().out) == (0, f"inferspan {inferspan.__version__}\n")


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """Help is complete without other pages."""
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    assert "inferspan report session.jsonl -o report.html" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["report"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    """A missing or unknown command ends as argparse ends."""
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 2


def test_module_runs_as_command_without_torch(session_file: Path) -> None:
    """``python -m inferspan`` is the command; neither it nor the report loads torch, transformers or the SDK."""
    code = (
        "import sys; from inferspan.cli import main; main(sys.argv[1:]);"
        "print([name for name in ('torch', 'transformers', 'psutil', 'pynvml', 'opentelemetry.sdk') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, "report", str(session_file)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    done = subprocess.run([sys.executable, "-m", "inferspan", "report", "nowhere"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_closed_pipe_is_no_error() -> None:
    """``inferspan settings | head -1`` ends quietly."""
    command = f"{sys.executable} -m inferspan settings | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
