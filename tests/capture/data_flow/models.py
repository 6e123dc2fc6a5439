"""Hand-made models whose data flow is known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Block", "Dicts", "InPlace", "Shared", "Stack", "TwoWays", "UNet", "Views", "edges"]


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = hidden + self.linear(self.norm(hidden))
        return result


class Stack(nn.Module):
    """An embedding, blocks and a head."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.embed(pixels)
        for block in self.blocks:
            hidden = block(hidden)
        result: Tensor = self.head(hidden)
        return result


class _Up(nn.Module):
    """Joins what comes from below with what was kept."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Linear(8, 4)

    def forward(self, below: Tensor, kept: Tensor) -> Tensor:
        result: Tensor = self.conv(torch.cat([below, kept], dim=-1))
        return result


class UNet(nn.Module):
    """Two ways down, a middle and two ways up, with skip connections in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.up2, self.up1 = _Up(), _Up()

    def forward(self, image: Tensor) -> Tensor:
        kept = [self.down1(image)]
        kept.append(self.down2(kept[-1]))
        hidden = self.middle(kept[-1])
        result: Tensor = self.up1(self.up2(hidden, kept=kept.pop()), kept=kept.pop())
        return result


class Shared(nn.Module):
    """One encoder for two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.compare = nn.Linear(4, 4), nn.Bilinear(4, 4, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        result: Tensor = self.compare(self.encoder(left), self.encoder(right))
        return result


class _Parts(nn.Module):
    def forward(self, hidden: Tensor) -> dict[str, Any]:
        return {"first": hidden * 2, "others": [(hidden + 1, None), {"last": hidden - 1}], "name": "parts"}


class _Sum(nn.Module):
    def forward(self, parts: dict[str, Any], *, last: Tensor) -> tuple[Tensor, Tensor]:
        return parts["first"] + parts["others"][0][0] + last, last * 2


class Dicts(nn.Module):
    """Tensors in mappings, lists and tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.sum = _Parts(), _Sum()

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        found = self.parts(batch["hidden"])
        first, second = self.sum(found, last=found["others"][1]["last"])
        return {"first": first, "second": second}


class _Both(nn.Module):
    """Takes two tensors, of which the first goes through a module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.inner(one) * other


class TwoWays(nn.Module):
    """A module that takes a tensor and what was made of it, as attention with positions does; the result has both as well."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.both = _Both()

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.norm(hidden)
        made = self.both(hidden + 1, hidden)
        return made + 1, made, made[:, :2]


class InPlace(nn.Module):
    """Operations that write to the outputs of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, hidden: Tensor) -> Tensor:
        one = self.relu(self.one(hidden))
        two = self.two(hidden)
        two += one
        result: Tensor = self.three(two)
        return result


class Views(nn.Module):
    """Three views of one output, as of a fused projection."""

    def __init__(self) -> None:
        super().__init__()
        self.fused, self.query, self.out = nn.Linear(4, 12), nn.Identity(), nn.Linear(4, 4)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.fused(hidden).chunk(3, dim=-1)
        result: Tensor = self.out(self.query(query) * key + value)
        return result


def edges(flow: Any, *, final: bool = True) -> set[str]:
    """Edges as text: ``a -> b``, with the operations between in brackets and ``!`` for one that skips; by default those to who uses them."""
    found = set()
    for edge in flow:
        if edge.final or not final:
            source = edge.producer + {"input": "?", "earlier": "~"}.get(edge.origin, "") + _call(edge.producer_call)
            target = edge.consumer + _call(edge.consumer_call) if edge.consumer_call else "result"
            target = f"({target})" if edge.kind == "output" and edge.consumer_call else target
            via = f" [{' '.join(edge.via)}]" if edge.via else ""
            found.add(f"{source} -> {target}{via}{'!' if edge.skip else ''}")
    return found


def _call(number: int | None) -> str:
    return "" if number in (None, 1) else f"#{number}"
