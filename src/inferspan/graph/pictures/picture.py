"""The boxes and links of a picture: nodes joined by module, subgraphs as frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from inferspan.pictures.boxes import Box, Frame, Link, Value
from inferspan.pictures.picture import Picture, folded

from ..nodes import Node
from ..partition import Subgraph

__all__ = ["Picture", "draw"]


@dataclass
class _Drawing:
    """Boxes while nodes join them."""

    nodes: Mapping[str, Node]
    depth: int
    ignored: frozenset[str]
    targets: frozenset[str]
    sizes: Mapping[str, int]
    boxes: dict[str, Box] = field(default_factory=dict)
    home: dict[str, str] = field(default_factory=dict)
    before: dict[str, set[str]] = field(default_factory=dict)
    latest: dict[tuple[int, str], str] = field(default_factory=dict)

    def box(self, kind: str, path: str, module_class: str, frame: int | None) -> str:
        """A new box."""
        name = f"b{len(self.boxes)}"
        self.boxes[name] = Box(name, kind, path, module_class, frame)
        self.before[name] = set()
        return name

    def add(self, node: Node, frame: int, classes: Mapping[str, str]) -> None:
        """Put a node into a box: of its own for calls of modules, else that of its module, if no circle comes of it."""
        sources = {self.home[name] for name in node.inputs if name in self.home}
        if node.op == "call_module" or node.target.endswith("the first target") or node.target.endswith("the last target"):
            kind = "target" if node.target in self.targets else "ignored" if node.target in self.ignored else "module"
            place = self.box(kind, node.target, node.module_class, frame)
        elif node.target in ("_operator.getitem", "<built-in function getitem>") and self.nodes[node.inputs[0]].op == "call_module":
            place = self.home[node.inputs[0]]
        else:
            path = ".".join(node.module.split(".")[: self.depth]) if node.module else ""
            known = self.latest.get((frame, path))
            place = (
                known if known is not None and not self._circle(known, sources) else self.box("module", path, classes.get(path, ""), frame)
            )
            self.latest[frame, path] = place
        self.home[node.name] = place
        self.before[place] |= sources - {place}
        size = self.sizes.get(node.name, 0) + sum(self._weight(name, place) for name in node.inputs)
        old = self.boxes[place]
        self.boxes[place] = replace(
            old, operations=old.operations + (node.op == "call_function"), parameter_bytes=old.parameter_bytes + size
        )

    def _weight(self, name: str, place: str) -> int:
        """Bytes of a weight, for the first box that takes it."""
        if self.nodes[name].op != "get_attr" or name in self._weights:
            return 0
        self._weights.add(name)
        return self.sizes.get(name, 0)

    _weights: set[str] = field(default_factory=set)

    def _circle(self, box: str, sources: Iterable[str]) -> bool:
        """Whether one of the sources, other than the box, depends on it."""
        waiting, seen = [source for source in sources if source != box], set[str]()
        while waiting:
            current = waiting.pop()
            if current == box:
                return True
            if current not in seen:
                seen.add(current)
                waiting.extend(self.before[current])
        return False


def draw(
    title: str,
    nodes: Mapping[str, Node],
    subgraphs: Sequence[Subgraph],
    targets: Iterable[str],
    ignored: Iterable[str],
    sizes: Mapping[str, int],
    classes: Mapping[str, str],
    depth: int = 2,
) -> Picture:
    """Draw a graph.

    Args:
        title: of the picture.
        nodes: of the graph, by name.
        subgraphs: its parts.
        targets: paths; each call is one box.
        ignored: the same.
        sizes: bytes of weights by node.
        classes: class of each module by path.
        depth: how many parts of a module's path tell boxes apart: 0 joins all operations of a subgraph that lie in no target.
    """
    if depth < 0:
        raise ValueError("depth is 0 or more")
    drawing = _Drawing(nodes, depth, frozenset(ignored), frozenset(targets), sizes)
    taken = {name for node in nodes.values() for name in node.inputs}
    for node in nodes.values():
        if node.op == "placeholder" and node.name in taken:
            drawing.home[node.name] = drawing.box("input", node.target, "", None)
    output = ""
    for subgraph in subgraphs:
        for name in subgraph.nodes:
            node = nodes[name]
            if node.op == "output":
                output = drawing.home[name] = drawing.box("output", "output", "", None)
            elif node.op != "get_attr":
                drawing.add(node, subgraph.index, classes)
    members: dict[int, list[str]] = {subgraph.index: [] for subgraph in subgraphs}
    for box in drawing.boxes.values():
        if box.frame is not None:
            members[box.frame].append(box.id)
    frames = [
        Frame(subgraph.index, subgraph.target, classes.get(subgraph.target or "", ""), tuple(members[subgraph.index]))
        for subgraph in subgraphs
        if members[subgraph.index]
    ]
    return folded(title, drawing.boxes, frames, _links(nodes, drawing), output)


def _links(nodes: Mapping[str, Node], drawing: _Drawing) -> list[Link]:
    found: dict[tuple[str, str], dict[str, Value]] = {}
    for node in nodes.values():
        target = drawing.home.get(node.name)
        for name in node.inputs:
            source = drawing.home.get(name)
            if source is not None and target is not None and source != target:
                made = nodes[name]
                found.setdefault((source, target), {})[name] = Value(name, made.dtype, made.dims, made.bytes)
    return [Link(source, target, tuple(values.values())) for (source, target), values in found.items()]
