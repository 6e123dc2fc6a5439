"""Outcomes of the requests of our own exporters: counted, reported by ``flush()``, and logged by us instead of the SDK.

In come attempts to send, out come whether they succeeded and, in the log, one sentence when an address stops taking telemetry, at most
one a minute while that lasts, and one when it is over. Lines of the SDK, of urllib3 and of gRPC about these attempts are kept from the
log: they are recognised by the thread that runs the attempt, so those about a host's exporters stay. A sentence has the address and
the likely reason, and neither user, password, query nor header. What a receiver takes and rejects items of is told in its own words,
without those of our headers. Nothing raises.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from inferspan import guard
from inferspan.export.client.answers import Taken
from inferspan.export.client.endpoints import endpoint_of
from inferspan.export.client.probing import listener_at
from inferspan.export.reasons import SPEAKS_GRPC, likely_reason, wrong_protocol
from inferspan.export.variables import per_signal, plain_address, read, without_values

__all__ = ["Delivery", "Destination", "destination_of", "explain_failures_of_the_program", "own_lines_only", "tell_attempt", "tell_taken"]

_log = logging.getLogger("inferspan")
EVERY = 60.0
"""Seconds between two sentences about one address."""
KEPT_LINES = 20
_LIBRARIES = ("opentelemetry", "urllib3", "requests", "grpc")
_UNITS = {"traces": "spans", "metrics": "metrics", "logs": "log records"}
_POINTS = "data points"


# ------------------------------------------------------------------------------------------------- lines about our exporters
class _Attempts(threading.local):
    def __init__(self) -> None:
        self.lines: list[str] | None = None
        self.taken: list[Taken] = []


_attempts = _Attempts()


class _NotOurs(logging.Filter):
    """Keeps lines back that are logged by an attempt of ours on the same thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        lines = _attempts.lines
        if lines is None:
            return True
        with contextlib.suppress(Exception):
            message = record.getMessage()
            if record.levelno < logging.WARNING and "?" not in message:  # a query may hold a key
                return True
            if len(lines) < KEPT_LINES:
                lines.append(message)
        return False


_FILTER = _NotOurs()
_filtered = 0


def _filter_new_loggers() -> None:
    """Put the filter on the loggers of the libraries that an exporter uses; a filter sees the lines of its own logger only."""
    global _filtered
    known = logging.Logger.manager.loggerDict
    if len(known) == _filtered:
        return
    _filtered = len(known)
    for name, logger in list(known.items()):
        if name.partition(".")[0] in _LIBRARIES and isinstance(logger, logging.Logger) and _FILTER not in logger.filters:
            # First in the list, so that the SDK's filter of repetitions does not see the lines that are kept back.
            logger.filters.insert(0, _FILTER)


@contextlib.contextmanager
def own_lines_only() -> Iterator[list[str]]:
    """Keep warnings and errors of the libraries below an exporter out of the log, on this thread; gives their texts."""
    _filter_new_loggers()
    before, _attempts.lines, _attempts.taken = _attempts.lines, [], []
    lines = _attempts.lines
    try:
        yield lines
    finally:
        _attempts.lines = before


def tell_attempt(text: str) -> None:
    """Add a description of a failure to the lines of the attempt that runs on this thread, if any."""
    if _attempts.lines is not None:
        _attempts.lines.append(text)


def tell_taken(taken: Taken) -> None:
    """Add what the receiver says of a request that it has taken to the attempt that runs on this thread, if any."""
    if _attempts.lines is not None and taken != Taken():
        _attempts.taken.append(taken)


class _Explains(logging.Filter):
    """Lets every line pass; after the first one that shows that a receiver speaks the other protocol, a line of ours has the fix."""

    said = False

    def filter(self, record: logging.LogRecord) -> bool:
        """True."""
        if _attempts.lines is None and not self.said and record.levelno >= logging.WARNING:
            with contextlib.suppress(Exception):
                reason = wrong_protocol(record.getMessage())
                if reason == "":
                    reason = _asked()
                if reason is not None:
                    self.said = True
                    _say(logging.WARNING, "OpenTelemetry of this program cannot send to its receiver: %s", reason)
        return True


def _asked() -> str | None:
    """What the receiver of HTTP that the environment names speaks, if that is gRPC; asks it for a second at most."""
    listener = listener_at(*endpoint_of("traces", os.environ, protocol="http/protobuf").place, seconds=0.5)
    return SPEAKS_GRPC if listener.grpc and not listener.http else None


_EXPLAINS = _Explains()
_OTLP = "opentelemetry.exporter.otlp.proto."
_EXPORTERS = ("grpc.exporter", "http.trace_exporter", "http.metric_exporter", "http._log_exporter")


def explain_failures_of_the_program() -> None:
    """Have the first failure of the program's own exporters explained, where these are loaded and the protocol is wrong.

    ``opentelemetry-instrument`` sends by gRPC unless a variable names another protocol, and the SDK logs a text about frames then.
    """
    for name in _EXPORTERS:
        logger = logging.Logger.manager.loggerDict.get(_OTLP + name)
        if isinstance(logger, logging.Logger) and _EXPLAINS not in logger.filters:
            logger.addFilter(_EXPLAINS)


# ------------------------------------------------------------------------------------------------------------ one address
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
        _say(logging.WARNING, "inferspan sends to %s again; not sent were %s", self.address, _counted(lost))

    def lost(self, signal: str, count: int, reason: str) -> None:
        """Record a request that failed, and log a line if one is due."""
        with self._lock:
            first = not self._failing and not self._announced
            self._failing.add(signal)
            self._count(signal, count)
            now = self._clock()
            if now < self._next_line:
                return
            self._next_line, self._announced = now + EVERY, True
            lost, self._lost = self._lost, _Lost(0, {})
            self._reason = reason
        if first:
            text = "inferspan cannot send %s to %s: %s; your program is not affected, and this is said at most once a minute"
            _say(logging.WARNING, text, signal, self.address, reason)
        else:
            text = "inferspan still cannot send to %s: %s; %d requests with %s since the last such line"
            _say(logging.WARNING, text, self.address, reason, lost.requests, _counted(lost.items))

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
        _say(logging.WARNING, text, signal, self.address, said)

    def overflowed(self, signal: str, count: int) -> None:
        """Record items that a full queue refused."""
        with self._lock:
            self._count(signal, count, requests=0)
            now = self._clock()
            if self._failing or now < self._next_line:
                return  # the queue is full because nothing can be sent, and another line reports that
            self._next_line = now + EVERY
            lost, self._lost = self._lost, _Lost(0, {})
        text = "inferspan drops telemetry for %s, more comes than can be sent: the queue was full for %s"
        _say(logging.WARNING, text, self.address, _counted(lost.items))

    def _count(self, signal: str, count: int, *, requests: int = 1) -> None:
        items = {**self._lost.items, signal: self._lost.items.get(signal, 0) + count}
        self._lost = _Lost(self._lost.requests + requests, items)
        self._lost_in_all[signal] = self._lost_in_all.get(signal, 0) + count

    def after_fork(self) -> None:
        """Reset the state in a forked child, which has sent nothing yet."""
        self._start()


def _counted(items: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {_UNITS.get(signal, signal)}" for signal, count in items.items()) or "none"


def _say(level: int, text: str, *args: object) -> None:
    with contextlib.suppress(Exception):  # of a handler or filter of the program's
        _log.log(level, text, *args)


_destinations: dict[str, Destination] = {}


def destination_of(exporter: str, signal: str, environ: Mapping[str, str]) -> Destination:
    """The one object for the address that an exporter sends to; signals with the same address share it."""
    address = _address(exporter, signal, environ)
    return _destinations.setdefault(address, Destination(address))


def _address(exporter: str, signal: str, environ: Mapping[str, str]) -> str:
    if not exporter.startswith("otlp_proto_"):
        return exporter
    default = "http://localhost:4317" if exporter.endswith("grpc") else "http://localhost:4318"
    found = read(environ, *per_signal(signal, "ENDPOINT"))
    return plain_address(found[1]) or f"the address of {found[0]}" if found else default


# -------------------------------------------------------------------------------------------------------- one signal to it
class Delivery:
    """Outcomes of one signal's requests to one destination.

    Args:
        signal: ``traces``, ``metrics`` or ``logs``.
        destination: logs about the address; ``None`` where another module does.
    """

    def __init__(self, signal: str, destination: Destination | None = None) -> None:
        self._signal, self._destination = signal, destination
        self._lock = threading.Lock()
        self._refused = self._reported = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    @property
    def refused(self) -> int:
        """Items that were not delivered, since the process began; of metrics that a receiver rejected, their data points."""
        return self._refused

    def attempt(self, send: Callable[[], bool], count: int) -> bool:
        """Send one request and record its outcome; one that the receiver rejected items of was not delivered.

        Args:
            send: sends it, and says whether it arrived.
            count: spans, metrics or log records in it.
        """
        error: Exception | None = None
        sent = False
        with own_lines_only() as lines:
            try:
                sent = send()
            except Exception as caught:
                error = caught
            taken = _attempts.taken
        failure = next((each.failure for each in taken if each.failure), "")
        if sent and not failure:
            return self._arrived(count, taken)
        with self._lock:
            self._refused += count
        guard.count(f"export of {self._signal}")
        if self._destination is not None:
            self._destination.lost(self._signal, count, failure or likely_reason(self._destination.address, lines, error))
        return False

    def _arrived(self, count: int, taken: Sequence[Taken]) -> bool:
        """Record a request that was taken, unless the receiver rejected some of it."""
        # Of metrics it counts data points, and the number sent is not known here.
        rejected = sum(each.rejected for each in taken)
        rejected = rejected if self._signal == "metrics" else min(rejected, count)
        if self._destination is not None:
            self._destination.sent(self._signal)
            if taken:
                self._destination.rejected(self._signal, rejected, next((each.message for each in taken if each.message), ""))
        if not rejected:
            return True
        with self._lock:
            self._refused += rejected
        guard.count(f"export of {self._signal}")
        return False

    def overflowed(self, count: int) -> None:
        """Record items that a full queue refused."""
        with self._lock:
            self._refused += count
        if self._destination is not None:
            self._destination.overflowed(self._signal, count)

    def all_sent(self, flush: Callable[[float], bool]) -> Callable[[float], bool]:
        """A flush that says whether everything since the last one was delivered, also what was sent without being asked for.

        Args:
            flush: is given seconds, and says whether it was done.
        """

        def truthful(seconds: float) -> bool:
            done = flush(seconds)
            with self._lock:
                reported, self._reported = self._reported, self._refused
                return done and reported == self._refused

        return truthful

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._refused = self._reported = 0
        if self._destination is not None:
            self._destination.after_fork()
