"""What a picture consists of."""

from __future__ import annotations

from dataclasses import dataclass

from .folding import Fold


@dataclass(frozen=True)
class Box:
    """One box.

    Attributes:
        id: unique in the picture.
        kind: ``input``, ``target``, ``ignored``, ``module`` or ``output``.
        path: of the module, or name of the input.
        module_class: class of the module.
        frame: index of its subgraph; None for inputs and the output.
        parameter_bytes: of weights that it is the first to use.
        operations: number of operations in it; those inside of targets and ignored modules are not known.
    """

    id: str
    kind: str
    path: str
    module_class: str
    frame: int | None
    parameter_bytes: int = 0
    operations: int = 0


@dataclass(frozen=True)
class Value:
    """A value on a link."""

    name: str
    dtype: str | None
    dims: tuple[str, ...] | None
    bytes: int | None


@dataclass(frozen=True)
class Link:
    """What one box gives to another. ``skips``: it passes over a whole subgraph; ``loop``: from one copy of folded frames to the next."""

    source: str
    target: str
    values: tuple[Value, ...]
    skips: bool = False
    loop: bool = False


@dataclass(frozen=True)
class Frame:
    """One subgraph, or several equal ones: ``first`` to ``last`` in steps of ``step``."""

    index: int
    target: str | None
    target_class: str
    boxes: tuple[str, ...]
    count: int = 1
    step: int = 1

    @property
    def last(self) -> int:
        """Index of the last subgraph that it stands for."""
        return self.index + (self.count - 1) * self.step

    def title(self) -> str | None:
        """What it says, if that is not which subgraphs it stands for."""
        return None


@dataclass(frozen=True)
class Plan:
    """Everything that is drawn. ``folds`` are runs of equal frames that are drawn once."""

    title: str
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    links: tuple[Link, ...]
    folds: tuple[Fold, ...] = ()
