"""The command ``inferspan explain``: text, JSON, single traces, and what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferspan.cli import main
from inferspan.report.session import read_session
from tests.explain.made import MADE, Run, make, use


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A decode that waits for the host."""
    make(tmp_path / "session.jsonl", Run(kernel_share=0.33, readings=[use(0.9)]))
    return tmp_path / "session.jsonl"


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    """Standard output and error of the command, which ends with this code."""
    assert main(["explain", *words]) == code
    return capsys.readouterr()


def test_the_text_names_cause_change_gain_and_spans(
    session: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block for each cause, then the tree, limits and missing data."""
    monkeypatch.setenv("COLUMNS", "120")
    out, _ = said(capsys, str(session))
    lines = out.splitlines()
    assert lines[0].startswith("1. launch_bound")
    assert lines[0].endswith("61 % of the time, high, sure")
    assert lines[1] == "   decode waits for the host to launch kernels: the device works 33 % of it (kernels of profiled steps)"
    assert "   expect:   2.14 s of 3.50 s, 61 % (estimated)" in lines
    assert [line for line in lines if line and not line.startswith(" ")][1:] == ["Where the time went", "What limits it", "Not enough data"]


def test_lines_fit_the_terminal(session: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is longer than the terminal is wide."""
    monkeypatch.setenv("COLUMNS", "60")
    out, _ = said(capsys, str(session))
    assert max(map(len, out.splitlines())) <= 60


def test_brief_has_the_causes_alone(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither tree nor limits."""
    out, _ = said(capsys, str(session), "--brief")
    assert "Where the time went" not in out


def test_json_has_the_causes_of_the_report(session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command and the JSON report have the same suggestions, bottlenecks and tree."""
    found = json.loads(said(capsys, str(session), "--json")[0])
    assert main(["report", str(session), "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert found["causes"] == report["suggestions"]
    assert found["limits"] == report["explanation"]["limits"]
    assert found["tree"] == report["explanation"]["tree"]


def test_one_trace_of_a_file(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the request of the trace is looked at; a traceparent names it as well."""
    trace = read_session(session).requests[3].span.trace_id
    found = json.loads(said(capsys, str(session), "--trace", trace.upper(), "--json")[0])
    assert found["requests"] == 1
    assert found["seconds"] == pytest.approx(0.35)
    assert json.loads(said(capsys, str(session), "--trace", f"00-{trace}-00f067aa0ba902b7-01", "--json")[0]) == found


def test_several_files_are_one_recording(session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As for the report."""
    make(tmp_path / "other.jsonl", MADE["a full card"][0])
    found = json.loads(said(capsys, str(session), str(tmp_path / "other.jsonl"), "--json")[0])
    assert found["requests"] == 20


REFUSED: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "give a session file, or the id of a trace with --trace"),
    "no file": (["absent.jsonl"], "cannot read session file absent.jsonl: No such file or directory"),
    "an empty file": (["empty.jsonl"], "session file empty.jsonl is empty"),
    "another file": (["other.txt"], "session file other.txt holds no OTLP JSON lines"),
    "no id": (["session.jsonl", "--trace", "xyz"], "'xyz' is no id of a trace: 32 hexadecimal digits"),
    "another trace": (["session.jsonl", "--trace", "f" * 32], f"no span of the trace {'f' * 32} is in session.jsonl"),
    "no Jaeger": (["--trace", "f" * 32, "--jaeger", "http://127.0.0.1:9"], "no Jaeger answers at http://127.0.0.1:9"),
    "no address": (["--trace", "f" * 32, "--jaeger", "localhost"], "what --jaeger gives is no address of Jaeger"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_one_sentence(
    name: str, session: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 2, one line on standard error, nothing on standard output."""
    monkeypatch.chdir(session.parent)
    Path("empty.jsonl").touch()
    Path("other.txt").write_text("hello\n")
    words, sentence = REFUSED[name]
    out, error = said(capsys, *words, code=2)
    assert out == ""
    assert sentence in error
    assert len(error.splitlines()) == 1


def test_a_damaged_file_is_used_as_far_as_it_goes(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest of a file whose last line is cut off, with a note."""
    session.write_bytes(session.read_bytes() + b'{"resourceSpans": [{"reso')
    out, _ = said(capsys, str(session))
    assert out.startswith("1. launch_bound")
    assert "note: The file is truncated" in out


def test_a_file_without_requests_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no error."""
    make(tmp_path / "session.jsonl", Run(requests=0, readings=[use(0.1)]))
    out, _ = said(capsys, str(tmp_path / "session.jsonl"))
    assert out.startswith("no request of an instrumented model is in the recording")


def test_the_text_report_has_the_causes(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before memory, after the operations."""
    assert main(["report", str(session), "--text"]) == 0
    out: Any = capsys.readouterr().out
    assert "why it takes its time ('inferspan explain' has more):\n1. launch_bound" in out
