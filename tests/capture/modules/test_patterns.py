"""Functions among the patterns of modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from tests.cases.telemetry import Telemetry


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2, 2)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = _Attention()


def _takes_one(path: str) -> bool:
    return bool(path)


def _model() -> nn.Module:
    return nn.Sequential(_Block(), nn.ReLU())


@pytest.mark.parametrize("setting", ["modules", "numerics", "memory", "gradients", "control_flow", "attention"])
def test_a_function_that_raises_is_a_settings_error(telemetry: Telemetry, setting: str) -> None:
    """It names the setting and what was raised, whose traceback comes with it, and the model stays as it was."""
    model = _model()
    patterns: Any = {setting: [_takes_one]}
    with pytest.raises(inferspan.SettingsError, match=f"'{setting}'.*_takes_one.*path and module.*TypeError") as caught:
        telemetry.instrument(model, **patterns)
    assert type(caught.value.__cause__) is TypeError
    assert [name for one in model.modules() for name in vars(one) if "compiled_call" in name] == []


def test_on_module_refuses_a_function_that_raises(telemetry: Telemetry) -> None:
    """The function of the program that was to run there is not taken."""
    model = _model()
    handle = telemetry.instrument(model)
    with pytest.raises(inferspan.SettingsError, match=r"handle.on_module\(\).*TypeError"):
        handle.on_module(_takes_one, lambda *_: {"seen": 1})
    telemetry.check()
    assert handle.status().functions == 0


class _Calls(nn.Module):
    """Has one block under two names, and its attention with them."""

    def __init__(self) -> None:
        super().__init__()
        self.block = _Block()
        self.again = self.block

    def forward(self, hidden: Tensor) -> Any:
        return self.again.attn.q_proj(hidden)


@pytest.mark.parametrize("setting", ["modules", "numerics", "memory", "gradients", "control_flow", "attention"])
@pytest.mark.parametrize("pattern", ["again.attn", "again.a*", "re:again.attn$"])
def test_a_second_path_of_a_module_is_one_of_its_paths(telemetry: Telemetry, setting: str, pattern: str) -> None:
    """So a pattern of it matches."""
    patterns: Any = {setting: [pattern]}
    telemetry.instrument(_Calls(), **patterns)
    telemetry.check()


def test_a_module_is_recorded_once_under_its_first_path(telemetry: Telemetry) -> None:
    """However it was selected."""
    model = _Calls()
    telemetry.instrument(model, modules=["again.attn.q_proj", "block.attn.q_proj"])
    model(torch.ones(1, 2))
    assert [(span.attributes or {})[semconv.MODULE_NAME] for span in telemetry.modules()] == ["block.attn.q_proj"]


def test_a_function_runs_at_a_second_path(telemetry: Telemetry) -> None:
    """Once a call."""
    model = _Calls()
    hook = telemetry.instrument(model).on_module("again.*.q_proj", lambda *_: {"seen": 1})
    model(torch.ones(1, 2))
    assert hook.calls == 1


def test_activations_of_a_second_path(telemetry: Telemetry) -> None:
    """They are those of the module."""
    model = _Calls()
    handle = telemetry.instrument(model, modules="all")
    model(torch.ones(1, 2))
    assert [row.name for row in handle.activations("again.attn.q_proj")] == ["block.attn.q_proj"]


def test_a_stage_at_a_second_path(telemetry: Telemetry) -> None:
    """Its module is the stage."""
    model = _Calls()
    telemetry.instrument(model, stages={"encode": ["again.attn.q_proj"]})
    model(torch.ones(1, 2))
    assert telemetry.spans("encode")


def test_modules_that_hold_each_other(telemetry: Telemetry) -> None:
    """Their paths have no end, and a pattern matches the shortest ones."""
    model = _Calls()
    model.block.attn.block = model.block
    telemetry.instrument(model, modules=["again.attn.q_proj"])
    telemetry.check()
