"""Memory at the beginning and end of a stage of the program: torch's CUDA allocator, else the resident memory of the process.

torch is only looked up, never imported, and nothing waits for the device. A reading that fails is ``None``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple

from .allocator import allocated_bytes

__all__ = ["MemoryReader", "Reading"]

_STATM = "/proc/self/statm"
KEPT_NS = 5_000_000
"""How long a reading of the process counts: it is of the whole process, and costs as much as a short stage. One that begins and ends with
the same reading has no difference."""


class Reading(NamedTuple):
    """Bytes, and which memory they are of: two readings are comparable only if that is the same."""

    of: str
    bytes: int

    def since(self, before: Reading | None) -> int | None:
        """Bytes more than before, with sign; ``None`` if they cannot be compared, or are the same reading."""
        return self.bytes - before.bytes if before is not None and before is not self and before.of == self.of else None


class MemoryReader:
    """Reads the memory in use.

    Args:
        allocator: whether torch's allocator may be asked.
        host: whether the process may be asked; done where CUDA is not initialised.
        now: monotonic clock, in nanoseconds.
    """

    __slots__ = ("_allocator", "_host", "_last", "_now", "_read_at")

    def __init__(self, *, allocator: bool, host: bool, now: Callable[[], int] = perf_counter_ns) -> None:
        self._allocator, self._host, self._now = allocator, host, now
        self._last: Reading | None = None
        self._read_at = 0

    def __call__(self) -> Reading | None:
        """The memory in use now; ``None`` where nothing measures it."""
        if self._allocator:
            allocated = allocated_bytes()
            if allocated is not None:
                return Reading("cuda", allocated)
        if not self._host:
            return None
        now = self._now()
        if self._last is None or now - self._read_at >= KEPT_NS:
            self._last, self._read_at = Reading("resident", _resident()), now
        return self._last


def _resident() -> int:
    """Resident bytes of this process."""
    try:
        descriptor = os.open(_STATM, os.O_RDONLY)
        try:
            return int(os.read(descriptor, 128).split()[1]) * os.sysconf("SC_PAGE_SIZE")
        finally:
            os.close(descriptor)
    except (OSError, ValueError, IndexError, AttributeError):
        pass
    import psutil

    return int(psutil.Process().memory_info().rss)
