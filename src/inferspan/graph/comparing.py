"""What a choice of targets, and what ignoring a module, costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from inferspan.text.quantities import bytes_text

from .errors import TraceError
from .nodes import Node
from .partition import Subgraph
from .selection import Selection, inside

if TYPE_CHECKING:
    from collections.abc import Callable

ADVICE = (
    "Ignore the smallest module that holds the break. Heads and vision towers come first. Never ignore a module that holds wanted targets."
)
GRAIN = "Finer targets: fewer bytes at once, more moved, more time; errors and calibration results pass on in smaller steps."


@dataclass(frozen=True)
class Choice:
    """Figures of one choice of targets, with the sample's sizes.

    Attributes:
        targets: the entries that were given.
        subgraphs: number of subgraphs, None if it cannot be traced.
        largest_parameter_bytes: of the subgraph with the most: what must be on the device at once.
        largest_bytes: the most that intermediates take between two subgraphs.
        total_bytes: of all intermediates, each counted once.
        moves: intermediates that subgraphs take, each counted once for each subgraph that takes it.
        moved_bytes: bytes of these moves.
        unknown: intermediates of which the size is not known; they are in no figure of bytes.
        tokens: of the sample, None if it has no token ids.
        failure: why it cannot be traced, empty if it can.
    """

    targets: tuple[str, ...]
    subgraphs: int | None = None
    largest_parameter_bytes: int = 0
    largest_bytes: int = 0
    total_bytes: int = 0
    moves: int = 0
    moved_bytes: int = 0
    unknown: int = 0
    tokens: int | None = None
    failure: str = ""

    def per_token(self, size: int) -> float | None:
        """A number of bytes divided by the tokens of the sample."""
        return size / self.tokens if self.tokens else None


@dataclass(frozen=True)
class Comparison:
    """Choices of targets side by side."""

    choices: tuple[Choice, ...]

    def __str__(self) -> str:
        names = (
            "targets",
            "subgraphs",
            "largest weights",
            "largest intermediates",
            "a token",
            "all intermediates",
            "a token",
            "moves",
            "moved",
        )
        rows = [names, *(_row(choice) for choice in self.choices)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
        lines = [
            "  ".join(
                text.ljust(width) if number == 0 else text.rjust(width)
                for number, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        failures = [f"{', '.join(choice.targets)}: {choice.failure}" for choice in self.choices if choice.failure]
        return "\n".join((*(line.rstrip() for line in lines), *failures, GRAIN))

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {"choices": [asdict(choice) for choice in self.choices]}


def _row(choice: Choice) -> tuple[str, ...]:
    name = ", ".join(choice.targets) or "none"
    if choice.subgraphs is None:
        return (name, *["-"] * 8)

    def token(size: int) -> str:
        value = choice.per_token(size)
        return bytes_text(None if value is None else round(value))

    return (
        name,
        str(choice.subgraphs),
        bytes_text(choice.largest_parameter_bytes),
        bytes_text(choice.largest_bytes),
        token(choice.largest_bytes),
        bytes_text(choice.total_bytes),
        token(choice.total_bytes),
        str(choice.moves),
        bytes_text(choice.moved_bytes),
    )


def figures(targets: tuple[str, ...], nodes: Mapping[str, Node], subgraphs: Sequence[Subgraph], tokens: int | None) -> Choice:
    """The figures of a graph that is cut."""
    last = {name: subgraph.index for subgraph in subgraphs for name in subgraph.released}
    produced = [(subgraph.index, value) for subgraph in subgraphs for value in subgraph.produced if nodes[value.name].op != "get_attr"]
    held = [
        sum(value.bytes or 0 for start, value in produced if start <= index < last.get(value.name, start))
        for index in range(len(subgraphs))
    ]
    taken = [
        value for subgraph in subgraphs for value in subgraph.consumed if value.producer != "inputs" and nodes[value.name].op != "get_attr"
    ]
    return Choice(
        targets,
        len(subgraphs),
        max(subgraph.parameter_bytes for subgraph in subgraphs),
        max(held),
        sum(value.bytes or 0 for _, value in produced),
        len(taken),
        sum(value.bytes or 0 for value in taken),
        sum(value.bytes is None for _, value in produced),
        tokens,
    )


@dataclass(frozen=True)
class IgnoreCost:
    """What ignoring one module costs.

    Attributes:
        path: of the module.
        module_class: its class.
        parameter_bytes: of its weights, which come as one block.
        modules: modules inside that can no longer be targets.
        lost_targets: modules that the targets' names match, and that are no targets because of it.
        needed: whether the model cannot be traced without ignoring it; None if that was not tried.
    """

    path: str
    module_class: str
    parameter_bytes: int
    modules: int
    lost_targets: tuple[str, ...]
    needed: bool | None = None

    def __str__(self) -> str:
        need = {True: "needed", False: "not needed", None: "not known whether needed"}[self.needed]
        lost = f", {len(self.lost_targets)} matches of the targets' names lost" if self.lost_targets else ""
        return (
            f"{self.path} ({self.module_class}): {bytes_text(self.parameter_bytes)} of weights as one block, "
            f"{self.modules} modules inside that can no longer be targets{lost}; {need}"
        )


def ignore_costs(
    model: nn.Module, selection: Selection, paths: Iterable[str], attempt: Callable[[Selection], TraceError | None] | None = None
) -> tuple[IgnoreCost, ...]:
    """The cost of each ignored module; with ``attempt`` also whether tracing fails without it."""
    listed = tuple(paths)
    found = []
    for path in listed:
        module = model.get_submodule(path)
        size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        needed = None
        if attempt is not None:
            others = replace(selection, ignored={other: (other,) for other in listed if other != path})
            needed = attempt(others) is not None
        lost = tuple(other for other in selection.covered if inside(other, path))
        found.append(IgnoreCost(path, type(module).__name__, size, len([*module.modules()]) - 1, lost, needed))
    return tuple(found)
