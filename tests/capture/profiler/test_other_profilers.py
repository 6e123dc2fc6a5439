"""Windows while the program has a profiler of its own: neither ends the other's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from tests.capture.profiler.windows import Blocks, profiled
from tests.cases.telemetry import Telemetry


def test_profiler_of_the_program_around_the_window(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """While the program profiles, nothing is profiled by us, one line says so, and the program's profile is whole."""
    model, x = Blocks(), torch.ones(2, 8)
    handle = telemetry.instrument(model)
    with profile(activities=[ProfilerActivity.CPU]) as own, handle.profile(steps=2) as window:
        model(x)
        model(x)
    assert [event.name for event in own.events()].count("aten::relu") == 2
    assert window.steps == 0 and window.note == "another torch profiler is running or warming up in this process"
    assert len(caplog.records) == 1 and window.note in caplog.text
    assert not profiled(telemetry)
    telemetry.check(complaints=True)


def test_profiler_of_the_program_with_a_schedule(telemetry: Telemetry) -> None:
    """A profiler that is warming up counts as one that is running; before and after, passes are profiled by us."""
    model, x = Blocks(), torch.ones(2, 8)
    handle = telemetry.instrument(model)
    passes = []
    with (
        handle.profile(steps=10) as window,
        profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=1, repeat=1)) as own,
    ):
        for _ in range(4):
            model(x)
            passes.append(window.steps)
            own.step()
    assert passes == [1, 1, 1, 2]
    assert [event.name for event in own.events()].count("aten::relu") == 1
    telemetry.check(complaints=True)


def test_profiler_of_the_program_inside_a_pass(telemetry: Telemetry) -> None:
    """A profiler that the model itself starts works as without us; what we saw until then is kept."""
    own: list[Any] = []

    def nested() -> None:
        with profile(activities=[ProfilerActivity.CPU]) as inner:
            torch.ones(3).cos()
        own.append(inner)

    model = Blocks(nested)
    handle = telemetry.instrument(model, modules="all")
    with handle.profile(steps=1) as window:
        model(torch.ones(2, 8))
    assert "aten::cos" in {event.name for event in own[0].events()}
    assert [span.name for span in profiled(telemetry)] == ["aten::linear", "aten::relu"] and window.steps == 1
    telemetry.check()


def test_profiler_of_another_thread_waits(telemetry: Telemetry) -> None:
    """A profiler that another thread starts during a profiled pass begins when the pass is over, and sees all of its own."""
    own: list[Any] = []

    def other() -> None:
        with profile(activities=[ProfilerActivity.CPU]) as mine:
            torch.ones(3).cos()
        own.append(mine)

    thread = threading.Thread(target=other)

    def start() -> None:
        thread.start()
        thread.join(0.2)
        assert thread.is_alive(), "two profilers at once end the process"

    model = Blocks(start)
    handle = telemetry.instrument(model, modules="all")
    with handle.profile(steps=1):
        model(torch.ones(2, 8))
    thread.join()
    assert "aten::cos" in {event.name for event in own[0].events()}
    assert [span.name for span in profiled(telemetry)] == ["aten::linear", "aten::relu", "aten::linear"]
    telemetry.check()
