"""Deferred set-up of pipelines: it waits while the system refuses new threads, and runs by itself once it grants them.

In comes a set-up that starts threads, as every batch processor and metric reader does. Nothing global is touched before as many threads
as it needs have been seen to start; what fails in the middle all the same is tried again. An ``inferspan.SettingsError`` passes through
``run``; nothing passes through ``catch_up``, which is called on the model's path and costs an attribute where nothing was put off.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable

from inferspan.guard import contain

__all__ = ["DeferredSetup", "threads_can_start"]

_log = logging.getLogger("inferspan")

NEEDED = 12
"""Threads of a set-up: three signals with a processor and a worker each, twice where a session file is written."""
LONGEST_PAUSE = 60.0
Refused = (RuntimeError, MemoryError, OSError)
"""Exceptions of Python if no thread can be started; the last one also if no file can be opened."""
_NO_THREADS = "the system refuses new threads"


def threads_can_start(count: int) -> bool:
    """Whether the system grants ``count`` more threads at once; they have ended, or are about to, when this returns."""
    leave = threading.Event()
    try:
        for _ in range(count):
            threading.Thread(target=leave.wait, name="inferspan-probe", daemon=True).start()
    except Refused:
        return False
    finally:
        leave.set()
    return True


class DeferredSetup:
    """The set-ups of one process that wait for threads.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: list[Callable[[], object]] = []
        self._told = False
        self.forked()

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the lock."""
        self._lock = threading.RLock()
        self._pause, self._not_before = 1.0, float("-inf")

    def run(self, setup: Callable[[], object]) -> None:
        """Call ``setup`` now, or put it off if no threads can be had.

        Raises:
            SettingsError: as ``setup`` does; it is not put off then.
        """
        with self._lock:
            reason = self._attempt(setup)
            if reason is not None:
                self._waiting.append(setup)
                if not self._told:
                    self._told = True
                    _log.warning("%s: inferspan sends nothing until that has changed; your program is not affected", reason)

    def catch_up(self) -> None:
        """Try again what was put off; return at once if another thread is doing so."""
        if not self._waiting or self._clock() < self._not_before or not self._lock.acquire(blocking=False):
            return
        try:
            while self._waiting:
                reason = None
                with contain("set-up"):
                    reason = self._attempt(self._waiting[0])
                if reason is not None:
                    return
                del self._waiting[0]
        finally:
            self._lock.release()

    def _attempt(self, setup: Callable[[], object]) -> str | None:
        """Why it did not work; ``None`` if it did."""
        if not threads_can_start(NEEDED):
            return _NO_THREADS
        try:
            setup()
        except Refused as error:
            # Not only threads may be missing: ever less often.
            _log.debug("set-up is put off", exc_info=error)
            self._not_before, self._pause = self._clock() + self._pause, min(2 * self._pause, LONGEST_PAUSE)
            missing = isinstance(error, OSError) and error.errno not in (None, errno.EAGAIN, errno.ENOMEM)
            return f"export cannot be set up ({os.strerror(error.errno or 0)})" if missing else _NO_THREADS  # type: ignore[union-attr]
        return None
