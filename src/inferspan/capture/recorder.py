"""The recorder of module calls that this process uses: the C extension where it was built and is wanted, else its twin in Python."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..extension import load
from ..guard import contain
from . import boundaries, python_recorder
from .failures import error_type
from .python_recorder import current
from .shapes import MAX_ENTRIES, describe

__all__ = ["IN_C", "Boundaries", "Forward", "Hot", "Marks", "Tape", "bind", "current", "driver_events"]


def _failed(error: Exception) -> None:
    """Contain an exception of ours that C code has met."""
    with contain("module call"):
        raise error


_extension: Any = load().module
IN_C = _extension is not None
"""Whether calls are recorded by the C extension."""


def bind() -> None:
    """Give C code what it asks Python for."""
    if IN_C:
        _extension.bind(
            current=current,
            describe=describe,
            failed=_failed,
            error_type=error_type,
            tensor=Tensor,
            clock=perf_counter_ns,
            most_entries=MAX_ENTRIES,
        )


bind()
if TYPE_CHECKING or not IN_C:
    # Each on a line of its own, or mypy takes them for variables.
    Boundaries = boundaries.Boundaries
    Forward = python_recorder.Forward
    Hot = python_recorder.Hot
    Marks = boundaries.Marks
    Tape = python_recorder.Tape
else:
    Boundaries, Forward, Hot = _extension.Boundaries, _extension.Forward, _extension.Hot
    Marks, Tape = _extension.Marks, _extension.Tape


def driver_events(**parts: Any) -> Any:
    """What records and reads the events of a pool in C, ``None`` where that is done in Python; see ``Events`` in ``_recorder.c``."""
    return _extension.Events(**parts) if IN_C else None
