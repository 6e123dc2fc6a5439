"""The first request of a process, and how long it took from the start of the process to get there: imports, loading, warm-up.

A forked child is a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["FirstRequest", "first_request", "process_start"]


def process_start() -> float | None:
    """When this process began, in seconds since the epoch; ``None`` if the system does not say, or without psutil."""
    try:
        import psutil
    except ImportError:
        return None
    try:
        return float(psutil.Process().create_time())
    except (psutil.Error, OSError):
        return None


class FirstRequest:
    """Answers once a process.

    Args:
        began: when this process began, in seconds since the epoch.
        pid: identity of this process.
    """

    def __init__(self, began: Callable[[], float | None] = process_start, pid: Callable[[], int] = os.getpid) -> None:
        self._began = began
        self._pid = pid
        self._taken: int | None = None

    def take(self, now_ns: int) -> float | None:
        """Seconds from the start of the process to ``now_ns``; ``None`` at every other call in the process, and if that is not known.

        Args:
            now_ns: when the request began, in nanoseconds since the epoch.
        """
        pid = self._pid()
        if self._taken == pid:
            return None
        self._taken = pid
        began = self._began()
        seconds = now_ns / 1e9 - began if began is not None else -1.0
        # A clock that was set since then.
        return seconds if seconds >= 0 else None


first_request = FirstRequest()
"""The one of this process."""
