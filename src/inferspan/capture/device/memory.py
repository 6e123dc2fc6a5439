"""Memory of a request: CUDA allocator where the model is on CUDA, else the resident memory of the process.

Readings are cheap and never reset anything. A peak is exact only if the counter that the system keeps rose during the request;
otherwise it is the highest value seen at the sampled steps. Values that cannot be read are left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from inferspan import semconv
from inferspan.records import AttributeValue

__all__ = ["MemoryMeter"]

_STATM = Path("/proc/self/statm")


def _resident() -> int | None:
    """Resident bytes of this process."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        pass
    try:
        import psutil

        return int(psutil.Process().memory_info().rss)
    except Exception:
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


class MemoryMeter:
    """Memory at the start, at the end and at its highest, of one request."""

    def __init__(self, device: torch.device | None) -> None:
        self._read: Callable[[], tuple[int | None, int | None]] = lambda: (_resident(), _resident_peak())
        self._current: Callable[[], int | None] = _resident
        if device is not None and device.type == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
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
