"""Cuts a graph at its targets: what each subgraph computes, takes, gives, and what nothing needs after it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .nodes import Instruction, Node


@dataclass(frozen=True)
class Value:
    """A value that crosses from one subgraph to another, or comes from the model's inputs (``producer`` is then ``inputs``)."""

    name: str
    producer: str
    shape: tuple[int, ...] | None
    dtype: str | None
    bytes: int | None


@dataclass(frozen=True)
class Subgraph:
    """One part of a graph.

    Attributes:
        index: its place in the order of execution.
        target: path of the target whose call ends it, None for the last one.
        nodes: names, in order.
        operators: operators that it calls, each once.
        modules: paths of the modules in which its operations ran.
        parameter_bytes: of weights that it is the first to use, those inside called modules included.
        consumed: values from the model's inputs or from earlier subgraphs.
        produced: values that later subgraphs or the model's output take.
        released: names consumed here or produced here for the output that nothing needs afterwards.
    """

    index: int
    target: str | None
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    modules: tuple[str, ...]
    parameter_bytes: int
    consumed: tuple[Value, ...]
    produced: tuple[Value, ...]
    released: tuple[str, ...]


def cut(nodes: Mapping[str, Node], instructions: Mapping[str, Instruction], targets: Iterable[str]) -> list[list[str]]:
    """Names of the nodes of each subgraph: a call of a target ends one. Weights and constants go where they are first used."""
    wanted = set(targets)
    groups: list[list[str]] = [[]]
    home: dict[str, int] = {}
    for node in nodes.values():
        if node.op in ("get_attr", "placeholder"):
            continue
        place = len(groups) - 1
        if instructions[node.name].call is operator.getitem and nodes[node.inputs[0]].op == "call_module":
            place = home[node.inputs[0]]
        for name in node.inputs:
            if name not in home and nodes[name].op == "get_attr":
                home[name] = place
                groups[place].append(name)
        home[node.name] = place
        groups[place].append(node.name)
        if node.op == "call_module" and node.target in wanted:
            groups.append([])
    return groups


def subgraphs(
    nodes: Mapping[str, Node], groups: list[list[str]], targets: Iterable[str], parameter_bytes: Mapping[str, int]
) -> tuple[Subgraph, ...]:
    """Describe each group of nodes: what it takes and gives, and what nothing needs after it.

    Args:
        nodes: of the graph.
        groups: names of the nodes of each subgraph.
        targets: paths of the targets.
        parameter_bytes: bytes of each weight node and of the weights inside each called module, by node.
    """
    wanted = set(targets)
    home = {name: index for index, names in enumerate(groups) for name in names}
    last = _last_uses(nodes, home)
    counted: set[str] = set()
    described = []
    for index, names in enumerate(groups):
        taken = dict.fromkeys(name for own in names for name in nodes[own].inputs if home.get(name, -1) != index)
        given = [name for name in names if last.get(name, index) > index]
        size = 0
        for name in names:
            if name not in counted and name in parameter_bytes:
                size += parameter_bytes[name]
        counted.update(names)
        own = [nodes[name] for name in names]
        called = [node.target for node in own if node.op == "call_module" and node.target in wanted]
        described.append(
            Subgraph(
                index,
                called[-1] if called else None,
                tuple(names),
                tuple(dict.fromkeys(node.target for node in own if node.op == "call_function")),
                tuple(dict.fromkeys(node.module for node in own if node.op not in ("output", "get_attr"))),
                size,
                tuple(_value(nodes[name], home) for name in taken),
                tuple(_value(nodes[name], home) for name in given),
                tuple(name for name in taken if last[name] == index),
            )
        )
    return tuple(described)


def _value(node: Node, home: Mapping[str, int]) -> Value:
    producer = "inputs" if node.op == "placeholder" else str(home[node.name])
    return Value(node.name, producer, node.shape, node.dtype, node.bytes)


def _last_uses(nodes: Mapping[str, Node], home: Mapping[str, int]) -> dict[str, int]:
    """The last subgraph that takes each value."""
    last: dict[str, int] = {}
    for node in nodes.values():
        if node.name in home:
            for name in node.inputs:
                last[name] = max(last.get(name, -1), home[node.name])
    return last
