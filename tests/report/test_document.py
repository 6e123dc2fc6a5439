"""The JSON report: its schema, its events and summary, and that the page has the same figures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import write
from inferspan import semconv
from inferspan.cli import main
from inferspan.report.figures.document import document, encoded
from inferspan.report.figures.events import FIELDS
from inferspan.report.html import render
from inferspan.report.session import read_session, read_sessions
from tests.report.conftest import START, add_generate, otlp_attributes

SCHEMA_FILE = Path(__file__).parents[2] / "src" / "inferspan" / "report" / "assets" / "report.schema.json"


def report_of(path: Path) -> Any:
    """The JSON report of a file, as the command writes it."""
    output = path.with_suffix(".report.json")
    assert main(["report", str(path), "--json", str(output)]) == 0
    return json.loads(output.read_text())


def check(found: Any) -> None:
    """Raise unless a report follows the schema."""
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text())).validate(found)


def test_a_report_follows_its_schema(session_path: Path) -> None:
    """Every key is there, and no value has another form."""
    found = report_of(session_path)
    check(found)
    assert found["schema"] == 1
    assert found["session"]["files"] == ["session.jsonl"]
    assert found["suggestions"] == []


def test_the_schema_refuses_other_forms(session_path: Path) -> None:
    """It is a check: an operation without its count, or text for seconds, does not pass."""
    jsonschema = pytest.importorskip("jsonschema")
    found = report_of(session_path)
    del found["statistics"]["operations"][0]["count"]
    with pytest.raises(jsonschema.ValidationError, match="count"):
        check(found)


def test_events_come_in_order_of_time(session_path: Path) -> None:
    """One flat list with the same keys in each; a generation begins, makes its steps and ends."""
    events = report_of(session_path)["events"]
    assert {tuple(event) for event in events} == {FIELDS}
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)
    first = [event["type"] for event in events if event["type"] not in ("module_start", "module_end", "error")][:16]
    assert first == [
        "generation_start", "generation_step", "forward_pass", "token_generation", "step_complete", "generation_step", "forward_pass",
        "token_generation", "step_complete", "generation_step", "forward_pass", "token_generation", "step_complete", "generation_end",
        "generation_complete", "generation_start",
    ]  # fmt: skip
    assert next(event for event in events if event["type"] == "generation_start")["metadata"]["model"] == "tiny/model"


def test_an_event_has_what_its_span_says(session_path: Path) -> None:
    """Times are seconds since the recording began, and captured tokens stand on the event that made them."""
    events = report_of(session_path)["events"]
    tokens = [event for event in events if event["type"] == "token_generation"]
    assert len(tokens) == 8
    assert tokens[0]["metadata"] == {"step": 0, "token_ids": [100], "texts": [" word0"], "logprob": -0.1, "entropy": 0.5, "top1_probability": 0.9}
    layer = next(event for event in events if event["type"] == "module_end" and event["module"] == "model.layers.0")
    assert layer["output_shapes"] == ["1x12x64"]
    assert layer["duration"] == pytest.approx(0.008)
    end = next(event for event in events if event["type"] == "generation_end")
    assert end["metadata"] == {"reason": ["length"], "step": 2}
    error = next(event for event in events if event["type"] == "error")
    assert error["metadata"] == {"exception": "ValueError", "message": "too long"}


def test_a_failed_generation_is_not_complete(recording: Any, fail: Callable[..., str], tmp_path: Path) -> None:
    """It ends with its reason and an error, with what there was until then."""
    fail(recording, 0)
    types = [event["type"] for event in report_of(recording.write(tmp_path / "session.jsonl"))["events"]]
    assert sorted(types) == ["error", "generation_end", "generation_start"]


def test_own_events_and_stages_are_events(recording: Any, tmp_path: Path) -> None:
    """An event of the program has its own name as type and its attributes as metadata."""
    stage = {semconv.STAGE_SELF_TIME: 0.5, semconv.STAGE_NAME: "part"}
    recording.span("part", 0, 10, trace=recording.trace(), attributes=stage)
    own = {"name": "cache_warm", "timeUnixNano": str(START + 5_000_000), "attributes": otlp_attributes({"entries": 3})}
    recording.spans[0]["events"] = [own]
    events = report_of(recording.write(tmp_path / "session.jsonl"))["events"]
    assert [(event["type"], event["timestamp"]) for event in events] == [("stage_start", 0.0), ("cache_warm", 0.005), ("stage_end", 0.01)]
    assert events[1]["metadata"] == {"entries": 3}


def test_an_own_event_about_a_module_stands_at_its_path(recording: Any, tmp_path: Path) -> None:
    """``inferspan.event(..., module=...)`` stands on the span around it, and is about the module."""
    add_generate(recording, 0, tokens=1)
    attributes = otlp_attributes({semconv.MODULE_NAME: "layers.3", semconv.MODULE_TYPE: "Linear"})
    recording.spans[0]["events"] = [{"name": "swapped", "timeUnixNano": str(START), "attributes": attributes}]
    events = report_of(recording.write(tmp_path / "session.jsonl"))["events"]
    assert [event["module"] for event in events if event["type"] == "swapped"] == ["layers.3"]


def test_an_event_alone_has_its_time(recording: Any, tmp_path: Path) -> None:
    """Events of the program on no span count for the beginning and the end of the recording, and have no module."""
    recording.span("forward tiny", 10, 5, trace=recording.trace())
    path = recording.write(tmp_path / "session.jsonl")
    records = [{"eventName": "cache_warm", "timeUnixNano": str(START + ms * 1_000_000)} for ms in (0, 40)]
    line = {"resourceLogs": [{"scopeLogs": [{"scope": {"name": semconv.SCOPE}, "logRecords": records}]}]}
    path.write_text(path.read_text() + json.dumps(line) + "\n")
    found = report_of(path)
    check(found)
    assert [(event["type"], event["timestamp"], event["module"]) for event in found["events"]] == [
        ("cache_warm", 0.0, None), ("forward_pass", 0.01, "forward tiny"), ("cache_warm", 0.04, None),
    ]  # fmt: skip
    assert found["summary"]["total_duration"] == 0.04


def test_a_model_without_audio_this_time_says_so(recording: Any, tmp_path: Path) -> None:
    """Inputs of stages have their shapes; a request without audio to a model that has had some has an input without a shape."""
    for at, heard in ((0, True), (50, False)):
        trace = recording.trace()
        request = recording.span("chat m", at, 20, trace=trace, attributes={semconv.OPERATION_NAME: "chat", semconv.REQUEST_MODEL: "m"})
        if heard:
            shapes = {semconv.STAGE_NAME: "audio_encode", semconv.INPUT_SHAPES: ["1x80x3000"]}
            recording.span("audio_encode", at, 5, trace=trace, parent=request, attributes=shapes)
    events = report_of(recording.write(tmp_path / "session.jsonl"))["events"]
    assert [event["input_shapes"] for event in events if event["type"] == "audio_input"] == [["1x80x3000"], None]


def test_a_model_that_takes_audio_says_so_without_any(recording: Any, tmp_path: Path) -> None:
    """The model's modalities tell that audio is lacking, also where no request has had any; a model of text has no such input."""
    for model, taken in (("hears", ["text", "audio"]), ("reads", None)):
        attributes: dict[str, Any] = {semconv.OPERATION_NAME: "chat", semconv.REQUEST_MODEL: model}
        attributes |= {semconv.MODEL_MODALITIES: taken} if taken else {}
        recording.span(f"chat {model}", 0, 20, trace=recording.trace(), attributes=attributes)
    events = report_of(recording.write(tmp_path / "session.jsonl"))["events"]
    assert [event["input_shapes"] for event in events if event["type"] == "audio_input"] == [None]


def test_the_summary_counts_events_and_times(session_path: Path) -> None:
    """Events by type, seconds by module with what is inside and the own ones beside it, the largest first."""
    found = report_of(session_path)
    summary = found["summary"]
    assert summary["total_events"] == len(found["events"]) == sum(summary["event_types"].values())
    assert summary["event_types"]["module_start"] == 16
    assert list(summary["module_times"].values()) == sorted(summary["module_times"].values(), reverse=True)
    assert summary["module_times"]["model.layers.0"] == pytest.approx(0.024)
    assert summary["module_details"]["model.layers.0"] == {"self": pytest.approx(0.012), "calls": 4, "kind": "module", "clock": "host"}
    assert summary["total_duration"] == pytest.approx(0.192)
    assert summary["steps"] == {"recorded": 8, "with_modules": 4}


def test_an_empty_recording_has_an_empty_summary(recording: Any, tmp_path: Path) -> None:
    """A file with metrics only has no events, and still follows the schema."""
    recording.metric("m", "gauge", "By", [{"asDouble": 1.0, "timeUnixNano": str(START)}])
    found = report_of(recording.write(tmp_path / "session.jsonl"))
    check(found)
    assert (found["summary"], found["events"]) == ({}, [])


def test_spans_that_were_not_kept_are_counted(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """Over the memory of a session events are left out, and the summary counts them as if they were there."""
    for number in range(20):
        generate(recording, number * 100)
    path = recording.write(tmp_path / "session.jsonl")
    whole, part = (document(read_session(path, **room)) for room in ({}, {"room": 2 * path.stat().st_size + 50_000}))
    assert part["events_left_out"] > 0
    assert len(part["events"]) < len(whole["events"])
    assert part["summary"]["event_types"]["module_end"] == whole["summary"]["event_types"]["module_end"]
    assert part["statistics"] == whole["statistics"]


def test_metrics_have_statistics_and_points(recording: Any, tmp_path: Path) -> None:
    """Gauges have extremes, mean and percentiles of all points, counters their total, and points their time since the start."""
    recording.span("forward tiny", 0, 1, trace=recording.trace())
    points = [{"asInt": str(number), "timeUnixNano": str(START + number * 10**9)} for number in range(1_000)]
    recording.metric("g", "gauge", "By", points)
    recording.metric("c", "sum", "1", points)
    recording.metrics[-1]["sum"]["isMonotonic"] = True
    found = report_of(recording.write(tmp_path / "session.jsonl"))
    check(found)
    counter, gauge = found["statistics"]["metrics"]
    assert (counter["count"], counter["total"], "max" in counter) == (1_000, 999, False)
    assert (gauge["count"], gauge["min"], gauge["max"], gauge["average"]) == (1_000, 0, 999, 499.5)
    assert gauge["p95"] == pytest.approx(949, rel=0.02)
    assert found["timeline"][0]["points"][-1] == [999.0, 999]


def test_page_and_json_have_the_same_figures(session_path: Path) -> None:
    """One call writes both; what the page holds as data is what the JSON report says."""
    page, figures = session_path.with_suffix(".html"), session_path.with_name("figures.json")
    assert main(["report", str(session_path), "-o", str(page), "--json", str(figures)]) == 0
    found = json.loads(figures.read_text())
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])  # type: ignore[index]
    assert data["operations"] == found["statistics"]["operations"]
    for key in ("session", "system", "phases", "summary", "suggestions", "bottlenecks", "analysis"):
        assert data[key] == found[key], key
    assert data["totals"] == found["session"]["totals"]
    rows = [{key: value for key, value in request["row"].items() if key != "start_ns"} for request in data["requests"]]
    assert rows == [{key: request[key] for key in rows[0]} for request in found["requests"]]


def test_files_of_several_processes_make_one_report(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """A folder stands for the files in it; requests name their process."""
    generate(recording, 0)
    recording.write(tmp_path / "a.jsonl")
    recording.spans.clear()
    generate(recording, 50)
    recording.write(tmp_path / "b.jsonl")
    (tmp_path / "old-report.json").write_text('{"schema": 1}')
    output = tmp_path / "out.json"
    assert main(["report", str(tmp_path), "--json", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["session"]["files"] == ["a.jsonl", "b.jsonl"]
    assert [request["process"] for request in found["requests"]] == ["tests #1", "tests #2"]


def test_pieces_are_the_whole_text(session_path: Path) -> None:
    """What is written piece by piece is one JSON object."""
    found = document(read_sessions([session_path]))
    text = "".join(encoded(found))
    assert json.loads(text)["events"] == list(found["events"])


def test_the_analysis_of_each_request_is_there(recording: Any, tmp_path: Path) -> None:
    """What stands on the span has its short names, and warnings are counted by kind; without any there is no analysis."""
    attributes = {
        semconv.OUTPUT_TOKENS: 40, semconv.ANALYSIS_UNIQUE_TOKENS: 4, semconv.ANALYSIS_REPETITION_RATE: 0.9,
        semconv.ANALYSIS_LOOP["period"]: 4, semconv.ANALYSIS_CONFIDENCE["average"]: 0.4, semconv.ANALYSIS_COMMON_IDS: [7, 8],
        semconv.ANALYSIS_COMMON_COUNTS: [20, 10], semconv.ANALYSIS_COMMON_TEXTS: [" a", " b"], semconv.HEALTH_KINDS: ["low", "loop"],
    }  # fmt: skip
    recording.span("chat m", 0, 10, trace=recording.trace(), attributes=attributes)
    recording.span("chat m", 20, 10, trace=recording.trace(), attributes={semconv.OUTPUT_TOKENS: 3})
    found = report_of(recording.write(tmp_path / "session.jsonl"))
    check(found)
    assert found["analysis"]["warnings"] == {"loop": 1, "low": 1}
    (request,) = found["analysis"]["requests"]
    assert request == {
        "number": 1, "total_tokens": 40, "unique_tokens": 4, "repetition_rate": 0.9, "loop": {"period": 4}, "confidence": {"avg": 0.4},
        "most_common": [{"id": 7, "text": " a", "count": 20}, {"id": 8, "text": " b", "count": 10}], "warnings": ["low", "loop"],
    }  # fmt: skip
    assert found["requests"][0]["notes"] == ["low", "loop"]


def test_many_spans_are_bounded(tmp_path: Path) -> None:
    """Memory and page do not grow with the file: spans kept, boxes on the page and size of the page have a bound; figures cover all."""
    path = tmp_path / "session.jsonl"
    written = write(path, 30_000)
    session = read_session(path, room=2_000_000)
    kept = sum(session.tally.levels.values()) - session.left_out.spans
    assert kept < 2_000
    assert session.tally.levels.total() == written
    assert len(session.requests) == written // (64 * 97 + 64 + 3) + 1
    page = render(session)
    assert len(page) < 1_500_000
    module = {row.name: row.count for row in session.tally.operations.rows(["module"])}
    assert module["model.layers.31.mlp"] == 64 * len(session.requests)
