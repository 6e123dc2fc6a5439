"""Gives the inputs of a replay to the placeholders of a graph, and refuses those for which the graph does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..building import Program
from ..errors import TraceError
from ..nodes import Ref


def bind(program: Program, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the placeholders, from keyword arguments.

    Args:
        program: of the graph.
        given: the keyword arguments.
        defaults: what forward takes for arguments that are not given.

    Raises:
        TraceError: an input is missing, unknown, of another structure, or has a size for which the graph does not hold.
    """
    unknown = [name for name in given if name not in program.inputs]
    if unknown:
        raise TraceError(f"{', '.join(unknown)}: not among the sample's inputs ({', '.join(program.inputs)})", "input")
    missing = [name for name, expected in program.inputs.items() if name not in given and _refs(expected)]
    if missing:
        raise TraceError(f"the inputs {', '.join(missing)} are missing", "input")
    values: dict[str, Any] = {}
    letters: dict[str, tuple[int, str]] = {}
    for name, expected in program.inputs.items():
        if name not in given:
            _check_default(name, expected, defaults)
            continue
        for entry, value, place in _pairs(expected, given[name], name):
            if isinstance(entry, Ref):
                _check(program, entry.name, place, value, letters)
                values[entry.name] = value
            elif not _same(value, entry):
                raise TraceError(f"{place}={_short(value)}: the graph was traced with {entry!r}, which is part of it", "input")
    program.sizes.check(letters)
    return values


def _check_default(name: str, expected: Any, defaults: Mapping[str, Any]) -> None:
    """Refuse to leave out what the sample has, where the model would then do something else than the graph."""
    traced = f"{name} is missing: the graph was traced with {name}={expected!r}, which is part of it"
    if name not in defaults:
        raise TraceError(f"{traced}; give it, or trace again without it", "input")
    try:
        equal = all(_same(value, entry) for entry, value, _ in _pairs(expected, defaults[name], name))
    except TraceError:
        equal = False
    if not equal:
        raise TraceError(f"{traced}, and forward's default is {_short(defaults[name])}; give it, or trace again without it", "input")


def _pairs(expected: Any, given: Any, place: str) -> Iterator[tuple[Any, Any, str]]:
    """Each leaf of the sample's structure with the value that is given for it and its place; entries of mappings go by key."""
    if isinstance(expected, Ref) or (_is_leaf(expected) and _is_leaf(given)):
        yield expected, given, place
        return
    if type(given) is not type(expected):
        raise TraceError(f"{place} is a {type(given).__name__}, and was a {type(expected).__name__} in the sample", "input")
    if isinstance(expected, Mapping):
        if given.keys() != expected.keys():
            raise TraceError(f"{place} has the keys {_names(given)}, and {_names(expected)} in the sample", "input")
        for key, entry in expected.items():
            yield from _pairs(entry, given[key], f"{place}[{key!r}]")
        return
    wanted, spec = _entries(expected)
    found, own = _entries(given)
    if len(found) != len(wanted):
        raise TraceError(f"{place} has {len(found)} entries, and {len(wanted)} in the sample", "input")
    if own != spec:
        raise TraceError(f"{place} has another structure than in the sample: {own} instead of {spec}", "input")
    for number, (entry, value) in enumerate(zip(wanted, found, strict=True)):
        yield from _pairs(entry, value, f"{place}[{number}]")


def _entries(container: Any) -> tuple[list[Any], Any]:
    """What a container holds, without what is in there, and its own shape."""
    return pytree.tree_flatten(container, is_leaf=lambda value: value is not container)


def _is_leaf(value: Any) -> bool:
    return pytree.tree_structure(value).is_leaf()


def _names(mapping: Mapping[Any, Any]) -> str:
    return ", ".join(repr(key) for key in mapping) or "none"


def _short(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _same(one: Any, other: Any) -> bool:
    """Whether two inputs that are no tensors are equal; 1, 1.0 and True are not, for a model can tell them apart."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):
        return False  # Arrays and the like do not say in one word whether they are equal.


def _refs(structure: Any) -> bool:
    return any(isinstance(leaf, Ref) for leaf in pytree.tree_leaves(structure, is_leaf=lambda value: isinstance(value, Ref)))


def _check(program: Program, node_name: str, name: str, value: Any, letters: dict[str, tuple[int, str]]) -> None:
    node = program.nodes[node_name]
    if not isinstance(value, torch.Tensor):
        raise TraceError(f"{name} is a {type(value).__name__}, and was a tensor in the sample", "input")
    dims = node.dims or ()
    if len(dims) != value.dim():
        raise TraceError(f"{name} has {value.dim()} dimensions, and {len(dims)} in the sample", "input")
    if str(value.dtype).removeprefix("torch.") != node.dtype:
        raise TraceError(f"{name} is {value.dtype}, and was {node.dtype} in the sample", "dtype")
    for number, (dim, size) in enumerate(zip(dims, value.shape, strict=True)):
        if dim.isdigit():
            if int(dim) != size:
                raise TraceError(f"dimension {number} of {name} is {size}: the model fixes it to {dim}", "shape")
            continue
        known = letters.setdefault(dim, (size, f"dimension {number} of {name}"))
        if known[0] != size:
            raise TraceError(f"dimension {number} of {name} is {size}, and {known[1]}, which must be equal, is {known[0]}", "shape")
