"""Small models with the kinds of modules that gradients go through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["Block", "Net", "train"]


class Block(nn.Module):
    """A residual block whose activation works in place."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.gate = nn.Linear(width, 2 * width)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(2 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        inner = self.up(hidden) * self.gate(hidden)
        return hidden + self.down(self.drop(self.act(inner)))


class Net(nn.Module):
    """An embedding, blocks and a head; blocks may be checkpointed.

    Args:
        reentrant: of the checkpoints; ``None`` for none.
    """

    def __init__(self, *, blocks: int = 2, reentrant: bool | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.ModuleList([Block() for _ in range(blocks)])
        self.head = nn.Linear(8, 5)
        self.reentrant = reentrant

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = layer(hidden) if self.reentrant is None else checkpoint(layer, hidden, use_reentrant=self.reentrant)
        out: Tensor = self.head(hidden)
        return out


def train(model: Any, given: Any, steps: int = 3, *, loss: Callable[[Any], Tensor] = torch.Tensor.sum) -> list[Tensor]:
    """Train for some steps; losses, all gradients of each step, parameters at the end, and a random number behind."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(steps):
        value = loss(model(given))
        value.backward()
        found.append(value.detach().clone())
        found += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    return [*found, *(parameter.detach().clone() for parameter in model.parameters()), torch.rand(3)]
