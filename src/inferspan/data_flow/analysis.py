"""What the edges of a pass mean: where a tensor was really made, who uses it in the end, and which connections skip others.

A module that contains others passes tensors on: what it takes goes to modules inside, what it returns was made by one of them. Here these
steps are removed, so that edges join the modules that make a tensor and those that use it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from inferspan.records import FlowCall, FlowEdge

__all__ = ["MODEL", "Analysis"]

MODEL = -1
"""Stands for the model: its inputs as a source, its result as a target."""
INPUT, OUTPUT = "input", "output"
_TAKEN = "taken"
Key = tuple[int, str]
"""A source: number of a call, or ``MODEL`` and the name of an input or of a module in an earlier pass."""


class Analysis:
    """The edges of one pass, analysed.

    Attributes:
        final: of each edge, whether its target uses the tensor itself: no module inside of it does.
        inner: of each edge, whether a module around its target takes the same tensor.
        skip: of each edge, whether the tensor also reaches its target through other modules.
        consumers: of each edge, how many modules use its tensor in the end.
        sources: of each edge, what has really made its tensor.
    """

    def __init__(self, calls: Sequence[FlowCall], edges: Sequence[FlowEdge]) -> None:
        self._parents = {call.number: call.parent for call in calls}
        self._around = {call.parent for call in calls}
        self._edges = edges
        origins = self._origins()
        owners = {edge.tensor: _source(edge) for edge in edges if edge.kind == INPUT or edge.kind == OUTPUT}
        owners.update((edge.into, (edge.target, "")) for edge in edges if edge.into >= 0)
        self.sources = [owners[origins.get(edge.tensor, edge.tensor)] for edge in edges]
        self.inner, self.final = self._levels(origins)
        users: dict[int, set[int]] = defaultdict(set)
        for edge, final in zip(edges, self.final, strict=True):
            if final:
                users[origins.get(edge.tensor, edge.tensor)].add(edge.target)
        self.consumers = [len(users[origins.get(edge.tensor, edge.tensor)]) for edge in edges]
        self.skip = self._skips()

    def _above(self, number: int) -> Iterator[int]:
        """The calls around a call, from the inside out."""
        seen = 0
        while (number := self._parents.get(number, MODEL)) != MODEL and seen <= len(self._parents):
            seen += 1
            yield number

    def _origins(self) -> dict[int, int]:
        """For each tensor that a module returns as a module inside has returned it, the number that it had first."""
        before = {
            edge.into: edge.tensor
            for edge in self._edges
            if edge.kind == OUTPUT and edge.into >= 0 and not edge.via and edge.target in self._around
        }
        found: dict[int, int] = {}
        for tensor in before:
            first, steps = tensor, 0
            while first in before and steps <= len(before):
                first, steps = before[first], steps + 1
            found[tensor] = first
        return found

    def _levels(self, origins: dict[int, int]) -> tuple[list[bool], list[bool]]:
        taken: dict[tuple[int, int], list[int]] = defaultdict(list)
        for place, edge in enumerate(self._edges):
            if edge.kind == INPUT:
                taken[edge.target, edge.tensor].append(place)
        inner = [False] * len(self._edges)
        final = [True] * len(self._edges)
        for place, edge in enumerate(self._edges):
            if edge.kind == OUTPUT:
                # What is returned as it came was not used by the module that returns it.
                if edge.into >= 0 and origins.get(edge.into, edge.into) != edge.into:
                    final[place] = False
                around = [*([edge.target] if edge.target != MODEL else []), *self._above(edge.target)]
            else:
                around = [*self._above(edge.target)]
            for number in around:
                for passing in self._passed_on(taken.get((number, edge.tensor), ()), edge):
                    if passing != place:
                        final[passing] = False
                        inner[place] = inner[place] or edge.kind == INPUT
        return inner, final

    def _passed_on(self, places: Sequence[int], edge: FlowEdge) -> Sequence[int]:
        """The edges, of those of one tensor to a module around, that end at ``edge``: a module may take a tensor in several ways."""
        if len(places) < 2:
            return places
        found = [place for place in places if self._edges[place].via == edge.via[: len(self._edges[place].via)]]
        longest = max((len(self._edges[place].via) for place in found), default=0)
        return [place for place in found if len(self._edges[place].via) == longest]

    def order(self) -> list[int]:
        """The calls in the order in which they ended."""
        return [number for number, port in self._events() if number != MODEL and port != _TAKEN]

    def _skips(self) -> list[bool]:
        """Edges between which another path leads; by the sets of what lies before each node, as bits of a number.

        A module that contains others is two nodes: what it takes for its own operations, and what it returns. Its own operations may use
        the one for the other, and for modules inside whose inputs are not known.
        """
        events = self._events()
        nodes = {key: place for place, key in enumerate(dict.fromkeys([*(key for key in self.sources if key[0] == MODEL), *events]))}
        coming: dict[Key, set[Key]] = defaultdict(set)
        ends: list[Key] = []
        for edge, source, final in zip(self._edges, self.sources, self.final, strict=True):
            taken = edge.kind == INPUT and edge.target in self._around
            end = (edge.target, _TAKEN if taken else "")
            ends.append(end)
            if final and nodes[source] < nodes[end]:
                coming[end].add(source)
        before: dict[Key, int] = {}
        for key in nodes:
            above = self._possible(key, coming)
            before[key] = 0
            for source in (*coming[key], *above):
                before[key] |= before[source] | 1 << nodes[source]
        skip = [
            final and any(other != source and before[other] >> nodes[source] & 1 for other in coming[end])
            for end, source, final in zip(ends, self.sources, self.final, strict=True)
        ]
        return self._of_containers(skip)

    def _possible(self, key: Key, coming: dict[Key, set[Key]]) -> list[Key]:
        """Nodes that a node may depend on without an edge."""
        number, port = key
        if number == MODEL:
            return []
        if number in self._around and port != _TAKEN:
            return [(number, _TAKEN)]
        if coming[key]:
            return []
        return [(above, _TAKEN) for above in self._above(number)]

    def _events(self) -> list[Key]:
        """The nodes in the order of time: a container is one when it is called and one when it returns, another module when it returns."""
        found: list[Key] = []
        opened: list[int] = []
        for number in sorted(self._parents):
            parent = self._parents[number]
            while opened and opened[-1] != parent:
                found.append((opened.pop(), ""))
            if number in self._around:
                found.append((number, _TAKEN))
            opened.append(number)
        found.extend((number, "") for number in reversed(opened))
        return [*found, (MODEL, "")]

    def _of_containers(self, skip: list[bool]) -> list[bool]:
        """A module takes a tensor that skips others if all of the modules inside, which use it in the end, do."""
        below: dict[tuple[int, int], list[bool]] = defaultdict(list)
        for edge, skips, final in zip(self._edges, skip, self.final, strict=True):
            if final and edge.kind == INPUT:
                for number in self._above(edge.target):
                    below[number, edge.tensor].append(skips)
        return [
            skips if final or edge.kind != INPUT else bool(inside := below[edge.target, edge.tensor]) and all(inside)
            for edge, skips, final in zip(self._edges, skip, self.final, strict=True)
        ]


def _source(edge: FlowEdge) -> Key:
    return (edge.source, "") if edge.source >= 0 else (MODEL, f"{edge.origin} {edge.name}")
