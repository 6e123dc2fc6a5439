"""Outputs that the C extension keeps until the pass ends; ``deferred`` decides which, and counts them.

In: the first output of each module in a request, once its kind is known to stay as it is. Out: others like it, with a note of the call. In
Python keeping one takes some 10 us between two launches, in C one or two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import torch

from inferspan.extension import load

__all__ = ["NOTE", "Keeper", "NoKeeper", "new_keeper", "notes_of"]

Keeper = Any
"""``KeptOutputs`` of the C extension."""
NOTE = struct.Struct("=qqii")
"""Number of the call in its request, when it ended, number of the module, and of the recorded call in its pass or -1."""
_extension: Any = load().module
_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def new_keeper(modules: int, *, most: int, most_bytes: int, most_calls: int) -> Keeper | None:
    """What keeps outputs in a request; ``None`` without the extension.

    Args:
        modules: that are looked at.
        most: outputs that are kept at a time.
        most_bytes: of their memory.
        most_calls: that are looked at in a request.
    """
    if _extension is None or not modules:
        return None
    transforms, functions = torch._C._functorch.peek_interpreter_stack, torch._C._is_torch_function_mode_enabled
    return _extension.KeptOutputs(modules, most, most_bytes, most_calls, _stream, transforms, functions)


class NoKeeper:
    """Counts calls as a keeper does, and keeps nothing."""

    __slots__ = ("looked", "running")

    def __init__(self) -> None:
        self.looked = 0
        self.running = False


def notes_of(notes: bytes) -> Iterator[tuple[int, int, int, int]]:
    """The notes of a group, in its order."""
    return NOTE.iter_unpack(notes)
