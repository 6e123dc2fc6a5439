"""The part of the autograd graph that one call of a module has made, and where gradients enter and leave it.

In: tensors that a module was given and has returned. Out: nodes of the graph, with the positions of the gradients of these tensors. Nothing
is changed, and nodes are held only while the module is being called.

The nodes of a thread are numbered as they are made, so those of a call are the ones that were made since it began.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inferspan.capture.modules.shapes import every_tensor

__all__ = ["MOST_NODES", "Exit", "Region", "edges_of", "next_number", "region_of"]

MOST_NODES = 20_000
"""Nodes of one call that are looked at."""
_LEAF = (1 << 64) - 1
"""Number of the nodes that add gradients to leaves: those come first, whenever they were made."""
_counter: Any = getattr(torch.autograd, "_get_sequence_nr", None)
Edge = tuple[Any, int]
"""A node, and the number of the gradient among those that it takes."""


def next_number() -> int:
    """Number of the node that this thread makes next."""
    return int(_counter())


def _wants_gradient(tensor: Any) -> bool:
    return bool(tensor.requires_grad)


def edges_of(value: Any, *, leaves: bool) -> list[Edge]:
    """Where the gradients of the tensors in ``value`` arrive, each once.

    Args:
        value: of a module: its arguments, or what it has returned.
        leaves: whether those of leaves count.
    """
    found: dict[tuple[int, int], Edge] = {}
    for tensor in filter(_wants_gradient, every_tensor(value, [], Counter())):
        edge = _edge(tensor, leaves=leaves)
        if edge is not None:
            found.setdefault((id(edge[0]), edge[1]), edge)
    return list(found.values())


def _edge(tensor: Tensor, *, leaves: bool) -> Edge | None:
    node = tensor.grad_fn
    if node is not None:
        return node, tensor.output_nr
    if not leaves or type(tensor) is torch.nn.Parameter:
        return None
    # The node of a leaf lives as long as this does, or a graph refers to it.
    made = torch.autograd.graph.get_gradient_edge(tensor)
    return made[0], made[1]


class Exit(NamedTuple):
    """A node from which gradients leave the call: to its inputs, to parameters, or elsewhere."""

    node: Any
    inputs: tuple[tuple[int, int], ...]
    """Positions in what the node returns that are gradients of inputs, and the index of the input."""


class Region(NamedTuple):
    """Where gradients enter and leave one call of a module."""

    entries: list[tuple[Any, tuple[int, ...], bool]]
    """Nodes of outputs, with the positions of these, and whether the call has made them."""
    exits: list[Exit]
    passed_on: dict[tuple[int, int], int]
    """Outputs that are inputs as they are: the index of the input by identity of the node and position."""


def region_of(inputs: list[Edge], outputs: list[Edge], number: int | None) -> Region:
    """The region between inputs and outputs; without exits if it has too many nodes.

    Args:
        inputs: of the call, as they were when it began.
        outputs: of the call.
        number: ``next_number()`` when it began; ``None`` if no node between them is looked at.
    """
    known = {(id(node), nr): index for index, (node, nr) in enumerate(inputs)}
    sources = {id(node) for node, _ in inputs}

    def is_own(node: Any) -> bool:
        return number is not None and id(node) not in sources and number <= _number(node) < _LEAF

    own: dict[int, Any] = {}
    pending = [node for node, _ in outputs if is_own(node)]
    while pending:
        node = pending.pop()
        if id(node) in own:
            continue
        if len(own) >= MOST_NODES:
            return region_of([], outputs, None)
        own[id(node)] = node
        pending += [above for above, _ in node.next_functions if above is not None and id(above) not in own and is_own(above)]
    exits = []
    for node in own.values():
        leaving = [
            (place, known.get((id(above), nr), -1))
            for place, (above, nr) in enumerate(node.next_functions)
            if above is not None and id(above) not in own
        ]
        if leaving:
            exits.append(Exit(node, tuple((place, index) for place, index in leaving if index >= 0)))
    reached = {index for one in exits for _, index in one.inputs}
    entries: dict[int, tuple[Any, list[int]]] = {}
    for node, nr in outputs:
        entries.setdefault(id(node), (node, []))[1].append(nr)
    passed_on = {
        (id(node), nr): known[id(node), nr] for node, nr in outputs if (id(node), nr) in known and known[id(node), nr] not in reached
    }
    return Region([(node, tuple(places), key in own) for key, (node, places) in entries.items()], exits, passed_on)


def _number(node: Any) -> int:
    """Number of a node; of one that has none, as if it were made now."""
    read = getattr(node, "_sequence_nr", None)
    return _LEAF - 1 if read is None else int(read())
