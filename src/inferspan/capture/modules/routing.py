"""Which experts a router has chosen, opt-in: counted on the device now, read at the end of the request.

In: outputs of routers. Out: the ``inferspan.experts.*`` attributes of each call. Nothing before ``read`` waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from inferspan import semconv
from inferspan.records import AttributeValue, ModuleInfo

from .device_rows import DeviceRows, Place
from .output_stats import OutputStats
from .routers import Choice, Routing, choice_of

__all__ = ["RoutingStats", "new_collector"]

MOST_EXPERTS = 256
"""Entries of the array of loads."""
LARGEST = 1 << 26
"""Entries of the logits beyond which their entropy is not computed: it would take several copies of them."""


def _count(choice: Choice) -> Tensor:
    """Tokens by expert, those that no expert has taken, and the mean entropy of the router: one row of ``experts`` + 2 numbers."""
    if choice.mask is not None:
        taken = choice.mask != 0
        load = taken.sum(0).float()
        dropped = (~taken.any(-1)).sum().float()
    else:
        assert choice.indices is not None
        # One more place: where experts are shared out, an index beyond the last is that of another rank.
        places = choice.indices.reshape(-1).long().clamp(0, choice.experts)
        counts = torch.zeros(choice.experts + 1, device=places.device)
        load = counts.scatter_add_(0, places, torch.ones_like(places, dtype=torch.float32))[:-1]
        dropped = load.new_zeros(())
    return torch.cat([load, torch.stack([dropped, _entropy(choice.logits, load)])]).unsqueeze(0)


def _entropy(logits: Tensor | None, like: Tensor) -> Tensor:
    if logits is None or logits.numel() > LARGEST:
        return like.new_full((), math.nan)
    rows = logits.float()
    # Some routers return probabilities instead: these add up to 1, which rows of logits do not.
    sums = ((rows >= 0).all(-1) & ((rows.sum(-1) - 1).abs() < 1e-2)).all()
    shares = torch.where(sums, rows, rows.softmax(-1))
    entropy: Tensor = torch.special.entr(shares).sum(-1).mean()
    return entropy


class RoutingStats(OutputStats):
    """Collects what routers have chosen, and the statistics of other outputs where those are wanted.

    Args:
        routing: the model's routers.
        outputs: whether statistics of all outputs are wanted.
    """

    def __init__(self, routing: Routing, *, outputs: bool) -> None:
        super().__init__()
        self._routing = routing
        self._routers = routing.routers
        self._outputs = outputs
        self._routed: DeviceRows[tuple[int, bool]] = DeviceRows()
        self._order: list[Place[tuple[int, bool]] | int | None] = []

    @property
    def full(self) -> bool:
        """Whether nothing more is taken until ``read``."""
        return len(self._order) >= self._capacity

    def append(self, output: object, module: ModuleInfo | None = None) -> int | None:
        """Launch what is wanted of one output of a module.

        Returns:
            Index in the result of ``read``; None if nothing is.
        """
        if self.full:
            return None
        router = self._routers.get(module.name) if module is not None else None
        with torch.no_grad():
            choice = choice_of(output, router) if router is not None else None
            row = _count(choice) if choice is not None else None
        if choice is not None and row is not None:
            self._order.append(self._routed.append((choice.experts, choice.capacity), row))
        else:
            if router is not None:
                self._routing.unread = True
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


def new_collector(routing: Routing | None, *, outputs: bool) -> OutputStats | None:
    """A collector for one request; ``None`` if nothing is wanted.

    Args:
        routing: the model's routers, if those are observed.
        outputs: whether statistics of all outputs are wanted.
    """
    if routing is not None and routing.routers:
        return RoutingStats(routing, outputs=outputs)
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
