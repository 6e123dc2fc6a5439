"""Reports that a program makes by itself: at its end, however it comes, and at the end of a session."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inferspan.report.output.automatic import AutomaticReports
from inferspan.settings import Settings, SettingsError

PROGRAM = """
import os, signal, sys, time
import torch
import inferspan

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
inferspan.instrument(model, modules="all", report="both", report_dir=sys.argv[2], nvml=False, exit_timeout=120)
model(torch.zeros(2, 8))
end = sys.argv[1]
if end == "exception":
    raise ValueError("an error of the program")
if end == "exit":
    sys.exit(7)
if end == "SIGTERM":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
if end == "Ctrl-C":
    signal.raise_signal(signal.SIGINT)
"""
SESSIONS = """
import sys
import torch
import inferspan

model = torch.nn.Linear(8, 16)
inferspan.instrument(model, report="json", report_dir=sys.argv[1], nvml=False, session_file=sys.argv[1] + "/kept.jsonl")
for name in ("first run/1", "second"):
    with inferspan.session(name, tags={"mode": "t2v"}):
        with inferspan.session("inner"):
            model(torch.zeros(2, 8))
"""


def run(program: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    ("end", "code"), [("return", 0), ("exception", 1), ("exit", 7), ("SIGTERM", -signal.SIGTERM), ("Ctrl-C", -signal.SIGINT)]
)
def test_a_report_is_there_after_every_end(end: str, code: int, tmp_path: Path) -> None:
    """Both forms are written, nothing else is left in the folder, and the exit code is the program's own."""
    done = run(PROGRAM, end, tmp_path / "made" / "reports")
    assert done.returncode == code, done.stderr
    files = sorted((tmp_path / "made" / "reports").iterdir())
    assert [path.suffix for path in files] == [".html", ".json"]
    found = json.loads(files[1].read_text())
    assert [request["kind"] for request in found["requests"]] == ["forward"]
    assert done.stdout == ""


def test_each_outermost_session_has_a_report(tmp_path: Path) -> None:
    """It is named after the session and has what ran inside; the end of the process adds nothing; the session file of the program stays."""
    done = run(SESSIONS, tmp_path, RANK="3", WORLD_SIZE="4", LOCAL_RANK="3")
    assert done.returncode == 0, done.stderr
    reports = sorted(path for path in tmp_path.iterdir() if path.suffix == ".json")
    assert [re.sub(r"\d{8}T\d{6}Z-[0-9a-f]{8}", "TIME-ID", path.name) for path in reports] == [
        "first-run-1-TIME-ID-rank3.json", "second-TIME-ID-rank3.json",
    ]  # fmt: skip
    found = [json.loads(path.read_text()) for path in reports]
    assert [len(report["requests"]) for report in found] == [1, 1]
    assert [report["session"]["sessions"][0]["name"] for report in found] == ["first run/1", "second"]
    assert found[0]["session"]["sessions"][0]["tags"] == {"mode": "t2v"}
    assert (tmp_path / "kept.jsonl").is_file()
    check_system(found[0]["system"][0])


LONG = """
import sys
import torch
import inferspan

model = torch.nn.Linear(8, 16)
inferspan.instrument(model, report="json", report_dir=sys.argv[1] + "/{rank}", nvml=False)
with inferspan.session("\u4f1a" * 200):
    model(torch.zeros(2, 8))
"""


def test_a_long_name_of_a_session_is_cut(tmp_path: Path) -> None:
    """File systems count bytes, of which a sign may have three or four; the folder has the rank in its name."""
    done = run(LONG, tmp_path, RANK="3", WORLD_SIZE="4", LOCAL_RANK="3")
    (report,) = (tmp_path / "3").iterdir()
    assert re.fullmatch(r"\u4f1a{53}-\d{8}T\d{6}Z-[0-9a-f]{8}-rank3\.json", report.name), done.stderr


def check_system(system: dict[str, object]) -> None:
    """The facts of the machine and the settings are there, and nothing of the user."""
    assert {"os", "python", "torch", "cores", "memory", "pid", "inferspan"} <= set(system)
    rows = system["settings"]
    assert isinstance(rows, list)
    settings = {row["name"]: (row["value"], row["source"]) for row in rows}
    assert settings["report"] == ("json", "program")
    assert settings["session_file"] == ("kept.jsonl", "program")
    assert settings["logits"] == (True, "default")
    text = json.dumps(system)
    assert str(Path.home()) not in text
    assert "import torch" not in text


def test_a_folder_that_cannot_be_written_is_told_at_start(tmp_path: Path) -> None:
    """As an argument it is an error; from the environment it is a warning, and no reports are made."""
    (tmp_path / "file").write_text("")
    reports = AutomaticReports(lambda _: True)
    with pytest.raises(SettingsError, match=r"no report can be written to .*name another folder with report_dir"):
        reports.prepare(Settings.resolve({"report": "html", "report_dir": tmp_path / "file"}, environ={}))


def test_a_folder_of_the_environment_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The environment alone never raises."""
    (tmp_path / "file").write_text("")
    variables = {"INFERSPAN_REPORT": "html", "INFERSPAN_REPORT_DIR": str(tmp_path / "file")}
    settings = AutomaticReports(lambda _: True).prepare(Settings.resolve(environ=variables))
    assert (settings.report, settings.session_file) == (None, None)
    assert "INFERSPAN_REPORT_DIR is ignored: no report can be written to" in caplog.text


def test_a_failure_at_the_end_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It names path and cause, raises nothing, and leaves the recording."""
    reports = AutomaticReports(lambda _: True)
    settings = reports.prepare(Settings.resolve({"report": "html", "report_dir": tmp_path}, environ={}))
    recording = Path(str(settings.session_file))
    recording.write_text("no telemetry\n")
    with caplog.at_level(logging.WARNING, "inferspan"):
        reports.process_ends()
    (line,) = caplog.messages
    assert line.startswith(f"inferspan cannot write report {tmp_path}: ")
    assert line.endswith(f"; the recording is kept in {recording}")
    assert recording.is_file()


def test_nothing_is_written_where_nothing_was_recorded(tmp_path: Path) -> None:
    """No request, no report."""
    reports = AutomaticReports(lambda _: True)
    reports.prepare(Settings.resolve({"report": "both", "report_dir": tmp_path}, environ={}))
    reports.process_ends()
    assert list(tmp_path.iterdir()) == []


def test_without_the_setting_nothing_changes(tmp_path: Path) -> None:
    """No session file appears."""
    settings = Settings.resolve({"report_dir": tmp_path}, environ={})
    assert AutomaticReports(lambda _: True).prepare(settings) is settings
