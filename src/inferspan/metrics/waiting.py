"""Values of requests on their way to instruments of the SDK, which take some 15 us each and are recorded off the model's thread.

In: values as requests begin and end. Out: the same values, recorded by the hand-over thread, or by the collection that comes first: a
callback of ours runs before the SDK reads its totals, so that each collection counts what has ended by then. One object for each meter
provider.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from inferspan.guard import contain

__all__ = ["Waiting"]

HOLD_NS = 60_000
"""Time after which others can have the interpreter, in nanoseconds: a value takes some 15 us, so that nobody waits for more than 100 us."""
LONGEST_WAIT = 1.0
"""Seconds that a collection waits for values which another thread is recording."""


class Waiting:
    """Values that wait to be recorded.

    Args:
        collects: whether a callback of ours runs before each collection; without it nothing may wait.
    """

    def __init__(self, collects: Callable[[], bool]) -> None:
        self._collects = collects
        self._open = False
        self._values: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._sums: dict[str, tuple[Callable[..., None], float]] = {}
        self.renew()

    def renew(self) -> None:
        """Called in a forked child: no thread is left to release the locks, and what waits is the parent's to record."""
        # Reentrant: a handler of a signal, and a processor that the recording thread calls, may ask for a collection.
        self._lock = threading.RLock()
        self._settling = threading.RLock()
        self._values.clear()
        self._sums.clear()

    def __len__(self) -> int:
        return len(self._values)

    def look(self) -> None:
        """Ask whether values may wait, once a request: a program may set its provider late."""
        self._open = self._collects()

    def put(self, record: Callable[..., None], *value: Any) -> None:
        """Have ``record(*value)`` called later, in the order of these calls; now where no collection would ask for it."""
        if self._open:
            self._values.append((record, value))
        else:
            record(*value)

    def add(self, record: Callable[..., None], name: str, amount: float) -> None:
        """Have ``record(name, sum, {})`` called with the sum of all amounts at the next collection."""
        if not self._open:
            record(name, amount, {})
            return
        with self._lock:
            self._sums[name] = record, self._sums.get(name, (record, 0.0))[1] + amount

    def settle(self, pause: Callable[[], None] | None = None) -> None:
        """Record the values; ``pause`` is called after each ``HOLD_NS``."""
        more = True
        while more:
            with self._settling:
                more = self._some()
            if more and pause is not None:
                pause()

    def _some(self) -> bool:
        until = perf_counter_ns() + HOLD_NS
        while True:
            try:
                record, value = self._values.popleft()
            except IndexError:
                return False
            record(*value)
            if perf_counter_ns() >= until:
                return bool(self._values)

    def collect(self) -> None:
        """A collection begins: record values and sums on its thread."""
        with contain("request metrics"):
            # It holds locks of the SDK, so it does not wait for ever.
            if not self._settling.acquire(timeout=LONGEST_WAIT):
                return
            try:
                while self._some():
                    pass
                with self._lock:
                    sums = {**self._sums}
                    self._sums.clear()
                for name, (record, amount) in sums.items():
                    record(name, amount, {})
            finally:
                self._settling.release()
