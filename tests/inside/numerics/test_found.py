"""Where the numerics watch finds tensors, and what it says of the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases.telemetry import Telemetry

NAN = float("nan")


@dataclass
class Pair:
    """Holds two."""

    first: Any
    second: Any


class Other:
    """An object that nothing is known of."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def _cache(parts: list[Tensor]) -> Any:
    from transformers import DynamicCache

    cache: Any = DynamicCache()
    cache.update(parts[0][None, None], parts[-1][None, None], 0)
    return cache


def _nested(depth: int) -> Callable[[list[Tensor]], Any]:
    def wrap(parts: list[Tensor]) -> Any:
        found: Any = parts
        for _ in range(depth):
            found = (found,)
        return found

    return wrap


class Heads(nn.Module):
    """Ten outputs, of which the last is bad, in a container."""

    def __init__(self, wrap: Callable[[list[Tensor]], Any], number: int = 10) -> None:
        super().__init__()
        self.wrap, self.number = wrap, number

    def forward(self, hidden: Tensor) -> Any:
        return self.wrap([hidden + place for place in range(self.number - 1)] + [hidden * NAN])


def _watched(telemetry: Telemetry, part: nn.Module) -> Any:
    model = nn.Sequential(part)
    handle = telemetry.instrument(model, numerics=["0"])
    model(torch.ones(1, 2))
    telemetry.check()
    return handle.numerics()


@pytest.mark.parametrize(
    "wrap",
    [
        list, tuple, set, deque, _nested(6), lambda parts: Pair(parts[0], parts[1:]),
        lambda parts: {"first": parts[0], "states": tuple(parts)},
    ],
    ids=["list", "tuple", "set", "queue", "nested", "dataclass", "mapping"],
)  # fmt: skip
def test_the_last_of_many(telemetry: Telemetry, wrap: Callable[[list[Tensor]], Any]) -> None:
    """However many there are, and in whatever they are held."""
    verdict = _watched(telemetry, Heads(wrap))
    assert (verdict.nan_count, dict(verdict.not_looked_at)) == (1, {})


def test_a_cache(telemetry: Telemetry) -> None:
    """It is passed on in each call, and holds outputs of modules that are looked at, so it is neither looked into nor left out."""
    verdict = _watched(telemetry, Heads(_cache))
    assert (verdict.nan_count, dict(verdict.not_looked_at)) == (0, {})


@pytest.mark.parametrize(
    ("part", "reason"),
    [(Heads(Other), "other object"), (Heads(_nested(12)), "too deep"), (Heads(list, 1025), "too many")],
    ids=["object", "depth", "number"],
)
def test_what_is_not_looked_at(telemetry: Telemetry, part: nn.Module, reason: str) -> None:
    """The verdict says so."""
    verdict = _watched(telemetry, part)
    assert (verdict.nan_count, dict(verdict.not_looked_at)) == (0, {reason: 1})


def test_weights_of_no_module(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """A path that nothing has is a warning: the verdict on nothing looks like a good one."""
    model = nn.Sequential(nn.Linear(2, 2))
    handle = telemetry.instrument(model)
    assert handle.check_weights("misspelt").tensors == 0
    assert "misspelt" in caplog.text
