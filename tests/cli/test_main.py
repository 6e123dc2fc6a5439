"""The command: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

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


def test_report_has_the_picture_of_a_graph(session_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An SVG is an image of the page, in which no script runs; another file is refused."""
    picture, output = session_file.with_name("graph.svg"), session_file.with_name("out.html")
    picture.write_text('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', encoding="utf-8")
    assert main(["report", str(session_file), "-o", str(output), "--graph", str(picture)]) == 0
    page = output.read_text()
    assert "data:image/svg+xml;base64,PHN2Zy" in page
    assert "alert(1)" not in page
    assert main(["report", str(session_file), "-o", str(output), "--graph", str(session_file)]) == 2
    assert "is no SVG" in capsys.readouterr().err


def test_report_goes_beside_the_session_by_default(session_file: Path) -> None:
    """Without -o the page has the session's name."""
    assert main(["report", str(session_file)]) == 0
    assert session_file.with_suffix(".html").is_file()


def test_report_as_text(session_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --text the table is printed and no file is written."""
    assert main(["report", str(session_file), "--text"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "forward", "tiny", "-", "-", "-", "-", "-", "2.00", "ms", "error", "ValueError"] in lines
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


@pytest.mark.parametrize("arguments", [["nonsense"], ["report"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    """An unknown command, or a missing argument, ends as argparse ends."""
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


ASCII = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    environ = {**os.environ, **options.pop("environ", {})}
    program = [sys.executable, "-m", "inferspan", *map(str, arguments)]
    given: dict[str, Any] = {"capture_output": True, **options}
    done: Any = subprocess.run(program, env=environ, check=False, timeout=300, **given)
    return cast("subprocess.CompletedProcess[bytes]", done)


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["report", "FILE", "--text"], 0, rb"1  forward mod\xe8le-\u4e2d"),
        (["report", "FILE"], 0, b"wrote "),
        (["report", "missing-ü.jsonl"], 2, b"cannot read session file missing-"),
        (["settings"], 0, b"session_file"),
    ],
)
def test_a_terminal_of_ascii_gets_escapes(session_file: Path, arguments: list[str], code: int, shown: bytes) -> None:
    """Names of models and files that the terminal cannot show are escaped, and the command does its work."""
    named = session_file.with_name("süß-中.jsonl")
    named.write_text(session_file.read_text().replace("forward tiny", "forward modèle-中"), encoding="utf-8")
    done = command(*(str(named) if word == "FILE" else word for word in arguments), environ=ASCII)
    assert b"Traceback" not in done.stderr
    assert done.returncode == code
    assert (done.stdout + done.stderr).isascii()
    assert shown in done.stdout + done.stderr


def test_the_encoding_of_the_caller_stays(session_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that calls the command has its standard output as it was."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["report", str(session_file), "--text"]) == 0
    assert output.errors == "strict"


@pytest.mark.parametrize("file", ["-", "/dev/stdin"])
def test_report_of_standard_input(session_file: Path, file: str) -> None:
    """A session that comes through a pipe gives the table of the file."""
    done = command("report", file, "--text", input=session_file.read_bytes())
    assert done.stdout.splitlines()[1:] == command("report", session_file, "--text").stdout.splitlines()[1:]


def test_report_of_a_pipe_goes_to_the_current_folder(session_file: Path, tmp_path: Path) -> None:
    """Without -o there is no name beside which the page could be."""
    folder = tmp_path / "here"
    folder.mkdir()
    done = command("report", "-", input=session_file.read_bytes(), cwd=folder)
    assert done.stdout.startswith(b"wrote session.html: 1 request")
    assert "</html>" in (folder / "session.html").read_text()


def test_report_to_standard_output_is_the_page_alone(session_file: Path) -> None:
    """The line about the page goes to standard error."""
    done = command("report", session_file, "-o", "/dev/stdout")
    assert done.stdout.endswith(b"</html>\n")
    assert done.stderr.startswith(b"wrote standard output: 1 request")


@pytest.mark.parametrize("end", ["file", "output"])
def test_loops_of_links_are_no_traceback(session_file: Path, tmp_path: Path, end: str) -> None:
    """A link to itself as the session is refused in one line, as the report it is replaced."""
    loop = tmp_path / "loop.html"
    loop.symlink_to(loop)
    done = command("report", loop) if end == "file" else command("report", session_file, "-o", loop)
    assert b"Traceback" not in done.stderr
    assert (done.returncode, loop.is_symlink()) == ((2, True) if end == "file" else (0, False))


def test_a_folder_that_is_a_loop_of_links(session_file: Path, tmp_path: Path) -> None:
    """A report cannot be written there, which is one line."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    done = command("report", session_file, "-o", tmp_path / "loop" / "report.html")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"Too many levels of symbolic links; give another path with -o" in done.stderr


def test_a_title_of_bytes_that_are_no_text(session_file: Path) -> None:
    """An argument that is not UTF-8 has a replacement in the heading."""
    done = command("report", session_file, "--title", os.fsdecode(b"a\xff"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert "<title>a? - inferspan</title>" in session_file.with_suffix(".html").read_text()


def test_links_at_the_temporary_name_are_not_followed(session_file: Path, tmp_path: Path) -> None:
    """A report written into a shared folder goes through no name that somebody could guess."""
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "precious").write_text("precious")
    for name in (f".r.html.{os.getpid()}", ".r.html.tmp", "r.html.tmp", "r.html.part", "r.html~", ".inferspan-.tmp"):
        (folder / name).symlink_to(folder / "precious")
    assert main(["report", str(session_file), "-o", str(folder / "r.html")]) == 0
    assert (folder / "precious").read_text() == "precious"


def test_a_full_disk_behind_standard_output_is_one_line(session_file: Path) -> None:
    """Text that cannot be written is an error with its reason, not a traceback."""
    with open("/dev/full", "wb") as full:
        done = command("report", session_file, "--text", stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert (done.returncode, done.stderr) == (2, b"inferspan: cannot write to standard output: No space left on device\n")
