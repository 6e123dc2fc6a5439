"""A traced model: nodes, edges, subgraphs, and their replay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from .building import Program
from .comparing import Choice, Comparison, IgnoreCost, figures, ignore_costs
from .errors import REASONS, TraceError
from .inputs.modes import check_modes, modes
from .inputs.sizes import Size
from .nodes import Edge, Node
from .partition import Subgraph, cut, subgraphs
from .pictures.picture import Picture, draw
from .programs import program_of
from .replay import Replay, ReplayReport
from .selection import Selection, names_of, select


class Graph:
    """The forward pass of a model on one sample, as a graph in topological order.

    Attributes:
        model: the model; replay uses its weights as they are then.
        nodes: operations in order of execution.
        edges: values on their way, one for each producer and consumer.
        sizes: those that may differ from the sample's, with their ranges.
        conditions: what else must hold between them, as text.
        subgraphs: the parts between targets, in order: one more than there are calls of targets.
        tracer: ``torch.export`` or ``torch.fx``.
        pipeline: ``sequential``, ``layer`` or ``basic``.
        pipeline_reason: why it is not the one before it in the order ``sequential``, ``layer``, ``basic``; empty for the first.
        selection: which modules are targets and which are ignored.
        report: bytes of the last replay.
    """

    def __init__(
        self,
        model: nn.Module,
        program: Program,
        selection: Selection,
        sample: Mapping[str, Any],
        pipeline: str = "sequential",
        why: str = "",
    ) -> None:
        self.model = model
        self.selection = selection
        self.pipeline = pipeline
        self.pipeline_reason = why
        self.tracer = program.tracer
        self.report = ReplayReport()
        self.sample = dict(sample)
        self._program = program
        self._modes = modes(model, (*selection.targets, *selection.ignored_paths)) if pipeline != "basic" else {}
        self.nodes: tuple[Node, ...] = tuple(program.nodes.values())
        self.sizes: tuple[Size, ...] = tuple(program.sizes.free.values())
        self.conditions: tuple[str, ...] = tuple(program.sizes.conditions)
        targets = selection.targets if pipeline != "basic" else ()
        groups = cut(program.nodes, program.instructions, targets)
        self.subgraphs: tuple[Subgraph, ...] = subgraphs(program.nodes, groups, targets, self._parameter_bytes())

    def __repr__(self) -> str:
        name = type(self.model).__name__
        return f"<Graph of {name}: {len(self.nodes)} nodes, {len(self.subgraphs)} subgraphs, {self.pipeline} by {self.tracer}>"

    @property
    def edges(self) -> tuple[Edge, ...]:
        """One for each value and node that takes it."""
        nodes = self._program.nodes
        return tuple(Edge(name, node.name, name, nodes[name].bytes) for node in self.nodes for name in node.inputs)

    def node(self, name: str) -> Node:
        """The node of this name.

        Raises:
            KeyError: there is none.
        """
        return self._program.nodes[name]

    def modules(self) -> dict[str, str]:
        """Class by path of each module in which an operation ran, in order of first use."""
        return {node.module: node.module_class for node in self.nodes if node.op in ("call_function", "call_module")}

    def skips(self) -> tuple[Edge, ...]:
        """Edges of activations that pass over a whole subgraph: residuals, masks, an encoder's output in each decoder layer."""
        home = {name: subgraph.index for subgraph in self.subgraphs for name in subgraph.nodes}
        return tuple(
            edge
            for edge in self.edges
            if edge.producer in home and home[edge.consumer] - home[edge.producer] > 1 and self.node(edge.producer).op != "get_attr"
        )

    def run(self, **inputs: Any) -> Any:
        """Replay the graph on one batch of keyword arguments.

        Returns:
            What the model returns, of the same class.

        Raises:
            TraceError: inputs for which the graph does not hold, or a model in another mode than when it was traced.
        """
        return self.replay([inputs])[0]

    def replay(self, batches: Sequence[Mapping[str, Any]], offload: str | None = None) -> list[Any]:
        """Replay the graph: each subgraph over all batches before the next one begins.

        Args:
            batches: keyword arguments of each call.
            offload: ``"cpu"`` keeps values between subgraphs on the host.

        Returns:
            What the model returns for each batch. ``report`` then has the largest size of the cache and bytes moved.

        Raises:
            TraceError: inputs for which the graph does not hold, or a model in another mode than when it was traced.
        """
        if offload not in (None, "cpu"):
            raise ValueError(f"offload is None or 'cpu', not {offload!r}")
        check_modes(self.model, self._modes)
        replay = Replay(self._program, self.subgraphs, self.model, offload)
        try:
            return replay.run(batches)
        finally:
            self.report = replay.cache.report

    def as_dict(self) -> dict[str, Any]:
        """The graph as plain values: model, sizes, nodes, edges, subgraphs."""
        return {
            "schema": 1,
            "model": type(self.model).__name__,
            "tracer": self.tracer,
            "pipeline": self.pipeline,
            "targets": list(self.selection.targets),
            "ignored": list(self.selection.ignored_paths),
            "sizes": [asdict(size) for size in self.sizes],
            "conditions": list(self.conditions),
            "nodes": [asdict(node) for node in self.nodes],
            "edges": [asdict(edge) for edge in self.edges],
            "subgraphs": [asdict(subgraph) for subgraph in self.subgraphs],
        }

    def to_json(self, indent: int | None = None) -> str:
        """``as_dict`` as JSON."""
        return json.dumps(self.as_dict(), indent=indent)

    def picture(self, depth: int = 2) -> Picture:
        """A picture: one box for each call of a target or an ignored module, one for each other module up to ``depth``.

        Args:
            depth: how many parts of a module's path tell the boxes of other operations apart; 0 joins those of one subgraph.

        Returns:
            Boxes, frames and links, with ``to_json()``, ``to_dot()`` and ``to_svg()``. Equal subgraphs in a row are one frame with a count.
        """
        classes = {path: type(module).__name__ for path, module in self.model.named_modules(remove_duplicate=False)}
        title = f"{type(self.model).__name__}: {len(self.subgraphs)} subgraphs"
        return draw(
            title,
            self._program.nodes,
            self.subgraphs,
            self.selection.targets,
            self.selection.ignored_paths,
            self._parameter_bytes(),
            classes,
            depth,
        )

    def to_dot(self, depth: int = 2) -> str:
        """The picture in the language of Graphviz."""
        return self.picture(depth).to_dot()

    def to_svg(self, depth: int = 2) -> str:
        """The picture as SVG."""
        return self.picture(depth).to_svg()

    def compare(self, choices: Iterable[str | Iterable[str]], show: bool = True) -> Comparison:
        """Compare choices of targets on the same model, sample and ignored modules, and print a table.

        Args:
            choices: for each, targets as ``trace`` takes them.
            show: print the table; it is also ``str()`` of what is returned.

        Returns:
            For each choice the number of subgraphs, the most bytes of weights and of intermediates at once, and what moves.

        Raises:
            ValueError: a target matches nothing.
        """
        ignored = tuple(self.selection.ignored)
        found = []
        for choice in choices:
            names = names_of(choice)
            selection = select(self.model, names, ignored, warn=False)
            try:
                nodes, parts = self._cut(selection)
                found.append(figures(names, nodes, parts, self._tokens()))
            except TraceError as error:
                found.append(Choice(names, tokens=self._tokens(), failure=f"{REASONS[error.reason]}: {error}"))
        comparison = Comparison(tuple(found))
        if show:
            print(comparison)
        return comparison

    def ignore_costs(self, attempt: bool = True) -> tuple[IgnoreCost, ...]:
        """What each ignored module costs.

        Args:
            attempt: also trace without each of them, which tells whether it is needed.

        Returns:
            For each its weights, the modules inside that can no longer be targets, and whether it is needed. ``str()`` of one is a line.
        """
        return ignore_costs(self.model, self.selection, self.selection.ignored_paths, self._fails if attempt else None)

    def _fails(self, selection: Selection) -> TraceError | None:
        try:
            self._cut(selection)
        except TraceError as error:
            return error
        return None

    def _cut(self, selection: Selection) -> tuple[Mapping[str, Node], tuple[Subgraph, ...]]:
        """The same sample traced with other leaves."""
        graph = Graph(self.model, program_of(self.model, self.sample, selection, free=False), selection, self.sample)
        return graph._program.nodes, graph.subgraphs

    def _tokens(self) -> int | None:
        for name in ("decoder_input_ids", "input_ids"):
            if isinstance(self.sample.get(name), torch.Tensor):
                return int(self.sample[name].numel())
        return None

    def _parameter_bytes(self) -> dict[str, int]:
        """Bytes of each weight node, and of the weights inside each called module at its first call."""
        seen: set[int] = set()
        sizes: dict[str, int] = {}
        for node in self.nodes:
            instruction = self._program.instructions[node.name]
            if instruction.kind == "module":
                weights: list[torch.Tensor] = list(self.model.get_submodule(instruction.path).parameters())
            elif instruction.kind == "weight":
                parent, _, name = instruction.path.rpartition(".")
                weight = getattr(self.model.get_submodule(parent), name)
                weights = [weight] if isinstance(weight, nn.Parameter) else []
            elif instruction.parameters:
                weights = [self.model.get_parameter(path) for path in instruction.parameters]
            else:
                continue
            fresh = [weight for weight in weights if id(weight) not in seen]
            seen.update(id(weight) for weight in fresh)
            sizes[node.name] = sum(weight.numel() * weight.element_size() for weight in fresh)
        return sizes
