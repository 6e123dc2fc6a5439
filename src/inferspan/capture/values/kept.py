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
_TORCH: Any = (
    getattr(torch._C, "_cuda_getCurrentRawStream", None),
    getattr(torch._C, "_cuda_isCurrentStreamCapturing", None),
    torch._C._functorch.peek_interpreter_stack,
    torch._C._is_torch_function_mode_enabled,
)
"""Functions: the current stream of a device, whether a graph is captured, what transforms tensors, and whether a mode sees calls."""


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
        self.numbers: dict[str, int] = {}
        self._last: Keeper | None = None
        self._turn = 0

    def select(self, names: Iterable[str]) -> None:
        """The modules are these from now on, in this order."""
        self.names = tuple(names)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self._last = None

    def keeper(self, limits: Limits) -> Keeper | None:
        """What keeps outputs in a request, and knows what is kept of the last one; ``None`` without the extension."""
        if _extension is None or not self.names:
            return None
        # Whether a graph is captured can be asked of the current device only; a device's default stream cannot capture.
        several = torch.cuda.is_initialized() and torch.cuda.device_count() > 1  # type: ignore[no-untyped-call]
        made = _extension.KeptOutputs(len(self.names), *limits, _TORCH, several)
        last = self._last
        if last is not None:
            made.learn(last)
        return made

    def remember(self, keeper: Keeper, names: tuple[str, ...]) -> None:
        """The next request goes on with what this one allows, if it is of the same modules."""
        if names is self.names:
            self._last = keeper

    def in_turn(self, number: int) -> list[str]:
        """As many modules, others each time, until all have had their turn."""
        names, first = self.names, self._turn
        self._turn = (first + number) % max(1, len(names))
        return [*names[first : first + number], *names[: max(0, first + number - len(names))]] if number < len(names) else [*names]
