"""Outputs that the C extension keeps for some passes; ``deferred`` decides whose, and counts them.

In: modules whose outputs may be kept. Out: outputs, with a note of each call. In Python keeping one takes some 30 us between two launches
of a large model, in C two or three.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from inferspan.extension import load

__all__ = ["Keeper", "KeptModules", "Limits", "NoKeeper", "Note", "notes_of", "number_of_notes"]

Keeper = Any
"""``KeptOutputs`` of the C extension."""
_NOTE = struct.Struct("=qqiiii")
_extension: Any = load().module
_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Note(NamedTuple):
    """What is known of a call whose output is kept.

    Attributes:
        call: its number in the request.
        time: when it ended.
        module: number of its module.
        row: number of the recorded call in its pass, or -1.
        step: in which, -1 outside of one.
        elements: values of the output.
    """

    call: int
    time: int
    module: int
    row: int
    step: int
    elements: int


def notes_of(notes: bytes) -> Iterator[Note]:
    """The notes of some outputs, in their order."""
    return map(Note._make, _NOTE.iter_unpack(notes))


def number_of_notes(notes: bytes) -> int:
    """How many notes these are."""
    return len(notes) // _NOTE.size


class Limits(NamedTuple):
    """What a request may keep.

    Attributes:
        number: of outputs at a time.
        bytes: of all of them.
        calls: that are looked at in all.
        elements: of one output.
        largest: bytes of the memory that one lies in.
    """

    number: int
    bytes: int
    calls: int
    elements: int
    largest: int


class NoKeeper:
    """Counts calls as a keeper does, and keeps nothing."""

    __slots__ = ("bytes", "count", "looked", "running", "step")

    def __init__(self) -> None:
        self.looked = self.count = self.bytes = 0
        self.step = -1
        self.running = False


class KeptModules:
    """Modules of one model by their numbers, and what the last request knew of their outputs; requests on several threads may share it."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self._numbers: dict[str, int] = {}
        self._last: Keeper | None = None
        self._turn = 0

    def select(self, names: Iterable[str]) -> None:
        """The modules are these from now on, in this order."""
        self.names = tuple(names)
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self._last = None

    def keeper(self, limits: Limits) -> Keeper | None:
        """What keeps outputs in a request, and knows what is kept of the last one; ``None`` without the extension."""
        if _extension is None or not self.names:
            return None
        transforms, functions = torch._C._functorch.peek_interpreter_stack, torch._C._is_torch_function_mode_enabled
        made = _extension.KeptOutputs(
            len(self.names), limits.number, limits.bytes, limits.calls, limits.elements, limits.largest, _stream, transforms, functions
        )
        last = self._last
        if last is not None:
            made.learn(last)
        return made

    def remember(self, keeper: Keeper) -> None:
        """The next request goes on with what this one allows."""
        self._last = keeper if len(self.names) == keeper.modules else None

    def in_turn(self, number: int) -> list[str]:
        """As many modules, others each time, until all have had their turn."""
        names, first = self.names, self._turn
        self._turn = (first + number) % max(1, len(names))
        return [*names[first : first + number], *names[: max(0, first + number - len(names))]] if number < len(names) else [*names]

    def refuse(self, keeper: Keeper, module: str) -> None:
        """Keep no more outputs of a module."""
        number = self._numbers.get(module)
        if number is not None and len(self.names) == keeper.modules:
            keeper.refuse(number)
