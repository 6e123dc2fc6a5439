"""Decode steps: what each of them costs in calls of ours, and that one unlike the last is described as what it is."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from torch import Tensor

import inferspan
from inferspan import semconv
from inferspan.capture.generate import step_logits
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.modules.recorder import IN_C
from tests.capture.device.fake_cuda import FakeCuda
from tests.capture.logits.fused_fakes import FakeKernel
from tests.cases import models
from tests.cases.telemetry import Telemetry

OURS = str(Path(inferspan.__file__).parent)
STEPS = range(70, 102)
"""Ordinary ones: the next sampled step is the 128th, and results are read in groups of which two are among them."""


def _calls_of_ours(model: Any) -> float:
    """Python calls of inferspan in one ordinary decode step, on average."""
    from transformers import StoppingCriteria

    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls[f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"] += 1

    class Between(StoppingCriteria):
        step = 0

        def __call__(self, input_ids: Tensor, scores: Tensor, **options: Any) -> Tensor:
            self.step += 1
            if self.step in (STEPS.start, STEPS.stop):
                sys.setprofile(note if self.step == STEPS.start else None)
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    before = sys.getprofile()
    try:
        with torch.no_grad():
            model.generate(models.prompt(1, 6), do_sample=False, max_new_tokens=110, min_new_tokens=110, stopping_criteria=[Between()])
    finally:
        sys.setprofile(before)
    assert calls["call.choose"] == len(STEPS)
    return sum(calls.values()) / len(STEPS)


@pytest.mark.parametrize(
    ("most", "settings"),
    [
        (23, {"capture_content": "SPAN_ONLY"}),
        (23, {}),
        (14, {"logits": False}),
        (20, {"steps": "sampled"}),  # two of them ask torch whether a mode of the program would see our operations
    ],
    ids=["likeliest tokens", "default", "no statistics", "sampled steps only"],
)
def test_calls_of_a_step(telemetry: Telemetry, most: int, settings: dict[str, Any]) -> None:
    """A decode step that is like the last one is noted in a few Python calls of ours, root hooks and statistics included."""
    model = models.llama()
    telemetry.instrument(model, **settings)
    assert _calls_of_ours(model) <= most
    telemetry.check()


def test_calls_of_a_step_that_is_not_sampled() -> None:
    """The clock of the tokens is all that is left."""
    telemetry = Telemetry(ALWAYS_OFF)
    model = models.llama()
    telemetry.instrument(model)
    assert _calls_of_ours(model) <= 13
    telemetry.close()


def test_calls_of_a_step_with_a_fused_kernel_and_device_times(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU adds: a kernel is launched, two events are recorded, and read in groups."""
    kernel, cuda = FakeKernel(), FakeCuda(pointers=True)
    fused = kernel.kernels()
    monkeypatch.setattr(step_logits, "LogitRing", functools.partial(LogitRing, fused=fused))
    cuda.install(monkeypatch)
    model = models.llama()
    telemetry.instrument(model)
    # As long as the one that is looked at: it makes the events that both need.
    model.generate(models.prompt(1, 6), max_new_tokens=110, min_new_tokens=110)
    fused.join(10)
    launched = kernel.launches
    assert _calls_of_ours(model) <= (37 if IN_C else 56)
    assert kernel.launches - launched == 110
    assert all(semconv.DEVICE_TIME in (step.attributes or {}) for step in telemetry.steps())
    telemetry.check()


@pytest.fixture
def steps_of(telemetry: Telemetry) -> Any:
    """Runs a decoding loop of its own and returns the attributes of its steps."""

    def run(widths: list[int], change: Any = lambda step, outputs: outputs) -> list[dict[str, Any]]:
        def loop(self: Any, inputs: Tensor, **_: Any) -> Tensor:
            from transformers import GenerationConfig, StoppingCriteriaList

            config = GenerationConfig(max_length=100)
            config._eos_token_tensor = None
            criteria = self._get_stopping_criteria(config, StoppingCriteriaList())
            ids, options = inputs, {"attention_mask": torch.ones_like(inputs), "use_cache": False}
            if "cache_position" in inspect.getsource(type(self)._update_model_kwargs_for_generation):  # transformers 4
                options["cache_position"] = torch.arange(inputs.shape[1])
            for step, width in enumerate(widths):
                given = self.prepare_inputs_for_generation(ids, **options)
                given["input_ids"] = ids[:, -width:]
                given.pop("cache_position", None)  # of another width
                outputs = change(step, self(**{**given, "attention_mask": None, "position_ids": None, "return_dict": True}))
                options = self._update_model_kwargs_for_generation(outputs, options)
                ids = torch.cat([ids, ids[:, :1]], 1)
                criteria(ids, None)
            return ids

        model = models.llama()
        model.__class__ = type("Looping", (type(model),), {"generate": loop})
        telemetry.instrument(model, modules="none")
        with torch.no_grad():
            model.generate(models.prompt(2, 6))
        telemetry.check()
        return [dict(step.attributes or {}) for step in telemetry.steps()]

    return run


def test_a_wider_step_in_between(steps_of: Any) -> None:
    """Each step has the width that it had."""
    widths = [6, 1, 1, 3, 1, 1]
    found = steps_of(widths)
    assert [step[semconv.STEP_TOKENS] for step in found] == widths
    assert [step[semconv.INPUT_SHAPES] for step in found] == [(f"2x{width}",) for width in widths]
    assert [step[semconv.SEQUENCE_LENGTH] for step in found] == [6, 7, 8, 9, 10, 11]
    assert all(semconv.LOGITS_ENTROPY in step for step in found)


def test_outputs_of_another_kind_in_between(steps_of: Any) -> None:
    """Steps whose outputs have no logits, logits of another type, or are no mapping, are steps all the same."""

    def change(step: int, outputs: Any) -> Any:
        if step == 3:
            outputs["logits"] = outputs["logits"].double()
        if step == 5:
            return {name: value for name, value in outputs.items() if name != "logits"}
        return {**outputs} if step == 7 else outputs

    found = steps_of([6, *[1] * 9], change)
    assert [step.get(semconv.OUTPUT_DTYPES) for step in found] == [
        ("float64",) if step == 3 else None if step == 5 else ("float32",) for step in range(10)
    ]
    assert [semconv.LOGITS_ENTROPY in step for step in found] == [step != 5 for step in range(10)]
    assert [step[semconv.STEP_TOKENS] for step in found] == [6, *[1] * 9]
