"""Memory of a request, step or module: CUDA allocator where the model is on CUDA, else the resident memory of the process.

Readings are cheap and never reset anything. A peak is exact only if the counter that the system keeps rose during the request;
otherwise it is the highest value seen at the sampled steps. Values that cannot be read are left out.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from torch import nn

from inferspan import semconv
from inferspan.guard import pass_on
from inferspan.records import AttributeValue

__all__ = ["MemoryMeter", "Read", "Reading", "device_of", "has_allocator", "reader_on"]

_STATM = "/proc/self/statm"
_PAGE = mmap.PAGESIZE


def _resident() -> int | None:
    """Resident bytes of this process."""
    try:
        # Not held open: in a forked child it would be that of the parent. A file object would take twice as long.
        opened = os.open(_STATM, os.O_RDONLY)
        try:
            return int(os.read(opened, 256).split(None, 2)[1]) * _PAGE
        finally:
            os.close(opened)
    except (OSError, ValueError, IndexError):
        pass
    try:
        import psutil

        return int(psutil.Process().memory_info().rss)
    except Exception as error:
        pass_on(error)
        return None


def _resident_peak() -> int | None:
    """Highest resident bytes since the process started."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


def _allocated(device: torch.device) -> tuple[int | None, int | None]:
    """Bytes of torch's allocator on ``device`` now, and at most since the process started or the user reset it.

    ``torch.cuda.memory_allocated`` flattens and sorts all statistics of the allocator for each figure: half a millisecond on an H200.
    """
    figures = torch.cuda.memory_stats_as_nested_dict(device).get("allocated_bytes", {}).get("all", {})
    return figures.get("current"), figures.get("peak")


class Reading(NamedTuple):
    """Memory at one moment, in bytes; ``None`` where the system does not tell.

    ``allocated`` and ``reserved`` are those of torch's CUDA allocator. ``high_water`` is the most that was allocated since the process
    began or the program has reset torch's peak. Without CUDA ``allocated`` is the resident memory of the process, and nothing is reserved.
    """

    allocated: int | None
    reserved: int | None
    high_water: int | None


Read = Callable[[], Reading]


def _resident_reading() -> Reading:
    allocated, peak = _resident(), _resident_peak()
    # The system updates its two counters at different times.
    return Reading(allocated, None, peak if peak is None or allocated is None else max(peak, allocated))


def _allocator_reading(device: torch.device | int) -> Reading:
    """All three figures from one call of torch, which takes the lock of the allocator and asks nothing of the device."""
    figures = torch.cuda.memory_stats_as_nested_dict(device)
    allocated, reserved = figures.get("allocated_bytes", {}).get("all", {}), figures.get("reserved_bytes", {}).get("all", {})
    return Reading(allocated.get("current"), reserved.get("current"), allocated.get("peak"))


def has_allocator(device: torch.device | None) -> bool:
    """Whether memory on the device is that of an allocator that can be asked."""
    return device is not None and device.type == "cuda" and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def reader_on(device: torch.device | None) -> Read:
    """What reads memory for a model on this device."""
    if device is None or not has_allocator(device):
        return _resident_reading
    return partial(_allocator_reading, device if device.index is None else device.index)


def device_of(module: nn.Module) -> torch.device | None:
    """Device of the first parameter or buffer of a module; ``None`` without one."""
    tensor = next(chain(module.parameters(), module.buffers()), None)
    return None if tensor is None else tensor.device


class MemoryMeter:
    """Memory at the start, at the end and at its highest, of one request."""

    def __init__(self, device: torch.device | None) -> None:
        self._read: Callable[[], tuple[int | None, int | None]] = lambda: (_resident(), _resident_peak())
        self._current: Callable[[], int | None] = _resident
        if device is not None and has_allocator(device):
            self._read = partial(_allocated, device)
            self._current = lambda: _allocated(device)[0]
        self._start, self._start_peak = self._read()
        self._highest = self._start or 0

    def look(self) -> None:
        """Take a reading in between."""
        value = self._current()
        if value is not None and value > self._highest:
            self._highest = value

    def attributes(self) -> dict[str, AttributeValue]:
        """The readings as attributes of the request span, bytes."""
        end, peak = self._read()
        if self._start is None or end is None:
            return {}
        self._highest = max(self._highest, end)
        # The system updates its two counters at different times, so its peak may be lower than a reading.
        exact = peak is not None and self._start_peak is not None and peak > self._start_peak and peak >= self._highest
        return {
            semconv.MEMORY_START: self._start,
            semconv.MEMORY_END: end,
            semconv.MEMORY_PEAK: peak if exact and peak is not None else self._highest,
            semconv.MEMORY_PEAK_EXACT: exact,
        }
