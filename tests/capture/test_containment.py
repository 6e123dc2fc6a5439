"""Errors of our own, put where they hurt: the program goes on with the same results, requests end, hooks come off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opentelemetry import trace
from torch import nn

from inferspan import guard
from inferspan.capture import budget, call, forward, recording, request, target
from inferspan.capture.device import energy, memory
from inferspan.capture.generate import call as generate_call
from inferspan.capture.generate import criteria as stopping
from inferspan.capture.generate import outcome, step_log, step_logits, step_modules, step_rows, usage, wrappers
from inferspan.capture.generate import step_attributes as step_facts
from inferspan.capture.logits import ring as logit_ring
from inferspan.capture.modules import device_rows, hook_pair, output_stats
from inferspan.capture.modules import hooks as module_hooks
from inferspan.capture.root import pair as root_pair
from tests.cases import models
from tests.cases.telemetry import Telemetry

pytestmark = pytest.mark.usefixtures("one_thread")

PLACES: list[tuple[Any, str]] = [
    (budget.Budget, "take_step"),
    (budget.Budget, "modules_allowed"),
    (budget.Budget, "spend"),
    (call.Call, "close_modules"),
    (call.Call, "hand_over"),
    (call.Call, "reach"),
    (device_rows.DeviceRows, "append"),
    (device_rows.DeviceRows, "read"),
    (energy, "RequestEnergy"),
    (forward, "Budget"),
    (root_pair, "close_stale"),
    (forward, "describe"),
    (forward, "shape_attributes"),
    (forward.ForwardCall, "_describe_end"),
    (generate_call, "describe_outcome"),
    (generate_call, "observe_criteria"),
    (generate_call, "reused_tokens"),
    (generate_call, "sequences_of"),
    (generate_call.GenerateCall, "begin_loop"),
    (generate_call.GenerateCall, "choose"),
    (generate_call.GenerateCall, "look_at_inputs"),
    (generate_call.GenerateCall, "end_pass"),
    (logit_ring.LogitRing, "append"),
    (logit_ring.LogitRing, "read"),
    (hook_pair, "describe"),
    (memory.MemoryMeter, "attributes"),
    (memory.MemoryMeter, "look"),
    (module_hooks.Observed, "attach"),
    (module_hooks.ModuleObservers, "acquire"),
    (module_hooks.ModuleObservers, "prepare"),
    (module_hooks.ModuleObservers, "release"),
    (output_stats.OutputStats, "append"),
    (output_stats.OutputStats, "read"),
    (step_facts.StepFacts, "_attributes"),
    (outcome, "_configuration"),
    (usage, "count_input"),
    (usage, "count_output"),
    (outcome, "kv_cache_bytes"),
    (recording, "Request"),
    (request, "MemoryMeter"),
    (request, "StepLog"),
    (request, "Compilations"),
    (request, "describe_end"),
    (request.Request, "begin_phase"),
    (request.Request, "end_phase"),
    (step_log, "describe_like"),
    (step_log.StepLog, "_pattern_of"),
    (step_log.StepLog, "begin"),
    (step_log.StepLog, "choose"),
    (step_log.StepLog, "close"),
    (step_log.StepLog, "prepare"),
    (step_log.StepLog, "token_known"),
    (step_logits, "LogitRing"),
    (step_logits.StepStatistics, "describe"),
    (step_logits.StepStatistics, "last_position"),
    (step_logits.StepStatistics, "take"),
    (step_modules.StepModules, "choose"),
    (step_rows.StepRows, "hand_over_some"),
    (step_modules.StepModules, "hand_over"),
    (stopping, "_observed_class"),
    (target.Target, "first_call"),
    (target.Target, "new_output_stats"),
    (generate_call, "GenerateCall"),
    (wrappers, "generate_arguments"),
    (wrappers, "main_input"),
    (wrappers, "pass_end"),
    (wrappers, "start_generate"),
]


def _run(model: Any) -> tuple[Any, Any]:
    with torch.no_grad():
        tokens = model.generate(models.prompt(2, 6), do_sample=False, max_new_tokens=5, min_new_tokens=5)
        return tokens, model(models.prompt(2, 6)).logits


def _hooks(model: nn.Module) -> int:
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())


def _always(*_: Any, **__: Any) -> Any:
    raise RuntimeError("ours")


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in PLACES])
@pytest.mark.parametrize("failing", [False, True], ids=["program works", "program fails"])
def test_failure_of_ours(
    telemetry: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
    contained: list[guard.Swallowed],
    owner: Any,
    name: str,
    failing: bool,
) -> None:
    """Results and the user's exception are the same, every span that began has ended, nothing is current, no hook is left."""
    model = models.llama()
    want = _run(model)
    handle = telemetry.instrument(model, output_stats=True)
    monkeypatch.setattr(owner, name, property(_always) if isinstance(getattr(owner, name), property) else _always)
    if failing:
        hook = model.model.layers[1].register_forward_hook(lambda *_: (_ for _ in ()).throw(LookupError("theirs")))
        with pytest.raises(LookupError, match="theirs"):
            model.generate(models.prompt(2, 6), max_new_tokens=3)
        with pytest.raises(LookupError, match="theirs"):
            model(models.prompt(2, 6))
        hook.remove()
    got = _run(model)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    assert trace.get_current_span() is trace.INVALID_SPAN
    handle.uninstrument()
    monkeypatch.undo()
    assert _hooks(model) == 0
    contained.clear()
    telemetry.check(complaints=True)
    assert call.current.call is None
    telemetry.instrument(model)
    before = len(telemetry.requests())
    _run(model)
    telemetry.check(complaints=True)
    assert len(telemetry.requests()) == before + 1
