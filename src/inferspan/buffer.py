"""A bounded queue between the model's path and the sinks, and the thread that empties it.

``put`` is what the model's path pays: a lock and an append. The thread hands items to one consumer in order, ``LINGER`` seconds after the
first of them: it is woken once for many items, not once for each. ``flush`` does the same on the calling thread, so that nothing waits for
a wake-up. Items that do not fit are refused; the caller counts them. A forked child starts empty: what the parent had queued is the
parent's to send. A fork waits until the item that is being consumed is done, because a child cannot release the locks that its consumer
holds. Locks are reentrant: a handler of a signal may flush while it interrupts any line of this.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from .guard import contain

__all__ = ["Buffer"]

T = TypeVar("T")

CAPACITY = 131_072
"""Some 170 bytes for each module call, so 22 MB."""
LINGER = 0.03
"""Seconds that items wait for others."""
MUCH = 4_096
"""Weight that does not wait for more."""
FORK_WAIT = 0.5
"""Longest time in seconds that a fork waits for the item that is being consumed."""
NOW_WAIT = 0.1
"""Longest time in seconds that ``consume_now`` waits for it: a short item takes less, also where its thread loses the core in between."""
FEW = 512
"""Weight behind which an item need not be put first: it comes soon enough, and after what belongs to it."""
MANY_FIRST, MOST_FIRST = 16, 64
"""Items put first that do not wait for more, and those that may wait at all: they are to be consumed in less than 0.1 s."""


class Buffer(Generic[T]):
    """Items on their way to ``consume(item, until)``; ``until`` is the monotonic time up to which a flush waits, ``None`` without one.

    Args:
        consume: called with one item at a time, never concurrently; its errors are contained.
        capacity: total weight that may wait.
    """

    def __init__(self, consume: Callable[[T, float | None], None], *, capacity: int = CAPACITY, name: str = "inferspan-spans") -> None:
        self._consume = consume
        self._capacity = capacity
        self._name = name
        self._reset()
        reference = weakref.ref(self)

        def at_fork(method: Callable[[Buffer[T]], None]) -> Callable[[], None]:
            def call() -> None:
                buffer = reference()
                if buffer is not None:
                    method(buffer)

            return call

        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=at_fork(Buffer._before_fork), after_in_parent=at_fork(Buffer._after_fork), after_in_child=at_fork(Buffer._reset)
            )

    def _reset(self) -> None:
        self._items: deque[tuple[T, int]] = deque()
        self._first: deque[tuple[T, int]] = deque()
        self._weight = 0
        self._weight_now = 0
        """Of the item that is being consumed."""
        self._waiting = 0
        self._in_a_row = 0
        self._put, self._put_first = 0, 0
        self._forking: set[int] = set()
        self._lock = threading.RLock()
        self._consuming = threading.RLock()
        self._wake, self._hurry = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def _before_fork(self) -> None:
        with self._lock:
            self._waiting += 1
        if self._consuming.acquire(timeout=FORK_WAIT):
            self._forking.add(threading.get_ident())
        with self._lock:
            self._waiting -= 1

    def _after_fork(self) -> None:
        if threading.get_ident() in self._forking:
            self._forking.discard(threading.get_ident())
            self._consuming.release()

    def put(self, item: T, weight: int, *, hurry: bool = False) -> bool:
        """Queue an item; false if it does not fit.

        Args:
            item: what is consumed.
            weight: its share of the capacity.
            hurry: whether the thread begins at once.
        """
        with self._lock:
            if self._weight + weight > self._capacity:
                return False
            self._weight += weight
            self._items.append((item, weight))
            self._put += 1
            if self._thread is None:
                self._start()
            hurry = hurry or self._weight >= MUCH
        if hurry and not self._hurry.is_set():
            self._hurry.set()
        # A set event takes its lock again to be set.
        if not self._wake.is_set():
            self._wake.set()
        return True

    @property
    def has_few(self) -> bool:
        """Whether what waits, or is being consumed, is soon done, so that the order of items can be kept."""
        few = self._weight + self._weight_now < FEW and not self._first and len(self._items) < MOST_FIRST
        return few and self._thread is not None

    def put_first(self, item: T) -> bool:
        """Queue an item before those of ``put``; false if too many wait, or if no thread would consume it by itself."""
        with self._lock:
            waiting = len(self._first)
            if waiting >= MOST_FIRST or self._weight >= self._capacity:
                return False
            if self._thread is None:
                self._start()
                if self._thread is None:
                    return False
            self._weight += 1
            self._first.append((item, 1))
            self._put_first += 1
        if waiting >= MANY_FIRST and not self._hurry.is_set():
            self._hurry.set()
        if not self._wake.is_set():
            self._wake.set()
        return True

    def consume_now(self, item: T, weight: int) -> bool:
        """Consume one item on the calling thread, after the few that wait; false if many wait, or if the one being consumed takes long."""
        if not self._consuming.acquire(timeout=NOW_WAIT):
            return False
        try:
            # The lock is reentrant: a handler of a signal may come here while its own thread consumes.
            if self._weight_now:
                return False
            # Items of other threads may come without end.
            for _ in range(MOST_FIRST):
                if self._weight > FEW or not self._next(until=time.monotonic()):
                    break
            if self._items or self._first:
                return False
            self._weight_now = weight
            try:
                with contain("span hand-over"):
                    self._consume(item, time.monotonic())
            finally:
                self._weight_now = 0
            return True
        finally:
            self._consuming.release()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        # An interpreter that is exiting, and a process at its limit, start no thread: the next one who flushes takes the items.
        with contextlib.suppress(RuntimeError, MemoryError, OSError):
            thread.start()
            self._thread = thread

    def flush(self, timeout: float | None = None) -> bool:
        """Hand over everything that was queued before the call; false if that took longer than ``timeout`` seconds."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._waiting += 1
            last, last_first = self._put, self._put_first
        try:
            while (left := deadline - time.monotonic()) >= 0:
                if not self._consuming.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
                    return False
                try:
                    # Other threads may put items without end.
                    if self._put - len(self._items) >= last and self._put_first - len(self._first) >= last_first:
                        return True
                    self._next(until=deadline)
                finally:
                    self._consuming.release()
            return False
        finally:
            with self._lock:
                self._waiting -= 1

    @property
    def awaited(self) -> bool:
        """Whether a flush waits for the item that is being consumed, which then should not pause."""
        return self._waiting > 0

    def first(self, until: float | None) -> None:
        """Consume what was put first; ``consume`` calls it between the parts of a long item, with its own ``until``."""
        while self._first:
            self._next(until=until, items=self._first)

    def _next(self, *, until: float | None, items: deque[tuple[T, int]] | None = None) -> bool:
        with self._lock:
            if items is None:
                # Items put first come without end where many threads put them: others have their turn, and call ``first``.
                others = self._items and (not self._first or self._in_a_row >= MANY_FIRST)
                items = self._items if others else self._first
                self._in_a_row = 0 if others else self._in_a_row + 1
            if not items:
                return False
            item, weight = items.popleft()
            self._weight -= weight
            before, self._weight_now = self._weight_now, self._weight_now + weight
        with contain("span hand-over"):
            self._consume(item, until)
        self._weight_now = before
        return True

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._hurry.wait(LINGER)
            self._hurry.clear()
            self._wake.clear()
            more = True
            while more:
                with self._consuming:
                    more = self._next(until=None)
