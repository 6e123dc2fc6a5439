"""Memory in reports: the figures of the handle, events of steps, text, and the page with its curve."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import inferspan
from inferspan.cli import main
from inferspan.report.session import read_session
from tests.cases import models
from tests.report.test_document import check, report_of
from tests.report.test_page_use import BROWSER, used
from tests.summaries.conftest import file, record  # noqa: F401

from .fake_allocator import FakeAllocator, Holds, allocator_of

HIDDEN = torch.ones(2, 3)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAllocator]:
    """The allocator of cuda:0, on which every model is."""
    yield from allocator_of(monkeypatch)


def _runs_out() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB.")


class _Fails(nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        _runs_out()
        return hidden


@pytest.fixture
def decoder(record: Callable[..., inferspan.Handle], allocator: FakeAllocator) -> inferspan.Handle:  # noqa: F811
    """A generation of five steps, each of which keeps 50 bytes."""
    model = models.llama()
    model.lm_head.register_forward_hook(lambda *_: allocator.take(50))
    handle = record(model, memory="layers")
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=5, min_new_tokens=5)
    handle.flush()
    return handle


def test_the_report_has_the_figures_of_the_handle(decoder: inferspan.Handle, file: Path) -> None:  # noqa: F811
    """Peak, modules with sums, and rankings; the report follows its schema."""
    found = report_of(file)
    check(found)
    expected = decoder.memory().as_dict()
    assert {one["readings"] for one in expected["modules"]} == {5}
    assert found["memory"] == {**expected, "device": found["memory"]["device"]}


def test_each_step_is_an_event(decoder: inferspan.Handle, file: Path) -> None:  # noqa: F811
    """Allocated, reserved and peak at its start, with the time; the request has its own two."""
    events = [event for event in report_of(file)["events"] if event["type"] == "memory_usage"]
    steps = [event["metadata"] for event in events if "step" in event["metadata"]]
    assert steps == [{"step": index, "allocated": 1000 + 50 * index, "reserved": 8000, "peak": 5000} for index in range(5)]
    assert len(events) == 7
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)


def test_the_handle_counts_the_same_events(decoder: inferspan.Handle, file: Path) -> None:  # noqa: F811
    """As the report does."""
    assert decoder.summary().event_types["memory_usage"] == 7
    assert report_of(file)["summary"]["event_types"]["memory_usage"] == 7


def test_the_text_has_the_rankings(decoder: inferspan.Handle, file: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    """``inferspan report --text`` prints what the handle prints, but for the name of the device."""
    assert main(["report", str(file), "--text"]) == 0
    printed = capsys.readouterr().out.splitlines()
    for line in str(decoder.memory()).splitlines()[1:]:
        assert line in printed


def test_shortages_are_in_report_and_text(
    record: Callable[..., inferspan.Handle], allocator: FakeAllocator, file: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:
    """With module, shapes and bytes; the event of the request is one of the report."""
    model = nn.Sequential(Holds(allocator, 0, 5), _Fails())
    handle = record(model)
    with pytest.raises(torch.OutOfMemoryError):
        model(HIDDEN)
    handle.flush()
    (event,) = [event for event in report_of(file)["events"] if event["type"] == "inferspan.out_of_memory"]
    assert event["module"] == "1"
    assert event["metadata"]["inferspan.oom.requested"] == 64 << 20
    assert main(["report", str(file), "--text"]) == 0
    told = "  out of memory: forward Sequential, 1 (2x3), 67,108,864 bytes could not be allocated"
    assert told in capsys.readouterr().out.splitlines()


def test_a_run_without_the_setting_has_no_figures(record: Callable[..., inferspan.Handle], file: Path) -> None:  # noqa: F811
    """The key is there, and empty."""
    model = nn.Linear(3, 3)
    handle = record(model)
    model(HIDDEN)
    handle.flush()
    found = report_of(file)
    check(found)
    assert found["memory"] == {}


def test_an_event_that_cannot_be_read_is_passed_over(decoder: inferspan.Handle, file: Path) -> None:  # noqa: F811
    """Columns of other lengths, texts and numbers that are not finite break nothing."""
    whole = report_of(file)["memory"]["modules"]
    text = file.read_text().replace('"inferspan.memory.module.rise"', '"other"')
    file.write_text(text)
    assert report_of(file)["memory"]["modules"] == []
    file.write_text(text.replace('"other"', '"inferspan.memory.module.rise"'))
    assert report_of(file)["memory"]["modules"] == whole


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_page_has_rankings_and_a_curve(decoder: inferspan.Handle, file: Path, tmp_path: Path) -> None:  # noqa: F811
    """Five modules by each of three rankings, the peak in GiB, and a line over the steps of the request."""
    script = """
    const section = document.getElementById("memory").nextElementSibling;
    said.push(section.querySelectorAll("table").length, section.querySelectorAll("tbody tr").length, section.textContent.includes("0.00 GiB"));
    const title = [...document.querySelectorAll("#request h3")].find((head) => head.textContent === "Memory over the steps");
    said.push([...title.nextElementSibling.querySelectorAll("path")].map((path) => path.getAttribute("d").split("L").length));
    """
    assert used([file], tmp_path, script) == [3, 15, True, [10, 10]]


def test_resident_memory_of_a_cpu_model(record: Callable[..., inferspan.Handle], file: Path) -> None:  # noqa: F811
    """The peak and the note are those of the handle."""
    handle = record(model := models.llama(), memory="layers")
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=3, min_new_tokens=3)
    handle.flush()
    found = report_of(file)
    check(found)
    assert found["memory"] == json.loads(json.dumps(handle.memory().as_dict()))
    assert found["memory"]["note"] == "modules: no allocator to ask on a CPU model"
    assert len(read_session(file).requests) == 1
