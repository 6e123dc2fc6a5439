"""Own time of steps of which only some have recorded modules; the medians of requests; events outside of requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.cli import main
from tests.report.conftest import otlp_attributes

EVENTS = """
import torch
import inferspan
inferspan.instrument(torch.nn.Linear(2, 2))
with inferspan.session("work"):
    inferspan.event("inside", n=1)
inferspan.event("outside", n=2)
"""


def report(recording: Any, folder: Path) -> dict[str, Any]:
    """The JSON report of a recording."""
    path = folder / "report.json"
    assert main(["report", str(recording.write(folder / "session.jsonl")), "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("late", [False, True])
def test_own_time_is_of_steps_with_modules(recording: Any, tmp_path: Path, late: bool) -> None:
    """Two of three steps have no modules: their time is not own time, in whatever order the spans come."""
    trace = recording.trace()
    request = recording.span("text_completion tiny", 0, 40, trace=trace)
    decode = recording.span("decode", 0, 30, trace=trace, parent=request, attributes={semconv.PHASE: "decode"})
    for number in range(3):
        step = recording.span("decode_step", 10 * number, 10, trace=trace, parent=decode, attributes={semconv.STEP_INDEX: number})
    recording.span("layer 0", 20, 6, trace=trace, parent=step, attributes={semconv.MODULE_NAME: "layers.0", semconv.MODULE_TYPE: "L"})
    if not late:
        recording.spans.reverse()
    rows = {row["name"]: row for row in report(recording, tmp_path)["statistics"]["operations"]}
    assert rows["decode_step"]["self_duration"] == pytest.approx(0.004)
    assert rows["decode_step"]["self_count"] == 1
    assert "self_count" not in rows["decode"]


def test_times_of_failed_requests_are_in_no_median(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """As in the metrics, so that a page has one p50 of the time to first token."""
    for number in range(2):
        generate(recording, number * 100, tokens=1, layers=1)
    failed = [span for span in recording.spans if "parentSpanId" not in span][1]
    failed["status"] = {"code": 2}
    failed["attributes"] = [item for item in failed["attributes"] if item["key"] != semconv.TTFT] + otlp_attributes({semconv.TTFT: 9.0})
    assert report(recording, tmp_path)["session"]["totals"]["ttft"] == pytest.approx([0.02, 0.02])


def test_events_outside_of_requests_are_on_the_page(tmp_path: Path) -> None:
    """Those of a session and those that stand alone, with their attributes, and the latter in the JSON report, too."""
    (tmp_path / "app.py").write_text(EVENTS)
    subprocess.run([sys.executable, "-m", "inferspan", "run", "--trace-output", "s.jsonl", "app.py"], cwd=tmp_path, check=True, timeout=120)
    assert main(["report", str(tmp_path / "s.jsonl"), "-o", str(tmp_path / "r.html"), "--json", str(tmp_path / "r.json")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert '["inside","session work",0,' in page
    assert '["outside","",0,' in page
    found = json.loads((tmp_path / "r.json").read_text())
    assert {event["type"]: event["module"] for event in found["events"] if event["type"] in ("inside", "outside")} == {
        "inside": "session work", "outside": None,
    }  # fmt: skip
