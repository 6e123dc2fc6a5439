"""What the loop of one batching manager has done, appended on its thread and read elsewhere.

On the thread of the loop a step costs some clock readings, the lengths of two queues and one append; requests and spans are made of the
entries by ``reader``, on the hand-over thread or in a flush. The log is bounded by the number of requests in its steps. Beyond that,
steps are counted and left out; arrivals and ends of requests are not, and their number is bounded by the requests that are open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

from inferspan.capture.failures import failure_of
from inferspan.records import Failure

__all__ = ["Arrived", "BatchLog", "Cancelled", "Closed", "Delivered", "Failed", "Idle", "Preempted", "Ran", "Refused"]

MOST_ROWS = 131_072
"""Requests in the steps of the log, each step counting its own; some 200 bytes each."""
PERIOD = 100_000_000
"""Nanoseconds after which the steps so far are read, while the loop is busy."""


class Arrived(NamedTuple):
    """A request has got its state in the loop."""

    request: Any


class Refused(NamedTuple):
    """``add_request()`` has not queued a request."""

    request: Any
    at: int
    failure: Failure


class Ran(NamedTuple):
    """A step is over: its tokens are known. ``states`` are the requests in it, ``outputs`` those that it has finished."""

    start: int
    end: int
    states: Sequence[Any]
    outputs: Sequence[Any]
    waiting: int
    blocks: tuple[int, int] | None
    """Of the cache: in use, and all."""


class Delivered(NamedTuple):
    """Requests have ended outside of a step."""

    at: int
    outputs: Sequence[Any]


class Failed(NamedTuple):
    """The exception that ends a request, which is delivered next."""

    request_id: str
    failure: Failure


class Cancelled(NamedTuple):
    """Requests have been taken out because their caller does not want them any more."""

    at: int
    request_ids: Sequence[str]


class Preempted(NamedTuple):
    """Requests have been taken out of the batch and queued again."""

    request_ids: Sequence[str]


class Idle(NamedTuple):
    """The loop has nothing to do, or has ended."""

    blocks: tuple[int, int] | None


class Closed(NamedTuple):
    """Nothing more is recorded: the model is not instrumented any more, or the manager is gone."""

    at: int


class BatchLog:
    """The log of one manager.

    Args:
        soon: has the log read on another thread; false if that is not possible now.
        content: whether texts of exceptions may quote values.
        now: monotonic clock, in nanoseconds.

    Attributes:
        entries: what has happened, oldest first.
        began: when the running turn of the loop began.
        starts: when the steps began that have been launched and not read back, where the loop launches ahead.
        outputs: collects what is delivered during the update after a step.
        lost: steps that were left out.
        busy: whether there is a step in each turn.
    """

    def __init__(self, soon: Callable[[], bool], *, content: bool, now: Callable[[], int] = perf_counter_ns) -> None:
        self.entries: deque[Any] = deque()
        self.is_open = True
        self.began = 0
        self.starts: deque[int] = deque(maxlen=8)
        self.outputs: list[Any] | None = None
        self.lost = 0
        self.taken = 0
        """Requests in the steps that have been read; written by the reader alone, as ``_rows`` is by the loop."""
        self.now = now
        self.content = content
        self._rows = 0
        self._soon = soon
        self._read = 0
        self._failed: tuple[BaseException, Failure] | None = None
        self.busy = False

    def add(self, entry: Any) -> None:
        """Append what is no step; it is read with the next steps, and at once if there are none."""
        self.entries.append(entry)
        if not self.busy:
            self.wake()

    def wake(self) -> None:
        """Have the log read on another thread."""
        if self._soon():
            self._read = self.now()

    def ran(self, step: Ran) -> None:
        """Append a step."""
        rows = len(step.states)
        if self._rows + rows - self.taken > MOST_ROWS and not step.outputs:
            self.lost += 1
        else:
            self._rows += rows
            self.entries.append(step)
        if not self.busy or step.end - self._read > PERIOD:
            self.wake()

    def launched(self, *, ahead: bool) -> None:
        """The loop has come around with a step; ``ahead`` if it reads the results in the next turn."""
        self.busy = True
        if ahead:
            self.starts.append(self.began)

    def rest(self, blocks: tuple[int, int] | None = None) -> None:
        """The loop has nothing to do, or has ended; ``blocks`` as of a step."""
        self.busy = False
        self._failed = None
        self.entries.append(Idle(blocks))
        self.wake()

    def failure_of(self, error: BaseException) -> Failure:
        """An exception as text, made once for all the requests that it ends."""
        if self._failed is None or self._failed[0] is not error:
            self._failed = error, failure_of(error, content=self.content)
        return self._failed[1]

    def close(self) -> None:
        """Record nothing more; what is open is ended by the reader. Takes no lock: the garbage collector may call it at any time."""
        if self.is_open:
            self.is_open = False
            self.entries.append(Closed(self.now()))
