"""Arguments of any kind: each set is taken, or refused by one error that names what is wrong, and leaves the model as it was."""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import inferspan
from inferspan.settings import describe

NAMES = [name for name, *_ in describe()]
SETS = 600
_HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 10**6, 2**63, -(2**63), 10**400, 0.0, 0.5, 1.0, -0.0, 1e308, float("inf"), float("nan"),
    "", " ", "a", "all", "none", "layers", "sampled", "auto", "errors", "1", "0", "yes", "off", "re:[", "re:", "*", "\x00", "é" * 50,
    "\ud800", "x" * 5000, b"all", b"\xff", [], [""], ["all"], ["*"], [None], [[]], (), ("layers",), {}, {"a": 1}, OrderedDict(), set(), {"a"},
    frozenset({"layers"}), object(), object, len, lambda: 1, 1j, np.int64(3), np.float32(0.5), np.bool_(True), np.array([1]), np.nan,
    torch.tensor(1), torch.zeros(2), torch.float16, nn.Linear, nn.ReLU(), Path("."), Path("/nowhere/at/all"), range(3), slice(1), Ellipsis,
]  # fmt: skip
"""Values of kinds that callers pass by mistake, and a few that are right for some setting."""


class _Odd:
    """A value whose every method fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise RuntimeError("no str")

    def __bool__(self) -> bool:
        raise RuntimeError("no bool")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no eq")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __iter__(self) -> Any:
        raise RuntimeError("no iter")


def _sets() -> list[dict[str, Any]]:
    draw = random.Random(20261128)
    values = [*_HOSTILE, _Odd()]
    # A path of a file is taken as it is, so that one would be written for each.
    names = [name for name in NAMES if name != "session_file"]
    return [{name: draw.choice(values) for name in draw.sample(names, draw.randint(1, 3))} for _ in range(SETS)]


def _state(model: nn.Module) -> list[Any]:
    return [(set(vars(one)), len(one._forward_hooks), len(one._forward_pre_hooks)) for one in model.modules()]


@pytest.fixture
def model() -> nn.Module:
    """A model of two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU())


def test_settings_are_taken_or_refused(model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``instrument()`` returns or raises ``SettingsError``, the model answers as before, and nothing of ours stays."""
    monkeypatch.chdir(tmp_path)
    quiet = {"nvml": False, "host": False, "allocator": False}
    inputs = torch.ones(2, 3)
    before, expected = _state(model), model(inputs)
    refused: list[tuple[str, dict[str, Any]]] = []
    for settings in _sets():
        try:
            handle = inferspan.instrument(model, auto_configure=False, **{**quiet, **settings})
        except inferspan.SettingsError as error:
            refused.append((str(error), settings))
        else:
            assert torch.equal(model(inputs), expected)
            handle.uninstrument()
        assert _state(model) == before
    assert 0 < len(refused) < SETS
    assert [text for text, settings in refused if not any(name in text for name in settings)] == []


@pytest.mark.parametrize("value", [*_HOSTILE, _Odd()], ids=lambda value: type(value).__name__)
def test_what_is_no_model_is_refused(value: Any) -> None:
    """``instrument()`` of anything that is no module and holds none is a ``TypeError`` that says so."""
    if isinstance(value, nn.Module):
        pytest.skip("this is one")
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module"):
        inferspan.instrument(value)


def test_steps_of_a_profiler_window_are_taken_or_refused(model: nn.Module) -> None:
    """``handle.profile()`` returns a window or raises ``SettingsError`` that shows the argument's name."""
    with inferspan.instrument(model, nvml=False, host=False, allocator=False, auto_configure=False) as handle:
        refused: list[str] = []
        for value in (*_HOSTILE, _Odd()):
            try:
                handle.profile(value)
            except inferspan.SettingsError as error:
                refused.append(str(error))
            else:
                assert type(value) is int
    assert refused
    assert [text for text in refused if "steps" not in text] == []


def test_facts_of_the_caller_are_taken_or_refused(model: nn.Module) -> None:
    """``inferspan.context()`` takes a value or raises ``TypeError`` that names the argument; the model's call inside is not disturbed."""
    expected = model(torch.ones(1, 3))
    refused: list[str] = []
    with inferspan.instrument(model, nvml=False, host=False, allocator=False, auto_configure=False):
        for value in (*_HOSTILE, _Odd()):
            try:
                with inferspan.context(conversation_id=value):
                    assert torch.equal(model(torch.ones(1, 3)), expected)
            except TypeError as error:
                refused.append(str(error))
    assert refused
    assert [text for text in refused if "conversation_id" not in text] == []
