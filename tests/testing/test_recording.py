"""``inferspan.testing``: what a test records, and what it may rely on."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry import metrics, trace
from torch import Tensor, nn

import inferspan
from inferspan.cli import main
from inferspan.diff.compare import compare
from inferspan.report.session import read_session
from inferspan.samplers.process import samplers
from inferspan.settings import SettingsError
from inferspan.testing import CannotJudge, FakeGpu, Recording, assert_no_regression, fake_gpus, record
from tests.cases.telemetry import Telemetry
from tests.diff.recordings import noise, write
from tests.support.attached import attached

pytest_plugins = ["inferspan.testing.plugin"]
ROW = torch.ones(2, 4)


class Small(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = self.layer(value)
        return result


def test_requests_of_the_block_are_recorded() -> None:
    """With what is inside them, while the block runs and afterwards."""
    model = Small()
    with record(model, modules="all") as recording:
        model(ROW)
        assert len(recording.requests) == 1
        model(ROW)
    model(ROW)
    assert [request.span.name for request in recording.requests] == ["forward Small", "forward Small"]
    assert [span.name for span in recording.spans()] == 2 * ["forward Small", "layer"]
    assert len(recording.spans("forward Small")) == 2


def test_metrics_of_the_block_are_recorded() -> None:
    """The number of values of a histogram."""
    model = Small()
    with record(model) as recording:
        for _ in range(3):
            model(ROW)
    assert [count for _, count in recording.metric("inferspan.forward.duration")] == [3]


def test_nothing_is_recorded_without_a_call() -> None:
    """No request, and no error."""
    with record(Small()) as recording:
        pass
    assert recording.requests == []


def test_the_model_and_the_global_providers_are_left_alone() -> None:
    """After the block, and after one that raised."""
    model, before = Small(), (trace.get_tracer_provider(), metrics.get_meter_provider())

    def failing() -> None:
        with record(model):
            model(ROW)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        failing()
    assert attached(model) == {"slot": 0, "hooks": 0, "left": 0}
    assert (trace.get_tracer_provider(), metrics.get_meter_provider()) == before


def test_the_file_is_a_session_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the facts of the machine and the settings."""
    model, path = Small(), tmp_path / "s.jsonl"
    with record(model, path=path, modules="all"):
        model(ROW)
    (facts,) = read_session(path).systems.values()
    assert "python" in facts
    assert main(["report", str(path), "--text"]) == 0
    assert "forward" in capsys.readouterr().out


def test_a_temporary_file_goes_with_its_recording() -> None:
    """Nothing is left in the folder for temporary files."""
    model = Small()
    with record(model) as recording:
        model(ROW)
    folder = recording.path.parent
    assert folder.is_dir()
    del recording
    gc.collect()
    assert not folder.exists()


def test_a_model_that_is_instrumented_already_is_refused() -> None:
    """It is not recorded in two ways at once, and stays instrumented."""
    model = Small()
    handle = inferspan.instrument(model, auto_configure=False, nvml=False, host=False, allocator=False)
    with pytest.raises(SettingsError, match="instrumented already"), record(model):
        pass
    assert "detached" not in repr(handle)
    handle.uninstrument()


def test_the_random_stream_of_the_program_is_left_alone() -> None:
    """Neither Python's nor torch's."""
    model = Small()
    before = random.getstate(), torch.get_rng_state()
    with record(model) as recording:
        model(ROW)
        assert len(recording.requests) == 1
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_two_models_are_recorded_in_turns(inferspan_record: Callable[..., Recording]) -> None:
    """The fixture records both until the end of the test; the first request of each does not count."""
    base, new = Small(), Small()
    a, b = inferspan_record(base), inferspan_record(new)
    for _ in range(21):
        base(ROW)
        new(ROW)
    (diff,) = compare(a.session(), b.session()).groups
    assert (diff.title, len(diff.group.pairs)) == ("forward Small, 2x4", 20)
    assert a.path.parent == b.path.parent


def test_a_slow_down_fails_with_the_table(tmp_path: Path) -> None:
    """As ``inferspan diff`` prints it."""
    a = write(tmp_path / "a.jsonl", [0.1 * value for value in noise(60, 1)])
    b = write(tmp_path / "b.jsonl", [0.104 * value for value in noise(60, 2)])
    with pytest.raises(AssertionError, match=r"^REGRESSION \(gate 3 %\)\n  request of text_completion tiny, batch 1, 24 input tokens: \+"):
        assert_no_regression(a, b)


def test_alike_recordings_pass(tmp_path: Path) -> None:
    """The comparison comes back, for further questions."""
    a = write(tmp_path / "a.jsonl", [0.1 * value for value in noise(60, 1)])
    b = write(tmp_path / "b.jsonl", [0.1 * value for value in noise(60, 2)])
    assert assert_no_regression(a, str(b), gate=0.03).verdict == "fine"


def test_recordings_that_tell_nothing_do_not_pass(tmp_path: Path) -> None:
    """One request, other models, and files that are none."""
    a = write(tmp_path / "a.jsonl", [0.1 * value for value in noise(60, 1)])
    with pytest.raises(CannotJudge, match="too few requests"):
        assert_no_regression(a, write(tmp_path / "b.jsonl", [0.1]))
    with pytest.raises(CannotJudge, match="no model in common"):
        assert_no_regression(a, write(tmp_path / "c.jsonl", [0.1] * 20, model="large"))
    (tmp_path / "d.jsonl").write_text("broken\n")
    with pytest.raises(CannotJudge, match=r"d\.jsonl"):
        assert_no_regression(a, tmp_path / "d.jsonl")


@pytest.mark.parametrize("gate", ["x", 0, -1.0, "0%"])
def test_a_gate_that_is_none_is_a_value_error(tmp_path: Path, gate: str | float) -> None:
    """Before anything is said of the recordings."""
    a = write(tmp_path / "a.jsonl", noise(20, 1))
    with pytest.raises(ValueError, match="share"):
        assert_no_regression(a, write(tmp_path / "b.jsonl", noise(20, 2)), gate=gate)


def power(recording: Recording) -> list[float]:
    """Newest readings of the power of all GPUs, in watts."""
    return [value for _, value in recording.metric("hw.power")]


def test_readings_are_those_of_fake_gpus() -> None:
    """Each GPU by its UUID; what is ``None`` is absent."""
    with fake_gpus(FakeGpu("GPU-a", power=310.0), FakeGpu("GPU-b", power=None), driver="999.1"):
        model = Small()
        with record(model) as recording:
            model(ROW)
            wait(lambda: bool(power(recording)))
    ((attributes, watts),) = recording.metric("hw.power")
    assert (attributes["hw.id"], attributes["hw.driver_version"], watts) == ("GPU-a", "999.1", 310.0)
    assert sorted(row["hw.id"] for row, _ in recording.metric("hw.temperature")) == ["GPU-a", "GPU-b"]


def test_figures_of_fake_gpus_may_change(inferspan_gpus: Callable[..., tuple[FakeGpu, ...]]) -> None:
    """The next reading has them."""
    (gpu,) = inferspan_gpus()
    model = Small()
    with record(model, sampler_interval=1.0) as recording:
        wait(lambda: power(recording) == [300.0])
        gpu.power = 450.0
        wait(lambda: power(recording) == [450.0])


def test_fake_gpus_come_before_the_first_model() -> None:
    """Readings that run would not notice them."""
    with record(Small()), pytest.raises(RuntimeError, match="open fake_gpus"), fake_gpus():
        pass


def test_fake_gpus_come_before_a_generation_that_runs() -> None:
    """It has them read."""
    with inferspan.generation("engine"), pytest.raises(RuntimeError, match="open fake_gpus"), fake_gpus():
        pass


def test_generations_that_have_ended_do_not_keep_fake_gpus_out() -> None:
    """What they were recorded with would stay for the next one, and go on reading."""
    with inferspan.generation("engine"):
        pass
    with fake_gpus(FakeGpu("GPU-a", power=310.0)), record(Small()) as recording:
        wait(lambda: power(recording) == [310.0])


def test_generations_have_the_readings_of_fake_gpus(telemetry: Telemetry) -> None:
    """Also one that was made before them, and has not begun."""
    providers: dict[str, Any] = {"tracer_provider": telemetry.tracer_provider, "meter_provider": telemetry.meter_provider}
    made = inferspan.generation("engine", **providers)
    with fake_gpus(FakeGpu(power=310.0)), made:
        wait(lambda: [value for _, value in telemetry.metrics().get("hw.power", [])] == [310.0])
    with fake_gpus(FakeGpu(power=320.0)), inferspan.generation("engine", **providers):
        wait(lambda: [value for _, value in telemetry.metrics().get("hw.power", [])] == [320.0])
    assert len(telemetry.requests()) == 2


def test_fake_gpus_are_not_read_afterwards() -> None:
    """By what a generation was recorded with, which another model would share."""
    with fake_gpus(FakeGpu(power=310.0)), inferspan.generation("engine"):
        pass
    assert not samplers.running


def test_a_generation_of_earlier_settings_leaves_nothing_that_reads() -> None:
    """It was made before others closed what it is recorded with, at rest then, and begins afterwards."""
    made = inferspan.generation("engine", nvml=True)
    with fake_gpus():
        pass
    with inferspan.generation("engine", host=False):
        pass
    with made:
        pass
    with fake_gpus():
        assert not samplers.running


def test_collected_models_do_not_keep_fake_gpus_out() -> None:
    """Nobody has asked for the release of their readings."""
    model = Small()
    inferspan.instrument(model)
    del model
    gc.collect()
    with fake_gpus() as (gpu,):
        assert gpu.power == 300.0


def test_the_binding_is_back_after_fake_gpus() -> None:
    """Whatever it was."""
    import sys

    before = sys.modules.get("pynvml")
    with fake_gpus():
        assert sys.modules.get("pynvml") is not before
    assert sys.modules.get("pynvml") is before


def wait(happened: Callable[[], bool]) -> None:
    """Until something has happened, at most a minute."""
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until, "it has not happened within a minute"
        time.sleep(0.05)
