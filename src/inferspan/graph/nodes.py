"""Nodes and edges of a graph: what each operation is, takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree


class Ref(NamedTuple):
    """The value of another node, in the arguments of one."""

    name: str


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
        name: unique in the graph.
        op: ``placeholder``, ``get_attr``, ``call_function``, ``call_module`` or ``output``.
        target: operator, path of the module or weight, or name of the input.
        inputs: names of the nodes whose values it takes.
        shape: of its value with the sample, None if the value is no tensor or its shape depends on values.
        dims: the same as text, with a letter for each size that may differ.
        dtype: of its value, such as ``float32``; None if it is no tensor.
        bytes: of its value with the sample; None if not known.
        module: path of the module in which it ran, ``""`` for the model itself.
        module_class: class of that module.
        file: of the model's source.
        line: in that file.
    """

    name: str
    op: str
    target: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...] | None = None
    dims: tuple[str, ...] | None = None
    dtype: str | None = None
    bytes: int | None = None
    module: str = ""
    module_class: str = ""
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Edge:
    """One value on its way from the node that gives it to one that takes it."""

    producer: str
    consumer: str
    name: str
    bytes: int | None


@dataclass
class Instruction:
    """How a node is computed: a function or module path, and arguments in which ``Ref`` stands for values.

    ``result`` says what a called module's value is: its ``first`` tensor, a list of ``all`` its tensors, or ``whole``, what it returned.
    ``parameters`` are the paths of the weights that a function uses, where it is a part of the model itself.
    """

    kind: str
    call: Callable[..., Any] | None = None
    path: str = ""
    args: Any = ()
    kwargs: Any = field(default_factory=dict)
    value: Any = None
    result: str = "whole"
    parameters: tuple[str, ...] = ()


def references(*structures: Any) -> tuple[str, ...]:
    """Names of the values in arguments, each once, in their order."""
    leaves = pytree.tree_leaves(structures, is_leaf=lambda value: isinstance(value, Ref))
    return tuple(dict.fromkeys(leaf.name for leaf in leaves if isinstance(leaf, Ref)))


def fill(structure: Any, values: dict[str, Any]) -> Any:
    """Arguments with values in place of references."""
    return pytree.tree_map(
        lambda value: values[value.name] if isinstance(value, Ref) else value, structure, is_leaf=lambda value: isinstance(value, Ref)
    )


def size_hint(value: Any) -> int | None:
    """A size of the sample, without fixing it; None if values decide it."""
    if isinstance(value, int):
        return value
    hint = getattr(value.node, "hint", None)
    return int(hint) if isinstance(hint, int) or (hint is not None and str(hint).lstrip("-").isdigit()) else None


def described(value: Any) -> dict[str, Any]:
    """Shape, dims, dtype and bytes of a value; of a list of tensors the bytes of all."""
    if isinstance(value, torch.Tensor):
        sizes = [size_hint(size) for size in value.shape]
        known = [size for size in sizes if size is not None]
        whole = len(known) == len(sizes)
        count = 1
        for size in known:
            count *= size
        return {
            "shape": tuple(known) if whole else None,
            "dims": tuple(str(size) for size in value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
            "bytes": count * value.element_size() if whole else None,
        }
    if isinstance(value, (tuple, list)) and value and all(isinstance(entry, torch.Tensor) for entry in value):
        sizes = [described(entry)["bytes"] for entry in value]
        return {"bytes": None if None in sizes else sum(size for size in sizes if size is not None)}
    return {}
