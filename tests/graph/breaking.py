"""Small models, each of which breaks a trace in another way."""

from __future__ import annotations

import ctypes

import numpy
import torch
from torch import nn

X = {"x": torch.rand(3, 4)}


class _Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


class Branch(_Base):
    """A value decides control flow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + 1
        return self.linear(x)


class Assert(_Base):
    """A value is asserted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert torch.isfinite(x).all()
        return self.linear(x)


class Item(_Base):
    """A size comes from a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x[: int(x.sum().item())])


class Tolist(_Base):
    """Sizes come from values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[int(number) :] for number in x[:, 0].tolist()])


class Nonzero(_Base):
    """The number of values that are not zero decides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[:, 0].nonzero().squeeze(-1)
        return x[rows] if rows.numel() > 0 else x


class Iteration(_Base):
    """Iterates over a tensor whose length depends on values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = [self.linear(row.float()) for row in x.nonzero().repeat(1, 2)]
        return torch.stack(rows)


class Numpy(_Base):
    """Leaves torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(numpy.sin(x.detach().numpy()))


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy() * 2)


class Autograd(_Base):
    """A function of its own leaves torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Own.apply(x)


class Pointer(_Base):
    """Hands the address of the values to code in C."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + len(ctypes.string_at(x.data_ptr(), 4))


class Dtype(_Base):
    """Multiplies values of two dtypes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.bfloat16())


class Shape(_Base):
    """Shapes do not fit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.reshape(-1, 3))


class Counter(_Base):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) * self.calls


class Buffer(_Base):
    """Keeps a running sum in a buffer."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + x.sum(0)
        return self.linear(x) + self.total


class Missing(_Base):
    """Wants an input that the sample lacks."""

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        if y is None:
            raise ValueError("You must specify y")
        return x + y


class Other(_Base):
    """Fails for a reason of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("attention")


KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "control_flow": (Branch, Assert),
    "value_size": (Item, Tolist, Nonzero),
    "iteration": (Iteration,),
    "untraceable_call": (Numpy, Autograd, Pointer),
    "dtype": (Dtype,),
    "shape": (Shape,),
    "state": (Counter, Buffer),
    "input": (Missing,),
    "other": (Other,),
}


class Outer(nn.Module):
    """Three layers after a module that may break a trace."""

    def __init__(self, before: nn.Module) -> None:
        super().__init__()
        self.before = before
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Tower(nn.Module):
    """Several modules that break a trace at the same line."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Branch(), Branch(), Branch()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class BreaksItself(Outer):
    """Decides by a value in its own forward, which holds the targets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + 1
        return super().forward(x) * 2


class Skipping(BreaksItself):
    """What comes before the first layer is needed after the last one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + 1
        kept = x * 2
        for layer in self.layers:
            x = layer(x)
        return x + kept
