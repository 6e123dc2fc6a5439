"""Device times of whole requests, on a driver made of Python: where they stand, and what remains if something fails."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch
from torch import nn

from inferspan import guard, semconv
from inferspan.capture.device import events as cuda_events
from inferspan.capture.modules.recorder import IN_C
from inferspan.records import ModuleBatch, Phase, Step
from tests.capture.device.clocks import generate, target_of
from tests.capture.device.fake_cuda import FakeCuda
from tests.capture.test_target import Scope
from tests.cases import models


def _device_times(scope: Any) -> dict[Any, Any]:
    """Milliseconds by step number, phase, module (step, path) and ``None`` for the request."""
    found: dict[Any, Any] = {None: scope.ended[0].attributes.get(semconv.DEVICE_TIME)}
    for record in scope.records:
        if isinstance(record, ModuleBatch):
            paths = {row[0]: row[2].name for row in record.calls.rows()}
            found |= {(record.step, paths[number]): seconds for number, seconds in record.device.items()}
            assert len(record.device) in (0, len(paths))
        elif isinstance(record, Step):
            attributes = record.attributes() if callable(record.attributes) else record.attributes
            found[record.number] = attributes.get(semconv.DEVICE_TIME)
        elif isinstance(record, Phase):
            found[record.key.name] = record.attributes.get(semconv.DEVICE_TIME)
    return {key: None if value is None else round(value * 1e3, 3) for key, value in found.items()}


@pytest.mark.usefixtures("own_events")
def test_generate(cuda: FakeCuda) -> None:
    """Request, phases, steps and modules of a ``generate()`` have the device's times; the outputs are those without us."""
    cuda.tick = 1.0
    model = models.llama()
    expected = generate(model)
    target, recorder = target_of(model, modules=["model.layers.[01]"], every_step=True)
    assert torch.equal(generate(model), expected)
    (scope,) = recorder.scopes
    step = {0: 5, 1: 5, 2: 5}
    modules: dict[Any, float] = {(number, f"model.layers.{layer}"): 1 for number in range(3) for layer in range(2)}
    # Six boundaries a step, one where the first token is known, one at the end.
    assert _device_times(scope) == {None: 19, "prefill": 6, "decode": 13, **step, **modules}
    assert cuda.calls["cuEventRecord"] == 20
    assert cuda.calls["cuEventElapsedTime"] == 3 * 3 + 3
    target.close()
    assert cuda.alive == 0


def test_calls_of_the_driver_for_a_step(cuda: FakeCuda) -> None:
    """A step without modules costs two records and one question, however long the request; thinned steps cost nothing."""
    model = models.llama()
    target, recorder = target_of(model, modules="none", max_spans_per_trace=20)
    counts = []
    for tokens in (6, 12, 40):
        cuda.calls.clear()
        generate(model, tokens)
        steps = sum(isinstance(record, Step) for record in recorder.scopes[-1].records)
        assert cuda.calls["cuEventRecord"] == 2 * steps + 2 and cuda.calls["cuEventElapsedTime"] == steps + 3
        counts.append(steps)
    assert counts[:2] == [6, 12] and 15 < counts[2] <= 17
    target.close()
    target, recorder = target_of(model, steps="none")
    cuda.calls.clear()
    generate(model)
    # What is left: where the first pass begins and ends, the first token, the end; the request and its phases.
    assert (cuda.calls["cuEventRecord"], cuda.calls["cuEventElapsedTime"]) == (4, 3)
    assert set(_device_times(recorder.scopes[0])) == {None, "prefill", "decode"}
    target.close()


def test_long_generate(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are handed over while the request runs have their times by then."""
    monkeypatch.setattr("inferspan.capture.generate.step_rows.LIVE", 8)
    handed: list[tuple[int, Any]] = []

    def detail(scope: object, records: Any) -> None:
        for record in records:
            if isinstance(record, Step):
                attributes = record.attributes() if callable(record.attributes) else record.attributes
                handed.append((record.number, attributes.get(semconv.DEVICE_TIME)))

    monkeypatch.setattr(Scope, "detail", detail)
    cuda.tick = 1.0
    model = models.llama()
    target, _ = target_of(model, modules="none")
    generate(model, 20)
    assert handed == [(number, pytest.approx(1e-3)) for number in range(20)]
    target.close()


@pytest.mark.usefixtures("own_events")
def test_encoder_and_decoder(cuda: FakeCuda) -> None:
    """The encoder, which runs before the first step, is inside the prefill and the request."""
    cuda.tick = 1.0
    model = models.t5()
    target, recorder = target_of(model, modules=["encoder.block.[01]", "decoder.block.[01]"])
    generate(model, 1)
    times = _device_times(recorder.scopes[0])
    modules: dict[Any, float] = {(None, f"encoder.block.{n}"): 1 for n in range(2)} | {(0, f"decoder.block.{n}"): 1 for n in range(2)}
    assert times == {None: 11, "prefill": 10, 0: 5, **modules}
    target.close()


@pytest.mark.usefixtures("own_events")
def test_forward(cuda: FakeCuda) -> None:
    """A plain forward has the device's time on its span and its modules if the device is done when the call has been described."""
    cuda.tick = 1.0
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    target, recorder = target_of(model)
    model(torch.ones(1, 2))
    assert _device_times(recorder.scopes[0]) == {None: 5, (None, "0"): 1, (None, "1"): 1}
    cuda.reached = [0.0]
    model(torch.ones(1, 2))
    assert _device_times(recorder.scopes[1]) == {None: None}
    target.close()
    assert cuda.alive == 0


@pytest.mark.usefixtures("own_events")
def test_forward_that_fails(cuda: FakeCuda) -> None:
    """Module calls that an exception ended have no device time; those that returned have theirs."""
    cuda.tick = 1.0
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3))
    target, recorder = target_of(model)
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 2))
    (batch,) = (record for record in recorder.scopes[0].records if isinstance(record, ModuleBatch))
    assert dict(batch.device) == {0: pytest.approx(1e-3)}
    target.close()
    assert cuda.alive == 0


class Blocking(nn.Module):
    """Waits in the middle of its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.inside, self.go = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers, and a pause between them."""
        x = self.one(x)
        self.inside.set()
        assert self.go.wait(10)
        return self.other(x)


def test_forward_that_another_thread_detaches(cuda: FakeCuda) -> None:
    """A pass during which another thread calls ``uninstrument()`` goes on by itself: only its own thread asks the device."""
    model = Blocking()
    target, recorder = target_of(model)
    thread = threading.Thread(target=lambda: model(torch.ones(1, 2)))
    thread.start()
    own = {thread.ident}
    assert model.inside.wait(10)
    target.close()
    assert recorder.scopes[0].ended == []
    model.go.set()
    thread.join()
    assert len(recorder.scopes[0].ended) == 1
    assert cuda.recorders == own
    assert cuda.readers <= own


def test_switched_off(cuda: FakeCuda) -> None:
    """With ``device_time`` off the driver is not called at all, and nobody is told a time."""
    model = models.llama()
    target, recorder = target_of(model, device_time=False)
    generate(model)
    target.close()
    assert not cuda.calls and not any(_device_times(recorder.scopes[0]).values())


@pytest.mark.parametrize(
    "name",
    [
        "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuEventCreate", "cuEventRecord", "cuEventElapsedTime", "cuEventDestroy_v2",
        "cuThreadExchangeStreamCaptureMode",
    ],
)  # fmt: skip
def test_driver_that_refuses(cuda: FakeCuda, name: str, contained: list[guard.Swallowed], caplog: pytest.LogCaptureFixture) -> None:
    """Whichever call the driver refuses, the model's outputs and the rest of the telemetry are the same; the failure is said once."""
    model = models.llama()
    expected = generate(model, 6)
    target, recorder = target_of(model)
    cuda.status[name] = 700
    with caplog.at_level(logging.WARNING, "inferspan"):
        assert torch.equal(generate(model, 6), expected)
        target.close()
    assert len([record for record in recorder.scopes[0].records if isinstance(record, Step)]) == 6
    times = _device_times(recorder.scopes[0])
    assert not any(value for key, value in times.items()) or name == "cuEventDestroy_v2"
    assert {error.place for error in contained} <= {"device clock"}
    assert len(caplog.records) <= 1
    if name == "cuEventRecord":
        # What C code is refused, Python code tries again and tells of.
        tries = 2 if IN_C and cuda.pointers else 1
        assert cuda.calls[name] == cuda_events.FAILURES * tries
    if name in ("cuEventRecord", "cuEventElapsedTime"):
        assert cuda.alive == 0
    contained.clear()


def test_forked_request(cuda: FakeCuda) -> None:
    """A request that a fork has copied into the child goes on there without its clock."""
    model = models.llama()
    target, recorder = target_of(model)
    mlp = model.model.layers[0].mlp
    before = mlp.forward

    def forking(x: torch.Tensor) -> torch.Tensor:
        target.forked()
        cuda.calls.clear()
        return before(x)

    mlp.forward = forking
    generate(model)
    del mlp.forward
    assert not cuda.calls and len(recorder.scopes) == 1
    target.close()
    assert not cuda.calls
