"""Where the numerics watch finds tensors, and what it says of the rest."""

from __future__ import annotations

import math
from collections import UserDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
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


class Slotted:
    """An object without a dict."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Called(Other):
    """An object that can be called."""

    def __call__(self) -> Any:
        return self.inner


class Lazy(Mapping[str, Any]):
    """A mapping that holds no dict."""

    __slots__ = ("inner",)

    def __init__(self, inner: list[Any]) -> None:
        self.inner = inner

    def __getitem__(self, key: str) -> Any:
        return self.inner[int(key)]

    def __iter__(self) -> Iterator[str]:
        return map(str, range(len(self.inner)))

    def __len__(self) -> int:
        return len(self.inner)


class Odd(set[Any]):
    """A set of the program's."""


@pytest.mark.parametrize(
    "wrap", [lambda parts: (part for part in parts), iter, Slotted, Called, Lazy, lambda parts: parts[-1].numpy()],
    ids=["generator", "iterator", "slots", "callable", "mapping", "array"],
)  # fmt: skip
def test_an_object_that_is_not_looked_into(telemetry: Telemetry, wrap: Callable[[list[Tensor]], Any]) -> None:
    """The verdict says so."""
    assert dict(_watched(telemetry, Heads(wrap)).not_looked_at) == {"other object": 1}


def test_a_generator_is_not_consumed(telemetry: Telemetry) -> None:
    """The program gets all that is in it."""
    model = nn.Sequential(Heads(lambda parts: (part for part in parts)))
    telemetry.instrument(model, numerics=["0"])
    assert len(list(model(torch.ones(1, 2)))) == 10


def test_a_set_of_another_class(telemetry: Telemetry) -> None:
    """It is one."""
    assert _watched(telemetry, Heads(Odd)).nan_count == 1


@pytest.mark.parametrize(
    "value",
    [
        1j, b"bytes", range(3), torch.float32, torch.device("cpu"), len, abs, nn.ReLU(), nn.ReLU, object(), Fraction(1, 2), ..., {}, Odd(),
        torch.Generator(), MappingProxyType({}), SimpleNamespace(), math, np.float32(1), np.bool_(True), Path("x"), UserDict(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_and_functions_hold_no_tensors(telemetry: Telemetry, value: Any) -> None:
    """So nothing of them is left out."""
    assert dict(_watched(telemetry, Heads(lambda parts: [parts[0], value])).not_looked_at) == {}


class Mapped(nn.Module):
    """Calls a module for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.func.vmap(self.inner)(hidden)


def test_outputs_inside_a_transform(telemetry: Telemetry) -> None:
    """They have no values of their own, and the verdict says so."""
    model = Mapped()
    handle = telemetry.instrument(model, numerics=["inner"])
    model(torch.ones(3, 2))
    assert dict(handle.numerics().not_looked_at) == {"transformed": 1}


def test_a_model_inside_a_transform(telemetry: Telemetry) -> None:
    """It is no request, so nothing of it is recorded."""
    model = Heads(lambda parts: parts[-1])
    handle = telemetry.instrument(model, numerics="all")
    torch.func.vmap(model)(torch.ones(3, 2))
    assert (handle.numerics().calls, dict(handle.numerics().not_looked_at)) == (0, {})


def test_weights_of_no_module(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """A path that nothing has is a warning: the verdict on nothing looks like a good one."""
    model = nn.Sequential(nn.Linear(2, 2))
    handle = telemetry.instrument(model)
    assert handle.check_weights("misspelt").tensors == 0
    assert "misspelt" in caplog.text
