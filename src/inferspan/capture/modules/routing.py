"""Which experts a router has chosen, opt-in: counted on the device now, read at the end of the request.

In: outputs of routers of transformers, a tuple of the router's logits ``[tokens, experts]``, the weights and the indices of the chosen
experts ``[tokens, k]``; or, where experts have a capacity, a mask ``[rows, tokens, experts]`` without the tokens beyond it, the weights and
the logits. Out: the ``inferspan.experts.*`` attributes of each call. Nothing before ``read`` waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from inferspan import semconv
from inferspan.records import AttributeValue

from .device_rows import DeviceRows, Place, is_plain
from .output_stats import OutputStats

__all__ = ["RoutingStats", "experts_of", "is_router", "new_collector"]

NAMES = ("gate", "router")
"""Names of routers beside the experts that they choose from."""
MOST_EXPERTS = 256
"""Entries of the array of loads."""
LARGEST = 1 << 26
"""Entries of the logits beyond which their entropy is not computed: it would take several copies of them."""


def experts_of(router: nn.Module) -> int | None:
    """How many experts a router chooses from; ``None`` if it does not say."""
    for name in ("num_experts", "n_routed_experts", "num_local_experts"):
        number = getattr(router, name, None)
        if type(number) is int and number > 0:
            return number
    weight = getattr(router, "weight", None)
    return int(weight.shape[0]) if isinstance(weight, Tensor) and weight.dim() == 2 else None


def is_router(name: str, module: nn.Module, parent: nn.Module) -> bool:
    """Whether a module chooses the experts of its parent; ``name`` is that of the module in the parent.

    A plain linear layer does not: the parent makes the choice from what it returns.
    """
    beside = "experts" in parent._modules and name in NAMES
    return beside and not isinstance(module, nn.Linear) and experts_of(module) is not None


def _choice(output: Any, experts: Iterable[int]) -> tuple[Tensor, Tensor, bool] | None:
    """Logits, choice, and whether that is a mask; ``None`` for the output of anything but a router."""
    if type(output) is not tuple or not 3 <= len(output) <= 5:
        return None
    first, last = output[0], output[-1] if len(output) == 3 else output[2]
    masked = isinstance(first, Tensor) and not first.is_floating_point()
    logits, chosen = (last, first) if masked else (first, last)
    if not is_plain(logits) or type(chosen) is not Tensor or chosen.dtype not in (torch.int64, torch.int32):
        return None
    width = logits.shape[-1] if logits.dim() >= 2 else 0
    if width not in experts or chosen.dim() < 2 or logits.numel() // width * chosen.shape[-1] != chosen.numel() or not chosen.numel():
        return None
    return logits.detach(), chosen, masked


def _count(logits: Tensor, chosen: Tensor, *, masked: bool) -> Tensor:
    """Tokens by expert, those that no expert has taken, and the mean entropy of the router: one row of ``experts`` + 2 numbers."""
    experts = logits.shape[-1]
    rows = logits.reshape(-1, experts)
    if masked:
        load = chosen.reshape(-1, experts).sum(0).float()
        dropped = rows.shape[0] - load.sum()
    else:
        # One more place: where experts are shared out, an index beyond the last is that of another rank.
        places = chosen.reshape(-1).long().clamp(0, experts)
        load = torch.zeros(experts + 1, device=places.device).scatter_add_(0, places, torch.ones_like(places, dtype=torch.float32))[:-1]
        dropped = load.new_zeros(())
    if rows.numel() > LARGEST:
        entropy = load.new_full((), math.nan)
    else:
        logs = torch.log_softmax(rows.float(), -1)
        entropy = -(torch.where(logs.isneginf(), 0.0, logs) * logs.exp()).sum(-1).mean()
    return torch.cat([load, torch.stack([dropped.float(), entropy])]).unsqueeze(0)


class RoutingStats(OutputStats):
    """Collects what routers have chosen, and the statistics of other outputs where those are wanted.

    Args:
        experts: numbers of experts of the model's routers.
        outputs: whether statistics of all outputs are wanted.
    """

    def __init__(self, experts: Iterable[int], *, outputs: bool) -> None:
        super().__init__()
        self._experts = frozenset(experts)
        self._outputs = outputs
        self._routed: DeviceRows[tuple[int, bool]] = DeviceRows()
        self._order: list[Place[tuple[int, bool]] | int | None] = []

    @property
    def full(self) -> bool:
        """Whether nothing more is taken until ``read``."""
        return len(self._order) >= self._capacity

    def append(self, output: object) -> int | None:
        """Launch what is wanted of one output.

        Returns:
            Index in the result of ``read``; None if nothing is.
        """
        if self.full:
            return None
        found = _choice(output, self._experts)
        if found is not None:
            logits, chosen, masked = found
            with torch.no_grad():
                row = _count(logits, chosen, masked=masked)
            self._order.append(self._routed.append((int(logits.shape[-1]), masked), row))
        else:
            index = super().append(output) if self._outputs else None
            if index is None:
                return None
            self._order.append(index)
        return len(self._order) - 1

    def read(self) -> list[dict[str, AttributeValue]]:
        """The attributes of every output in the order of their ``append``; empties the store. May wait for the device."""
        order, self._order = self._order, []
        outputs = super().read()
        groups = {group: rows.tolist() for group, rows in self._routed.read().items()}
        return [
            _attributes(groups[place.group][place.order][0], dropped=place.kind[1])
            if isinstance(place, Place)
            else (outputs[place] if place is not None else {})
            for place in order
        ]


def new_collector(experts: Iterable[int], *, outputs: bool) -> OutputStats | None:
    """A collector for one request; ``None`` if nothing is wanted.

    Args:
        experts: numbers of experts of the routers, if those are observed.
        outputs: whether statistics of all outputs are wanted.
    """
    experts = frozenset(experts)
    if experts:
        return RoutingStats(experts, outputs=outputs)
    return OutputStats() if outputs else None


def _attributes(row: Sequence[float], *, dropped: bool) -> dict[str, AttributeValue]:
    load, missed, entropy = [int(count) for count in row[:-2]], int(row[-2]), row[-1]
    attributes: dict[str, AttributeValue] = {}
    if len(load) <= MOST_EXPERTS:
        attributes[semconv.EXPERTS_LOAD] = load
    total = sum(load)
    if total:
        attributes[semconv.EXPERTS_IMBALANCE] = max(load) * len(load) / total
    if math.isfinite(entropy):
        attributes[semconv.EXPERTS_ENTROPY] = entropy
    if dropped:
        attributes[semconv.EXPERTS_DROPPED] = missed
    return attributes
