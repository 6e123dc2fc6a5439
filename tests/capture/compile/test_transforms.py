"""Telling a run of the model from a trace or a transform of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from inferspan.capture.compile.transforms import is_capturing, is_transforming


class Counting(TorchDispatchMode):
    """A mode of a user's that only watches."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Asking(nn.Module):
    """Asks while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[bool] = []

    def forward(self, hidden: Tensor) -> Tensor:
        self.answers.append(is_transforming())
        return hidden * 2


def _fake(model: nn.Module) -> None:
    with FakeTensorMode():
        model(torch.ones(2))


def _quietly(function: Callable[[], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function()


def _counting(model: nn.Module) -> None:
    with Counting():
        model(torch.ones(2))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda model: model(torch.ones(2)), False),
        (_counting, False),
        (lambda model: torch.func.vmap(model)(torch.ones(2, 2)), True),
        (lambda model: torch.func.grad(lambda hidden: model(hidden).sum())(torch.ones(2)), True),
        (lambda model: make_fx(model)(torch.ones(2)), True),
        (lambda model: torch.fx.symbolic_trace(model), True),
        (lambda model: _quietly(lambda: torch.jit.trace(model, torch.ones(2), check_trace=False)), True),
        (_fake, True),
    ],
    ids=["run", "counting mode", "vmap", "grad", "make_fx", "fx", "jit.trace", "fake"],
)
def test_modes(run: Callable[[nn.Module], object], expected: bool) -> None:
    """Only what traces, transforms or simulates counts; afterwards all is as before."""
    model = Asking()
    run(model)
    assert set(model.answers) == {expected}
    assert not is_transforming()


def test_no_cuda_is_touched() -> None:
    """Asking about capture neither needs nor initialises CUDA."""
    before = torch.cuda.is_initialized()
    assert is_capturing() is False and torch.cuda.is_initialized() is before
