"""Modules that are observed in the middle of a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # so that it can tell when something is compiled
from torch import Tensor, nn

from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

__all__ = ["ONES", "Holder", "Scaled", "run"]



ONES = torch.ones(1, 2)


class Scaled(nn.Module):
    """Multiplies by a number that is no parameter."""

    def __init__(self, by: float = 2.0) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor, *, self_: float = 0.0, **more: Any) -> Tensor:
        """Scale and shift."""
        return x * self.by + self_ + sum(more.values())


class Holder(nn.Module):
    """Runs what it is told to in the middle of a pass."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.inside: Callable[[Any], Any] = lambda parts: None
        self.got: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.got = self.inside(self.parts)
        for part in self.parts:
            x = part(x)
        return x


def run(telemetry: Telemetry, model: Holder, inside: Callable[[Any], Any]) -> Any:
    """Run one recorded pass with something in the middle; returns what that gave."""
    model.inside = inside
    with telemetry.instrument(model, modules="all"):
        model(ONES)
    assert set(attached(model.parts).values()) == {0}
    telemetry.check()
    return model.got
