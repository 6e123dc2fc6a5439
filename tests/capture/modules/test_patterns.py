"""Functions among the patterns of modules."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import inferspan
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
