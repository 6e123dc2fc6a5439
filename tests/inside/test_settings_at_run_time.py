"""``handle.set()``: which settings change while a model is instrumented, from when on, and what a wrong one leaves behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from inferspan.settings import Settings, SettingsError, live_settings
from tests.cases import models
from tests.cases.telemetry import Telemetry


def _forward(model: nn.Module) -> None:
    with torch.no_grad():
        model(models.prompt())


def _modules(telemetry: Telemetry) -> list[str]:
    return [str((span.attributes or {})[semconv.MODULE_NAME]) for span in telemetry.modules()]


def test_other_modules_are_recorded_from_the_next_request_on(telemetry: Telemetry) -> None:
    """Modules get spans by the selection of the moment at which the request begins."""
    model = models.llama()
    handle = telemetry.instrument(model, modules="none")
    _forward(model)
    assert _modules(telemetry) == []
    handle.set(modules=["lm_head"])
    _forward(model)
    assert _modules(telemetry) == ["lm_head"]
    handle.set(modules="none")
    _forward(model)
    assert _modules(telemetry) == ["lm_head"]
    telemetry.check()


def test_all_handles_of_a_model_share_the_change(telemetry: Telemetry) -> None:
    """A change by one handle is that of the other; one that is detached keeps the settings of its end."""
    model = models.llama()
    first, second = telemetry.instrument(model), inferspan.instrument(model)
    first.set(output_stats=True)
    assert second.settings.output_stats is True
    second.uninstrument()
    assert second.settings.output_stats is True
    first.set(output_stats=False)
    assert first.settings.output_stats is False


def test_statistics_of_outputs_switch_on_and_off(telemetry: Telemetry) -> None:
    """Statistics are of the calls of one request only."""
    model = models.llama()
    handle = telemetry.instrument(model, modules=["lm_head"])
    for wanted in (False, True, False):
        handle.set(output_stats=wanted)
        _forward(model)
    found = [semconv.OUTPUT_STAT_MEAN in (span.attributes or {}) for span in telemetry.modules()]
    assert found == [False, True, False]


def test_logits_and_steps_switch(telemetry: Telemetry) -> None:
    """Logits and steps are recorded by the settings of the request."""
    model = models.llama()
    handle = telemetry.instrument(model, modules="none")
    for changes in ({}, {"logits": False, "steps": "none"}):
        handle.set(**changes)
        with torch.no_grad():
            model.generate(models.prompt(), do_sample=False, max_new_tokens=3, min_new_tokens=3)
    with_steps, without = telemetry.requests()
    assert len(telemetry.steps()) == 3
    assert semconv.TOKEN_LOGPROBS in (with_steps.attributes or {})
    assert semconv.TOKEN_LOGPROBS not in (without.attributes or {})
    telemetry.check()


def test_the_budget_of_the_next_request(telemetry: Telemetry) -> None:
    """The budget is that of the request."""
    model = models.llama()
    handle = telemetry.instrument(model, modules="all")
    handle.set(max_spans_per_trace=3)
    _forward(model)
    assert len(telemetry.spans()) <= 3
    telemetry.check()


class _Waits(nn.Module):
    """Waits in the middle of its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.inside, self.go_on = threading.Event(), threading.Event()

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.first(hidden)
        self.inside.set()
        assert self.go_on.wait(30)
        return self.second(hidden)


def test_a_request_that_runs_keeps_its_settings(telemetry: Telemetry) -> None:
    """Neither selection nor observers change under a forward pass."""
    model = _Waits()
    handle = telemetry.instrument(model, modules="all")
    running = threading.Thread(target=model, args=(torch.ones(2, 4),))
    running.start()
    assert model.inside.wait(30)
    handle.set(modules=["second"])
    model.go_on.set()
    running.join()
    assert _modules(telemetry) == ["first", "second"]
    model(torch.ones(2, 4))
    assert _modules(telemetry) == ["first", "second", "second"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capture_content": "SPAN_ONLY"}, "'capture_content' is fixed while a model is instrumented"),
        ({"keep": "errors"}, "'keep' is fixed while a model is instrumented"),
        ({"output_stat": True}, "did you mean 'output_stats'"),
        ({"top_k": -1}, "'top_k' cannot be -1"),
        ({"modules": ["nothing.*"]}, "'nothing.*' matches no module"),
        ({"max_spans_per_trace": 9_000}, "the hard cap is 5000"),
        ({"output_stats": True, "every_step": "perhaps"}, "'every_step' cannot be 'perhaps'"),
        ({"output_stats": True, "modules": ["nothing.*"]}, "matches no module"),
    ],
)
def test_a_change_that_cannot_be_leaves_everything_as_it_was(telemetry: Telemetry, changes: dict[str, Any], message: str) -> None:
    """An error names the setting, and not even the settings that could change have done so."""
    model = models.llama()
    handle = telemetry.instrument(model, modules=["lm_head"])
    before = handle.settings
    with pytest.raises(SettingsError, match=message):
        handle.set(**changes)
    assert handle.settings == before
    _forward(model)
    assert _modules(telemetry) == ["lm_head"]


def test_a_handle_without_a_model_checks_values_only() -> None:
    """Where nothing is attached, a wrong value raises as it does elsewhere."""
    model = models.llama()
    handle = inferspan.instrument(model, enabled=False)
    handle.set(modules="all")
    assert handle.settings.modules == "all"
    with pytest.raises(SettingsError, match="'top_k' cannot be"):
        handle.set(top_k="many")


def test_the_settings_that_change_at_run_time() -> None:
    """Those that decide what a request records; where telemetry goes, its content and the samplers are fixed."""
    assert set(live_settings()) >= {"modules", "steps", "every_step", "output_stats", "logits", "max_spans_per_trace"}
    assert not {name for name in live_settings() if name.startswith(("session", "capture", "semconv", "nvml", "sampler", "exit"))}
    assert Settings().switched({}) == Settings()
