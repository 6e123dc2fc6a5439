"""NaN and Inf: what a module's output has is said by its request, and by the requests around that."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

STATS = (semconv.OUTPUT_STAT_MEAN, semconv.OUTPUT_STAT_NAN_COUNT, semconv.OUTPUT_STAT_ELEMENT_COUNT)


class Spoil(nn.Module):
    """Puts one value into its output, which the next layer hides."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden.clone()
        hidden[..., -1] = self.value
        return hidden


class Mend(nn.Module):
    """Replaces what is not finite."""

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.nan_to_num(hidden, nan=0.0, posinf=1.0, neginf=-1.0)


def _net(value: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), Spoil(value), Mend())


@pytest.mark.parametrize(("value", "said"), [(math.nan, True), (-math.inf, True), (0.5, None)])
def test_module_output_of_a_forward_pass(telemetry: Telemetry, value: float, said: bool | None) -> None:
    """The request of a plain forward pass says what a module's output had."""
    model = _net(value)
    telemetry.instrument(model, modules="all", output_stats=True)
    model(torch.ones(2, 3))
    assert telemetry.only(telemetry.forwards()).get(semconv.NONFINITE) is said


@pytest.mark.parametrize(("value", "said"), [(math.nan, True), (0.5, None)])
def test_module_output_of_generate(telemetry: Telemetry, value: float, said: bool | None) -> None:
    """So does that of a generate() whose logits are finite."""
    model = models.llama()
    model.model.layers[0].mlp = nn.Sequential(model.model.layers[0].mlp, Spoil(value), Mend())
    telemetry.instrument(model, modules="all", output_stats=True)
    model.generate(models.prompt(), max_new_tokens=3, do_sample=False)
    assert telemetry.only().get(semconv.NONFINITE) is said


def test_request_around_says_so_too(telemetry: Telemetry) -> None:
    """A model inside another instrumented model has seen NaN, so the outer request says it."""
    inner = _net(math.nan)
    outer = nn.Sequential(inner)
    telemetry.instrument(inner, modules="all", output_stats=True)
    telemetry.instrument(outer)
    outer(torch.ones(2, 3))
    assert [span.attributes.get(semconv.NONFINITE) for span in telemetry.forwards() if span.attributes] == [True, True]


def test_next_request_starts_clean(telemetry: Telemetry) -> None:
    """NaN in one request is not said of the next."""
    spoil = Spoil(math.nan)
    model = nn.Sequential(nn.Linear(3, 5), spoil, Mend())
    telemetry.instrument(model, modules="all", output_stats=True)
    model(torch.ones(2, 3))
    spoil.value = 0.5
    model(torch.ones(2, 3))
    assert [bool((span.attributes or {}).get(semconv.NONFINITE)) for span in telemetry.forwards()] == [True, False]


@dataclass
class _Parts(ModelOutput):
    mask: Tensor | None = None
    hidden: Tensor | None = None


def _nested(hidden: Tensor) -> list[dict[str, tuple[Tensor, ...]]]:
    return [{"ids": (hidden.long(),)}, {"hidden": (hidden, hidden.clone())}]


class Wrap(nn.Module):
    """Returns its input inside of something else."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, hidden: Tensor) -> Any:
        return self.wrap(hidden)


class Unwrap(nn.Module):
    """A model whose first module returns no tensor."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second = Wrap(wrap), nn.Linear(3, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        self.first(hidden)
        return torch.as_tensor(self.second(torch.ones_like(hidden)))


@pytest.mark.parametrize("hooked", [False, True], ids=["observed", "hooks"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda hidden: (hidden, hidden.long()),
        lambda hidden: (None, hidden.long(), hidden),
        lambda hidden: [hidden],
        lambda hidden: {"hidden": hidden},
        lambda hidden: _Parts(mask=hidden.bool(), hidden=hidden),
        _nested,
    ],
    ids=["tuple", "tuple with None and integers", "list", "dict", "ModelOutput", "nested"],
)
def test_output_that_is_no_tensor(telemetry: Telemetry, wrap: Callable[[Tensor], Any], hooked: bool) -> None:
    """Statistics are of the first floating point tensor of what a module returns."""
    model = Unwrap(wrap)
    if hooked:
        model.first.register_forward_hook(lambda *_: None)
    telemetry.instrument(model, modules="all", output_stats=True)
    model(torch.tensor([[1.0, math.nan, 3.0]]))
    (span,) = [span for span in telemetry.spans() if (span.attributes or {}).get(semconv.MODULE_NAME) == "first"]
    found = span.attributes or {}
    assert [found.get(key) for key in STATS] == [2.0, 1, 3]
    assert telemetry.only(telemetry.forwards()).get(semconv.NONFINITE) is True
