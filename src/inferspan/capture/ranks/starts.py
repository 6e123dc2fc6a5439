"""Requests that the first of several ranks writes into the store of the process group, and the others read.

In: a store as ``torch.distributed`` has it. Out: for a request of another rank, the text of the first rank's request that ran at the same
time. All use of the store is on one thread of ours, which runs while something is to be written or is expected; no collective is called.
A store that fails, or that is gone because the job ends, ends all of it: nothing is expected then, and nothing is waited for.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from inferspan.guard import contain

__all__ = ["Starts"]

KEPT = 256
"""Entries that stay in the store: each request has one for its start and one for its end."""
LATEST = 128
"""Entries that a rank reads at most, of more the latest."""
MOST_MISSES = 3
"""Requests in a row whose start has not come; after them nothing is waited for, until one has come."""
IDLE = 5.0
"""Seconds that the thread waits for work before it ends."""
PAUSES = (0.005, 1.0)
"""Shortest and longest pause in seconds between two looks into the store."""
AGAIN = 0.1
"""Seconds after which somebody who waits has the thread look again."""
LAST_LOOK = 0.3
"""Seconds that the exit of the interpreter waits for one more look."""


class _Request:
    """One of the first rank's, while no request here has taken it."""

    def __init__(self, start_ns: int, text: str) -> None:
        self.start_ns, self.text = start_ns, text
        self.end_ns: int | None = None


class Starts:
    """The starts and ends of the first rank's requests on one model.

    Args:
        open_store: returns the store; called on the thread. What it returns is used by nothing else.
        prefix: of the keys; the same on all ranks, and of nothing else.
    """

    def __init__(self, open_store: Callable[[], Any], prefix: str) -> None:
        self._open, self._prefix = open_store, prefix
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._outgoing: deque[str] = deque()
        self._found: dict[int, _Request] = {}
        self._expected = 0
        self._requests = self._written = self._read = self._misses = self._looks = 0
        self._closed = self._has_entries = False
        self._store: Any = None
        self._thread: threading.Thread | None = None

    def publish(self, start_ns: int, text: str) -> Callable[[int], None]:
        """Tell the other ranks that a request has begun; returns at once.

        Args:
            start_ns: nanoseconds since the epoch.
            text: one line.

        Returns:
            A function that tells them its end, likewise.
        """
        with self._changed:
            self._requests += 1
            number = self._requests
        self._put(f"start {number} {start_ns} {text}")
        return lambda end_ns: self._put(f"end {number} {end_ns} ")

    def _put(self, entry: str) -> None:
        with self._changed:
            if self._usable() and len(self._outgoing) < KEPT:
                self._outgoing.append(entry)
                self._work()

    def expect(self, start_ns: int) -> Callable[[float, int | None], str | None]:
        """Begin to look for the first rank's part of a request that began here at ``start_ns``.

        Returns:
            A function, to be called once with the seconds that it may wait and the request's end in nanoseconds since the epoch, ``None``
            while it runs. It returns the text, or ``None`` if there is none.
        """
        with self._changed:
            counted = self._usable()
            if counted:
                self._expected += 1
                self._work()
        return lambda wait, end_ns: self._take(start_ns, wait, end_ns) if counted else None

    def _take(self, start_ns: int, wait: float, end_ns: int | None) -> str | None:
        until = time.monotonic() + wait
        with self._changed:
            looks = self._looks
            try:
                while True:
                    text = self._first_of(start_ns, end_ns)
                    if text is not None:
                        self._misses = 0
                        return text
                    patient = self._usable() and (self._misses < MOST_MISSES or self._looks == looks)
                    left = until - time.monotonic()
                    if not patient or left <= 0:
                        self._misses += wait > 0
                        return None
                    self._changed.notify_all()  # the thread looks at once
                    self._changed.wait(min(left, AGAIN))
            finally:
                self._expected -= 1

    def _first_of(self, start_ns: int, end_ns: int | None) -> str | None:
        """Text of the first request there that can be the same as one here: ranks leave a collective together, so both overlap."""
        for number, there in [*self._found.items()]:
            if end_ns is not None and there.start_ns >= end_ns:
                return None  # the first rank has not recorded this one
            del self._found[number]
            if there.end_ns is None or there.end_ns > start_ns:
                return there.text
        return None

    # --------------------------------------------------------------------------------------------------------- the thread
    def _usable(self) -> bool:
        """Whether the store may still answer; a forked child has no connection of its own."""
        return not self._closed and os.getpid() == self._pid

    def _work(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="inferspan-ranks", daemon=True)
            with contextlib.suppress(RuntimeError, MemoryError, OSError):
                thread.start()
                self._thread = thread
                # A thread that comes out of the store while the interpreter is taken apart would end the process.
                atexit.register(self.close)
        self._changed.notify_all()

    def _run(self) -> None:
        pause = PAUSES[0]
        while True:
            with self._changed:
                while not (self._outgoing or self._expected or self._closed):
                    if not self._changed.wait(IDLE) and not (self._outgoing or self._expected):
                        self._thread = None
                        atexit.unregister(self.close)
                        return
                if self._closed:
                    return
            news = self._look()
            with self._changed:
                self._looks += 1
                self._changed.notify_all()
                pause = PAUSES[0] if news else min(2 * pause, PAUSES[1])
                if self._expected and not self._outgoing and not self._closed:
                    self._changed.wait(pause)

    def _look(self) -> bool:
        """Write what is to be written and read what is expected, once; whether there was anything."""
        try:
            if self._store is None:
                self._store = self._open()
            return self._write() or self._read_new()
        except (RuntimeError, OSError, EOFError):  # DistError of torch is a RuntimeError
            self._close()
        except Exception as error:
            with contain("ranks"):
                raise error
            self._close()
        return False

    def _close(self) -> None:
        with self._changed:
            self._closed, self._store = True, None
            self._changed.notify_all()

    def _write(self) -> bool:
        written = False
        while self._outgoing:
            entry = self._outgoing.popleft()
            self._written += 1
            self._store.set(f"{self._prefix}/{self._written}", entry)
            self._store.set(f"{self._prefix}/last", str(self._written))
            if self._written > KEPT:
                with contextlib.suppress(NotImplementedError):
                    self._store.delete_key(f"{self._prefix}/{self._written - KEPT}")
            written = True
        return written

    def _read_new(self) -> bool:
        if not self._expected:
            return False
        last_key = f"{self._prefix}/last"
        # Only what is there is asked for: a store waits for other keys.
        self._has_entries = self._has_entries or self._store.check([last_key])
        if not self._has_entries:
            return False
        last, before = int(self._store.get(last_key)), self._read
        for number in range(max(before, last - LATEST) + 1, last + 1):
            kind, request, time_ns, text = self._store.get(f"{self._prefix}/{number}").decode().split(" ", 3)
            with self._changed:
                if kind == "start":
                    self._found[int(request)] = _Request(int(time_ns), text)
                elif int(request) in self._found:
                    self._found[int(request)].end_ns = int(time_ns)
            self._read = number
        return self._read > before

    def close(self) -> None:
        """Look once more, and end the thread."""
        with self._changed:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            end, looks = time.monotonic() + LAST_LOOK, self._looks
            while (self._outgoing or self._expected) and self._looks < looks + 2 and not self._closed:
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._changed.notify_all()
                self._changed.wait(left)
            self._closed = True
            self._changed.notify_all()
        thread.join(LAST_LOOK)
