"""What a recording holds of a program's events and stages: the session file, and the figures made of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import time
import torch
import inferspan

model = torch.nn.Linear(2, 2)
inferspan.instrument(model, session_file="s.jsonl", model_name="small")

@inferspan.event_on_return("loaded", lambda result: {"rows": result})
@inferspan.method("load")
def load():
    time.sleep(0.01)
    return 3

inferspan.event("alone", module="layers.1", count=2)
inferspan.event("nowhere")
with inferspan.session("nightly", tags={"mode": "t2v"}):
    load()
    load()
    inferspan.event("half", done=0.5)
    model(torch.zeros(1, 2))
inferspan.flush()
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON report of a program."""
    folder = tmp_path_factory.mktemp("recording")
    (folder / "program.py").write_text(PROGRAM)
    for command in (("program.py",), ("-m", "inferspan", "report", "s.jsonl", "--json", "r.json")):
        subprocess.run([sys.executable, *command], cwd=folder, check=True, timeout=300, capture_output=True)
    found: dict[str, Any] = json.loads(Path(folder, "r.json").read_text())
    return found


def test_events_are_in_the_list(report: dict[str, Any]) -> None:
    """Events of the program are in the flat list under their own names, with the span that they stand on and their attributes."""
    found = [(event["type"], event["module"], event["metadata"]) for event in report["events"] if event["type"] in ("loaded", "half")]
    assert [(kind, module) for kind, module, _ in found] == [("loaded", "load"), ("loaded", "load"), ("half", "session nightly")]
    assert [metadata.get("rows", metadata.get("done")) for _, _, metadata in found] == [3, 3, 0.5]
    assert {metadata["inferspan.session.tag.mode"] for _, _, metadata in found} == {"t2v"}


def test_events_of_their_own_are_in_the_list(report: dict[str, Any]) -> None:
    """Events that stand on no span are log records in the file, and in the list with their attributes; one without a module has none."""
    found = {event["type"]: event for event in report["events"] if event["type"] in ("alone", "nowhere")}
    assert (found["alone"]["module"], found["alone"]["metadata"]["count"]) == ("layers.1", 2)
    assert (found["nowhere"]["module"], found["nowhere"]["metadata"], found["nowhere"]["duration"]) == (None, {}, None)


def test_stages_are_counted(report: dict[str, Any]) -> None:
    """Calls of a decorated function are an operation with count, times and memory."""
    (load,) = [one for one in report["statistics"]["operations"] if one["name"] == "load"]
    assert (load["kind"], load["count"]) == ("stage", 2)
    assert load["total_duration"] >= 0.02
    assert isinstance(load["total_memory_delta"], int)
