"""Session files of one process, one after the other and side by side: each has what was recorded for it. Each test has its own process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import inferspan
from inferspan import semconv
from tests.support.programs import elsewhere

A, B = "a.jsonl", "b.jsonl"


def _run(name: str, file: Path | None, **options: Any) -> None:
    """One request of a new model of this name."""
    model = torch.nn.Linear(3, 2)
    with inferspan.instrument(model, session_file=None if file is None else str(file), model_name=name, **options):
        model(torch.ones(1, 3))


def _parts(path: Path, signal: str, scope: str, item: str) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        for resource in json.loads(line).get(signal, ()):
            for found in resource[scope]:
                yield from found[item]


def _spans(path: Path) -> list[str]:
    """Names of the spans in a file."""
    return sorted(span["name"] for span in _parts(path, "resourceSpans", "scopeSpans", "spans"))


def _counted(path: Path) -> list[int]:
    """Requests by the metrics of a file, of each export."""
    metrics = _parts(path, "resourceMetrics", "scopeMetrics", "metrics")
    points = [metric["histogram"]["dataPoints"] for metric in metrics if metric["name"] == semconv.M_FORWARD_DURATION]
    return [sum(int(point["count"]) for point in found) for found in points]


def _writers() -> list[str]:
    """Names of the threads that serve session files."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("Otel") or thread.name.endswith("-file"))


def _one_after_the_other(folder: Path) -> tuple[list[str], list[str]]:
    _run("first", folder / A)
    before = _writers()
    for number in range(3):
        _run(f"between {number}", folder / f"{number}.jsonl")
    _run("second", folder / B)
    assert inferspan.flush()
    deadline = time.monotonic() + 30
    while len(_writers()) > len(before) and time.monotonic() < deadline:  # they have been told to end
        time.sleep(0.05)
    return before, _writers()


def test_a_second_file_has_only_what_was_recorded_for_it(tmp_path: Path) -> None:
    """Spans and metrics of a request are in the file of its handle and in no other, and no thread of a closed file is left."""
    before, after = elsewhere(_one_after_the_other, tmp_path)
    assert _spans(tmp_path / A) == ["forward first"]
    assert _spans(tmp_path / B) == ["forward second"]
    assert set(_counted(tmp_path / A)) == {1}
    assert set(_counted(tmp_path / B)) == {1}
    assert len(before) == 6
    assert after == before


def _again_and_without(folder: Path) -> None:
    _run("first", folder / A)
    _run("elsewhere", folder / B)
    with trace.get_tracer("program").start_as_current_span("around"):
        _run("again", folder / A)
    _run("nowhere", None)
    assert inferspan.flush()


def test_a_file_goes_on_when_it_is_named_again(tmp_path: Path) -> None:
    """The program's span around a request is in its file; the file goes on for a later handle, and not for one without a file."""
    elsewhere(_again_and_without, tmp_path)
    assert _spans(tmp_path / A) == ["around", "forward again", "forward first"]
    assert _spans(tmp_path / B) == ["forward elsewhere"]


def _side_by_side(folder: Path) -> None:
    one, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    with inferspan.instrument(one, session_file=str(folder / A), model_name="one"):
        with inferspan.instrument(other, session_file=str(folder / B), model_name="other"):
            one(torch.ones(1, 3))
            other(torch.ones(1, 3))
        _run("third", folder / "c.jsonl")
    assert inferspan.flush()


def test_files_that_are_open_together_have_the_same(tmp_path: Path) -> None:
    """A process has one pipeline for a signal: while two files are open, each gets all requests, and one goes on alone."""
    elsewhere(_side_by_side, tmp_path)
    assert _spans(tmp_path / A) == ["forward one", "forward other", "forward third"]
    assert _spans(tmp_path / B) == ["forward one", "forward other"]


def _given(folder: Path) -> list[bool]:
    provider = TracerProvider()
    _run("first", folder / A, tracer_provider=provider)
    _run("second", folder / B, tracer_provider=provider)
    return [inferspan.flush(), provider.force_flush()]


def test_a_given_provider_is_left_as_well(tmp_path: Path) -> None:
    """Of a provider of the program the first file gets nothing more, and its flush succeeds."""
    assert elsewhere(_given, tmp_path) == [True, True]
    assert _spans(tmp_path / A) == ["forward first"]
    assert _spans(tmp_path / B) == ["forward second"]


def _of_the_process(folder: Path) -> None:
    inferspan.configure(session_file=str(folder / A))
    _run("first", folder / A)
    _run("second", folder / B)
    assert inferspan.flush()


def test_a_configured_file_has_everything(tmp_path: Path) -> None:
    """A file that the program has configured is not that of a handle."""
    elsewhere(_of_the_process, tmp_path)
    assert _spans(tmp_path / A) == ["forward first", "forward second"]
    assert _spans(tmp_path / B) == ["forward second"]


def _still_running(folder: Path) -> list[str]:
    model, handles = torch.nn.Sequential(torch.nn.Linear(3, 2)), list[inferspan.Handle]()

    def leave(*_: object) -> None:
        while handles:
            handles.pop().uninstrument()
            inferspan.instrument(torch.nn.Linear(2, 2), session_file=str(folder / B))

    model[0].register_forward_hook(leave)
    handles.append(inferspan.instrument(model, session_file=str(folder / A), model_name="first"))
    model(torch.ones(1, 3))
    assert inferspan.flush()
    return _spans(folder / A)


def test_a_request_that_runs_while_another_file_begins(tmp_path: Path) -> None:
    """It is written to the file that it began with, although its handle is closed."""
    assert "forward first" in elsewhere(_still_running, tmp_path)
