"""Replays subgraphs in order, each over all batches, with the values between them in a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .building import Program
from .errors import TraceError
from .inputs.binding import bind
from .inputs.signature import defaults
from .inputs.sizes import AGAIN
from .nodes import Instruction, fill
from .partition import Subgraph


@dataclass
class ReplayReport:
    """Of one replay: the most bytes that the cache held, and the bytes moved to and from the host."""

    peak_bytes: int = 0
    moved_bytes: int = 0


def _bytes(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


class Intermediates:
    """Values between subgraphs, one entry for each name and batch; on the host between uses if ``offload`` is ``"cpu"``."""

    def __init__(self, offload: str | None) -> None:
        self._offload = torch.device(offload) if offload else None
        self._values: dict[tuple[int, str], tuple[Any, list[torch.device]]] = {}
        self._size = 0
        self.report = ReplayReport()

    def __len__(self) -> int:
        return len(self._values)

    def put(self, batch: int, name: str, value: Any, keep: bool = False) -> None:
        """Store a value; ``keep`` leaves it where it is, as weights are."""
        devices = [leaf.device for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        if self._offload is not None and not keep:
            self.report.moved_bytes += sum(
                leaf.numel() * leaf.element_size()
                for leaf in pytree.tree_leaves(value)
                if isinstance(leaf, torch.Tensor) and leaf.device != self._offload
            )
            value = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.to(self._offload), value)
        self._values[batch, name] = value, devices
        self._size += _bytes(value)
        self.report.peak_bytes = max(self.report.peak_bytes, self._size)

    def get(self, batch: int, name: str) -> Any:
        """A value, on the device where it was made."""
        value, devices = self._values[batch, name]
        places = iter(devices)

        def back(leaf: torch.Tensor) -> torch.Tensor:
            device = next(places)
            if leaf.device != device:
                self.report.moved_bytes += leaf.numel() * leaf.element_size()
            return leaf.to(device)

        return pytree.tree_map_only(torch.Tensor, back, value)

    def drop(self, batch: int, name: str) -> None:
        """Forget a value."""
        value, _ = self._values.pop((batch, name))
        self._size -= _bytes(value)


class Replay:
    """One replay of a program over batches of inputs."""

    def __init__(self, program: Program, subgraphs: Sequence[Subgraph], model: nn.Module, offload: str | None = None) -> None:
        self._program = program
        self._subgraphs = subgraphs
        self._model = model
        self.cache = Intermediates(offload)

    def run(self, batches: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The model's output for each batch, of the same class as the model's own.

        Raises:
            TraceError: inputs that the graph does not know or cannot take, or weights without values.
        """
        needed = {value.name for subgraph in self._subgraphs for value in subgraph.consumed if value.producer == "inputs"}
        own = defaults(self._model, self._program.inputs)
        for number, batch in enumerate(batches):
            for name, value in bind(self._program, batch, own).items():
                if name in needed:
                    self.cache.put(number, name, value)
        outputs: list[Any] = [None] * len(batches)
        for subgraph in self._subgraphs:
            for number in range(len(batches)):
                values = {value.name: self.cache.get(number, value.name) for value in subgraph.consumed}
                for name in subgraph.nodes:
                    instruction = self._program.instructions[name]
                    if instruction.kind == "output":
                        flat, spec = self._program.output
                        outputs[number] = pytree.tree_unflatten(fill(flat, values), spec) if spec is not None else fill(flat, values)
                    else:
                        values[name] = self._checked(name, self._compute(name, instruction, values))
                for value in subgraph.produced:
                    self.cache.put(number, value.name, values[value.name], self._program.nodes[value.name].op == "get_attr")
                for name in subgraph.released:
                    self.cache.drop(number, name)
        return outputs

    def _compute(self, name: str, instruction: Instruction, values: dict[str, Any]) -> Any:
        if instruction.kind == "constant":
            return instruction.value
        if instruction.kind == "weight":
            weight = _weight(self._model, instruction.path)
            if weight.device.type == "meta":
                raise TraceError(f"{instruction.path} is on the meta device: replay needs a model with weights", "other")
            return weight
        args, kwargs = fill(instruction.args, values), fill(instruction.kwargs, values)
        if instruction.kind == "module":
            result = self._model.get_submodule(instruction.path)(*args, **kwargs)
            if instruction.result == "whole":
                return result
            tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            return tensors[0] if instruction.result == "first" else tensors
        assert instruction.call is not None
        try:
            return instruction.call(*args, **kwargs)
        except TraceError:
            raise
        except (RuntimeError, IndexError, ValueError) as error:
            raise TraceError(f"{self._where(name)} cannot take these inputs: {error}", "shape") from error

    def _checked(self, name: str, value: Any) -> Any:
        """Refuse a value with another number of dimensions than in the trace, which takes no size for 1 and keeps what squeeze() drops."""
        dims = self._program.nodes[name].dims
        if self._program.tracer == "torch.export" and dims is not None and isinstance(value, torch.Tensor) and value.dim() != len(dims):
            raise TraceError(
                f"{self._where(name)} gives {value.dim()} dimensions, and {len(dims)} where the model was traced: {AGAIN}", "shape"
            )
        return value

    def _where(self, name: str) -> str:
        node = self._program.nodes[name]
        return f"{node.target} ({name}, {f'{node.file}:{node.line}' if node.file else node.module})"


def _weight(model: nn.Module, path: str) -> torch.Tensor:
    parent, _, name = path.rpartition(".")
    value = getattr(model.get_submodule(parent), name)
    assert isinstance(value, torch.Tensor)
    return value
