"""One address that our telemetry is sent to, and what the log says about it.

In come outcomes of requests, out come one sentence when the address stops taking telemetry, at most one a minute while that lasts, one
when it is over, one a minute about what it rejects, and one about what had not been delivered when the program ended. A sentence has the
address and the likely reason, and neither user, password, query nor header. Nothing raises.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from inferspan.export.variables import without_values

__all__ = ["Destination", "say"]

_log = logging.getLogger("inferspan")
EVERY = 60.0
"""Seconds between two sentences about one address."""
_UNITS = {"traces": "spans", "metrics": "metrics", "logs": "log records"}
_POINTS = "data points"


class _Lost(NamedTuple):
    requests: int
    items: dict[str, int]


class Destination:
    """One address that our telemetry is sent to, and the log lines about it.

    Args:
        address: scheme, host and port, or any other name; without secrets.
        clock: seconds, never going back.
    """

    def __init__(self, address: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.address = address
        self._clock = clock
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.ending = False
        """Whether the process ends: what fails from then on is told by ``ended``."""
        self._failing: set[str] = set()
        self._announced = False
        self._next_line = float("-inf")
        self._reason = ""
        self._lost = _Lost(0, {})
        self._lost_in_all: dict[str, int] = {}
        self._rejected: dict[str, int] = {}
        self._next_remark = float("-inf")
        self._remark = ""

    def sent(self, signal: str) -> None:
        """Record a request that arrived."""
        if not self._failing:
            return
        with self._lock:
            self._failing.discard(signal)
            if self._failing or not self._announced:
                return
            self._announced = False
            lost, self._lost_in_all, self._lost = self._lost_in_all, {}, _Lost(0, {})
        say(logging.WARNING, "inferspan sends to %s again; not sent were %s", self.address, _counted(lost))

    def lost(self, signal: str, count: int, reason: str) -> None:
        """Record a request that failed, and log a line if one is due."""
        with self._lock:
            first = not self._failing and not self._announced
            self._failing.add(signal)
            self._count(signal, count)
            now = self._clock()
            if self.ending and not self._announced:
                self._reason = reason
                return
            if now < self._next_line:
                return
            self._next_line, self._announced = now + EVERY, True
            lost, self._lost = self._lost, _Lost(0, {})
            self._reason = reason
        if first:
            text = "inferspan cannot send %s to %s: %s; your program is not affected, and this is said at most once a minute"
            say(logging.WARNING, text, signal, self.address, reason)
        else:
            text = "inferspan still cannot send to %s: %s; %d requests with %s since the last such line"
            say(logging.WARNING, text, self.address, reason, lost.requests, _counted(lost.items))

    def rejected(self, signal: str, count: int, words: str) -> None:
        """Record that the receiver took a request and rejected items of it, or none, with a warning; log a line if one is due.

        Args:
            signal: ``traces``, ``metrics`` or ``logs``.
            count: items that it rejected.
            words: what it says about that.
        """
        words = without_values(words, os.environ)
        with self._lock:
            unit = _POINTS if signal == "metrics" else _UNITS[signal]
            if count:
                self._rejected[unit] = self._rejected.get(unit, 0) + count
            now = self._clock()
            if now < self._next_remark or (not count and words == self._remark):
                return  # the same warning at each request is none the second time
            self._next_remark, self._remark = now + EVERY, words
            rejected, self._rejected = self._rejected, {}
        said = f"rejected {_counted(rejected)}: {words or 'it gives no reason'}" if rejected else f"warns: {words}"
        text = "inferspan sends %s to %s, which %s; your program is not affected, and this is said at most once a minute"
        say(logging.WARNING, text, signal, self.address, said)

    def overflowed(self, signal: str, count: int) -> None:
        """Record items that a full queue refused."""
        with self._lock:
            self._count(signal, count, requests=0)
            now = self._clock()
            if self._failing or self.ending or now < self._next_line:
                return  # the queue is full because nothing can be sent, and another line reports that
            self._next_line = now + EVERY
            lost, self._lost = self._lost, _Lost(0, {})
        text = "inferspan drops telemetry for %s, more comes than can be sent: the queue was full for %s"
        say(logging.WARNING, text, self.address, _counted(lost.items))

    def ended(self, unsent: Mapping[str, int], reason: str, seconds: float) -> None:
        """Log what was not delivered when the process ended, unless a line has said why nothing can be.

        Args:
            unsent: items of each signal whose request had no end, or that no request had been made for.
            reason: why those were not sent.
            seconds: that the process was to wait.
        """
        # In a handler of a signal, the code that it interrupts may hold the lock.
        if not self._lock.acquire(timeout=0.5):
            return
        try:
            lost, self._lost = self._lost.items, _Lost(0, {})
            if self._announced or not (unsent or lost):
                return
            self._announced, self._next_line = True, self._clock() + EVERY
            reason = reason if unsent else self._reason or "more came than could be sent"
        finally:
            self._lock.release()
        if unsent:
            items = _counted({signal: unsent.get(signal, 0) + lost.get(signal, 0) for signal in {**unsent, **lost}})
            text = "inferspan could not deliver %s to %s before the program ended (exit_timeout %g s): %s"
            say(logging.WARNING, text, items, self.address, seconds, reason)
        else:
            text = "inferspan cannot send %s to %s: %s; not delivered were %s"
            say(logging.WARNING, text, ", ".join(lost), self.address, reason, _counted(lost))

    def _count(self, signal: str, count: int, *, requests: int = 1) -> None:
        items = {**self._lost.items, signal: self._lost.items.get(signal, 0) + count}
        self._lost = _Lost(self._lost.requests + requests, items)
        self._lost_in_all[signal] = self._lost_in_all.get(signal, 0) + count

    def after_fork(self) -> None:
        """Reset the state in a forked child, which has sent nothing yet."""
        self._start()


def _counted(items: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {_UNITS.get(signal, signal)}" for signal, count in items.items()) or "none"


def say(level: int, text: str, *args: object) -> None:
    """Log a line of ours; nothing that the program's logging does with it goes further."""
    with contextlib.suppress(Exception):  # of a handler or filter of the program's
        _log.log(level, text, *args)
