"""Small modules for tests of plain forward passes, and what the tests ask of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

__all__ = ["HIDDEN", "LAYERS", "Block", "Net", "Outer", "Recursive", "fail", "hooks_on", "interrupt", "names"]

HIDDEN = torch.ones(2, 4)
LAYERS = ["layer 0", "layer 0 linear", "layer 1", "layer 1 linear"]


class Block(nn.Module):
    """A layer that may fail, interrupt, or call what it is told to."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.before: Callable[[], None] | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        if self.before is not None:
            self.before()
        return torch.relu(self.linear(hidden))


class Net(nn.Module):
    """Two layers that take their input by keyword only, and a parent that may recover from a failing one."""

    layers: Any

    def __init__(self, recover: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.recover = recover

    def forward(self, *, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            try:
                hidden = layer(hidden=hidden)
            except ValueError:
                if not self.recover:
                    raise
        return hidden


class Recursive(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, hidden: Tensor, depth: int = 2) -> Tensor:
        hidden = self.linear(hidden)
        return self(hidden, depth=depth - 1) if depth else hidden


class Outer(nn.Module):
    """Holds another model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *, hidden: Tensor) -> Tensor:
        return self.inner(hidden=hidden) + self.inner(hidden=hidden)


def fail() -> None:
    """Raise as a layer does that was given what it cannot take."""
    raise ValueError("layer failed")


def interrupt() -> None:
    """Raise as Ctrl-C does."""
    raise KeyboardInterrupt


def names(telemetry: Telemetry) -> list[str]:
    """Names of the spans of modules."""
    return [span.name for span in telemetry.modules()]


def hooks_on(model: nn.Module) -> int:
    """How many modules have something of ours on them."""
    return sum(attached(model).values())
