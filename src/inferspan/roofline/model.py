"""The cost of passes of a whole model, and of single modules in them, from shapes alone.

In: what the modules of a model cost, gathered once, and the shape of a pass. Out: floating point operations and bytes, or ``None`` where a
part of the model is not known. Attention counts whole products of queries and keys, masked ones included, as ``FlopCounterMode`` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from .costs import OVER_ELEMENTS, OVER_LAST, OVER_OUTPUTS, Cost
from .peaks import Peaks

__all__ = [
    "CROSS", "ENCODER", "FRAMES", "HEAD", "MAIN", "OTHER", "PATCHES", "ROWS", "ModelCosts", "ModulePart", "Pass", "Work",
]  # fmt: skip

MAIN, HEAD, ROWS, ENCODER, FRAMES, CROSS, PATCHES, OTHER = "main", "head", "rows", "encoder", "frames", "cross", "patches", "other"
"""What goes through a module: the positions of the pass; those whose logits are computed; one position a row; the input of an encoder;
its frames, of which there are several for each position; keys and values of the encoder's output, once; patches of an image; and what is
not known, such as an image in front of a language model."""


class Work(NamedTuple):
    """Floating point operations, and the least bytes to and from the memory of the device."""

    flops: int
    bytes: int


class ModulePart(NamedTuple):
    """One module that is in the table: its path, its cost, and what goes through it."""

    path: str
    cost: Cost
    stream: str = MAIN
    scale: int = 1
    """Frames for each position."""
    cross: bool = False
    """Whether its attention sees the output of an encoder."""


class Pass(NamedTuple):
    """The shape of one forward pass.

    Attributes:
        rows: sequences.
        width: positions of each that go in.
        length: positions of each that attention sees, those in the cache included.
        static: positions of a cache of fixed size, whose whole length takes part.
        source: positions of each row of the encoder's input or output.
        copies: rows that each row of the encoder's input has here, such as those of beams.
        encodes: whether the encoder runs in it.
        fills: whether keys and values of the encoder's output are computed in it.
        head: positions of each row whose logits are computed; ``None`` for all.
        patches: patches of an image of each row.
    """

    rows: int
    width: int
    length: int
    static: int | None = None
    source: int | None = None
    encodes: bool = False
    fills: bool = False
    head: int | None = None
    patches: int | None = None
    copies: int = 1

    def positions(self, stream: str, scale: int = 1) -> int | None:
        """Positions, over all rows, that go through the modules of a stream; ``None`` if that is not known."""
        if stream == MAIN:
            return self.rows * self.width
        if stream == HEAD:
            return self.rows * (self.width if self.head is None else min(self.head, self.width))
        if stream == ROWS:
            return self.rows
        if stream == PATCHES:
            return None if self.patches is None else self.rows * self.patches
        if stream == CROSS and not self.fills:
            return 0
        if stream in (ENCODER, FRAMES) and not self.encodes:
            return 0
        rows = self.rows // self.copies if stream in (ENCODER, FRAMES) else self.rows
        return None if self.source is None or stream == OTHER else rows * self.source * scale

    def keys(self, part: ModulePart, count: int, growth: int) -> int | None:
        """Positions that each query sees, summed over so many passes whose lengths grow; ``None`` if that is not known."""
        if part.cross or part.stream == ENCODER:
            return None if self.source is None else count * self.source
        window, past = part.cost.window, self.length - self.width
        if self.static is not None:
            room = min(self.static, window) if window else self.static
            if not window or self.width == 1:
                return count * room
            # Such a layer gives its whole room, or if that is too small what it has kept and all that goes in.
            return max(room, min(past, room - 1) + self.width) if count == 1 else None
        if not window:
            return count * self.length + growth * count * (count - 1) // 2
        # Until the window is full the keys grow.
        most = window - 1
        growing = count if past + growth * (count - 1) < most else max(0, -(-(most - past) // growth)) if growth else 0
        if not growth:
            return count * (min(past, most) + self.width)
        return count * self.width + growing * past + growth * growing * (growing - 1) // 2 + (count - growing) * most


@dataclass(frozen=True, eq=False)
class ModelCosts:
    """What the modules of one model cost, with the device that it runs on.

    Attributes:
        parts: modules that cost something, in order.
        unknown: paths of modules whose cost is not known; what contains one has no figures.
        element: bytes of an element of activations and of the cache.
        kind: ``decoder``, ``encoder``, ``encoder-decoder`` or ``vision``; empty if passes of the model have no known structure.
        head: positions of a row whose logits ``generate()`` asks for; ``None`` for all.
        vocabulary: entries of a row of logits, if the model gives such.
        patch: height and width of a patch.
        extra: positions of a row beside the patches.
        source: positions that every input of the encoder has, if that is fixed.
        peaks: ceilings of the device, if known.
        asynchronous: whether the device works while the host goes on.
    """

    parts: tuple[ModulePart, ...]
    unknown: tuple[str, ...] = ()
    element: int = 4
    kind: str = ""
    head: int | None = None
    vocabulary: int = 0
    patch: tuple[int, ...] = ()
    extra: int = 0
    source: int | None = None
    peaks: Peaks | None = None
    asynchronous: bool = False
    _groups: dict[str, Counter[ModulePart]] = field(default_factory=dict, repr=False)
    """Equal parts with their number, by path of what they are inside: layers are alike, so they are computed together."""

    def of_pass(self, shape: Pass, count: int = 1, growth: int = 0) -> Work | None:
        """The work of one pass, or of several in a row.

        Args:
            shape: of the first pass.
            count: number of passes.
            growth: positions by which the length grows from one to the next.

        Returns:
            Their work together; ``None`` if the model has a part that is not known, or the shape leaves something open.
        """
        if not self.kind or self.unknown:
            return None
        return self._sum(self.inside(""), shape, count, growth)

    def of_module(self, path: str, shape: Pass) -> Work | None:
        """The work of a module and all inside it in a pass of this shape; ``None`` as for ``of_pass``, and where nothing is in it."""
        parts = self.inside(path)
        return self._sum(parts, shape, 1, 0) if parts and self.knows(path) else None

    def of_call(self, path: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work | None:
        """The work of one call of a module that is in the table, from its recorded shapes; ``None`` if it is none, or has attention.

        Args:
            path: of the module.
            inputs: (shape, dtype) of its inputs.
            outputs: (shape, dtype) of its outputs.
        """
        cost = self.leaves.get(path)
        if cost is None or cost.attention or not inputs or not outputs:
            return None
        shape = tuple((outputs if cost.over == OVER_OUTPUTS else inputs)[0][0])
        if cost.over == OVER_LAST:
            positions = prod(shape[:-1])
        elif cost.over == OVER_ELEMENTS:
            positions = prod(shape)
        elif cost.space and len(shape) == cost.space + 1:  # channels, space
            positions = prod(shape[1:])
        else:  # rows, channels, space
            positions = shape[0] * prod(shape[2:])
        return None if cost.experts and not cost.chosen else self._one(cost, positions, 1)

    def is_whole(self, paths: frozenset[str]) -> bool:
        """Whether all modules that compute something are among these."""
        return not self.unknown and all(part.path in paths for part in self.parts if part.cost.flops or part.cost.attention)

    @cached_property
    def leaves(self) -> Mapping[str, Cost]:
        """Parts by path that have no others inside."""
        above = set[str]()
        for part in self.parts:
            path = part.path.rpartition(".")[0]
            while path and path not in above:
                above.add(path)
                path = path.rpartition(".")[0]
        return {part.path: part.cost for part in self.parts if part.path not in above}

    def knows(self, path: str) -> bool:
        """Whether all that is at a path and below is known."""
        return not any(other == path or other.startswith(f"{path}.") for other in self.unknown)

    def inside(self, path: str) -> Counter[ModulePart]:
        """The parts at a path and below, equal ones together; all of them at the empty path."""
        if not self._groups:
            groups: dict[str, Counter[ModulePart]] = {"": Counter()}
            for part in self.parts:
                alike, above = part._replace(path=""), part.path
                groups[""][alike] += 1
                while above:
                    groups.setdefault(above, Counter())[alike] += 1
                    above = above.rpartition(".")[0]
            self._groups.update(groups)
        return self._groups.get(path, Counter())

    def _one(self, cost: Cost, positions: int, count: int) -> Work:
        chosen = cost.chosen if cost.experts else 1
        moved = positions * (cost.gathered + cost.moved * chosen * self.element)
        weights = cost.read(positions) if positions else 0
        return Work(count * positions * cost.flops * chosen, count * round(weights + moved))

    def _sum(self, parts: Mapping[ModulePart, int], shape: Pass, count: int, growth: int) -> Work | None:
        flops = size = 0
        for part, alike in parts.items():
            cost = part.cost
            positions = shape.positions(part.stream, part.scale)
            if positions is None or (cost.experts and not cost.chosen):
                return None
            one = self._one(cost, positions, count)
            flops, size = flops + alike * one.flops, size + alike * one.bytes
            if cost.attention and positions:
                keys = shape.keys(part, count, growth)
                if keys is None:
                    return None
                flops += alike * 4 * cost.attention * positions * keys
                rows = shape.rows // shape.copies if part.stream == ENCODER else shape.rows
                size += alike * (2 * cost.attention * positions * count + rows * keys * cost.keys) * self.element
        return Work(flops, size)
