"""What the calls of one pass say of its control flow; plain values, without torch.

In: numbers of modules in the order in which they were called. Out: early exits, skipped layers, loops, and how a path differs from another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from inferspan.records import ModuleInfo

__all__ = ["EarlyExit", "Modules", "PathFacts"]

MOST_NAMED = 16
"""Modules that one attribute names."""


@dataclass(frozen=True, slots=True)
class EarlyExit:
    """A stack of layers of which the last ones were not called.

    Attributes:
        stack: path of the stack, such as ``model.layers``.
        layer: index of the last layer that was called.
        layers: how many the stack has.
    """

    stack: str
    layer: int
    layers: int


@dataclass(frozen=True, slots=True)
class PathFacts:
    """Facts of one path.

    Attributes:
        counts: calls by module.
        exits: stacks that were left early.
        skipped: by stack, indices of layers that were not called although later ones were.
        loops: modules that were called more often than the module around them, the outermost ones, with the number of calls.
        absent: layers that were left out by an exit or skipped.
    """

    counts: Counter[int] = field(default_factory=Counter)
    exits: tuple[EarlyExit, ...] = ()
    skipped: tuple[tuple[str, tuple[int, ...]], ...] = ()
    loops: tuple[tuple[str, int], ...] = ()
    absent: frozenset[int] = frozenset()


def _stack_of(name: str) -> tuple[str, int] | None:
    """Stack and index of a layer: a module whose name is a number, inside of no other such module."""
    parts = name.split(".")
    if not parts[-1].isdigit() or any(part.isdigit() for part in parts[:-1]):
        return None
    return ".".join(parts[:-1]), int(parts[-1])


class Modules:
    """The modules that are looked at, by number.

    Args:
        infos: of the modules, parents before their children.
    """

    def __init__(self, infos: Iterable[ModuleInfo]) -> None:
        self.names = [info.name for info in infos]
        numbers = {name: number for number, name in enumerate(self.names)}
        self._above = [self._parent(name, numbers) for name in self.names]
        stacks: dict[str, dict[int, int]] = {}
        for number, name in enumerate(self.names):
            place = _stack_of(name)
            # Experts are chosen one by one: those that are not are no layers that were left out.
            if place is not None and "expert" not in place[0].rpartition(".")[2]:
                stacks.setdefault(place[0], {})[place[1]] = number
        self._stacks = {stack: layers for stack, layers in stacks.items() if len(layers) > 1}

    @staticmethod
    def _parent(name: str, numbers: dict[str, int]) -> int | None:
        while "." in name:
            name = name.rpartition(".")[0]
            if name in numbers:
                return numbers[name]
        return None

    def facts(self, path: Sequence[int]) -> PathFacts:
        """Facts of a path."""
        counts = Counter(path)
        exits, skipped, absent = [], [], set()
        for stack, layers in self._stacks.items():
            called = {index for index, number in layers.items() if number in counts}
            if not called:
                continue
            last, highest = max(called), max(layers)
            if last < highest:
                exits.append(EarlyExit(stack, last, len(layers)))
            between = tuple(index for index in sorted(layers) if index < last and index not in called)
            if between:
                skipped.append((stack, between))
            absent |= {number for index, number in layers.items() if index not in called}
        return PathFacts(counts, tuple(exits), tuple(skipped), self._loops(counts), frozenset(absent))

    def _loops(self, counts: Counter[int]) -> tuple[tuple[str, int], ...]:
        found = []
        for number in sorted(counts):
            above = self._above[number]
            around = counts[above] if above is not None and above in counts else 1
            if counts[number] > around:
                found.append((self.names[number], counts[number]))
        return tuple(found[:MOST_NAMED])

    def difference(self, path: PathFacts, usual: PathFacts) -> tuple[list[str], list[str]]:
        """Modules that were called in one path only: those of ``path``, and those of ``usual``; the outermost, without layers left out."""
        return self._outermost(path.counts.keys() - usual.counts.keys(), usual.absent), self._outermost(
            usual.counts.keys() - path.counts.keys(), path.absent
        )

    def _outermost(self, numbers: set[int], absent: frozenset[int]) -> list[str]:
        found = []
        for number in sorted(numbers):
            above: int | None = number
            within = number in absent
            while not within and (above := self._above[above]) is not None:  # type: ignore[index]
                within = above in numbers or above in absent
            if not within:
                found.append(self.names[number])
        return found[:MOST_NAMED]
