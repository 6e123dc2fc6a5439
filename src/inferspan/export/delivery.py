"""Outcomes of the requests of our own exporters: counted, reported by ``flush()``, and logged by us instead of the SDK.

In come attempts to send, out come whether they succeeded and, in the log, one sentence when an address stops taking telemetry, at most
one a minute while that lasts, and one when it is over. Lines of the SDK, of urllib3 and of gRPC about these attempts are kept from the
log: they are recognised by the thread that runs the attempt, so those about a host's exporters stay. A sentence has the address and
the likely reason, and neither user, password, query nor header. What a receiver takes and rejects items of is told in its own words,
without those of our headers. Nothing raises.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from inferspan import guard
from inferspan.export.client.answers import Taken
from inferspan.export.client.destination import Destination, say
from inferspan.export.client.endpoints import endpoint_of
from inferspan.export.client.probing import listener_at
from inferspan.export.reasons import SPEAKS_GRPC, likely_reason, wrong_protocol
from inferspan.export.variables import per_signal, plain_address, read

__all__ = [
    "Delivery",
    "Destination",
    "begin_end",
    "destination_of",
    "explain_failures_of_the_program",
    "own_lines_only",
    "tell_attempt",
    "tell_taken",
    "tell_undelivered",
]

KEPT_LINES = 20
_LIBRARIES = ("opentelemetry", "urllib3", "requests", "grpc")


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
                    say(logging.WARNING, "OpenTelemetry of this program cannot send to its receiver: %s", reason)
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
_destinations: dict[str, Destination] = {}
_deliveries: list[Delivery] = []
"""Those that have a destination."""


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
        self._sending = self._later = 0
        self._lines: list[str] = []
        self._waiting: Callable[[], int] = int
        if destination is not None:
            _deliveries.append(self)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    @property
    def destination(self) -> Destination | None:
        """The address that the items go to, if this logs about it."""
        return self._destination

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
        with own_lines_only() as lines, self._under_way(count, lines):
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

    def attempt_all(self, send: Callable[[Sequence[Any]], bool], parts: Iterable[Sequence[Any]]) -> bool:
        """Send requests one after the other, all of them also after one has failed.

        Args:
            send: sends one, and says whether it arrived.
            parts: the items of each.
        """
        parts = list(parts)
        self._later += sum(map(len, parts))
        done = []
        for part in parts:
            self._later -= len(part)
            done.append(self.attempt(functools.partial(send, part), len(part)))
        return all(done)

    @contextlib.contextmanager
    def _under_way(self, count: int, lines: list[str]) -> Iterator[None]:
        self._sending += count
        self._lines = lines
        try:
            yield
        finally:
            self._sending -= count

    def waits_in(self, count: Callable[[], int]) -> None:
        """Name the function that counts the items that wait to be sent."""
        self._waiting = count

    def undelivered(self) -> tuple[str, int, str] | None:
        """Signal and number of the items that were not sent when the process ended, and why; they count as lost. ``None`` without any."""
        with guard.contain("count of undelivered items"):
            count = self._waiting() + self._sending + self._later
            if count <= 0 or self._destination is None:
                return None
            self._refused += count
            guard.count(f"export of {self._signal}")
            if not self._sending:
                return self._signal, count, "no time was left to send them"
            return self._signal, count, likely_reason(self._destination.address, self._lines) if self._lines else "no answer came in time"
        return None

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
        self._sending = self._later = 0
        if self._destination is not None:
            self._destination.after_fork()


# -------------------------------------------------------------------------------------------------- the end of the process
def begin_end() -> None:
    """The process is about to end: what cannot be delivered from now on is told by ``tell_undelivered``, in one line for each address."""
    for delivery in _deliveries:
        if delivery.destination is not None:
            delivery.destination.ending = True


def tell_undelivered(seconds: float) -> None:
    """Log what was not delivered when the process ended.

    Args:
        seconds: that it was to wait.
    """
    unsent: dict[Destination, dict[str, int]] = {each.destination: {} for each in _deliveries if each.destination is not None}
    reasons: dict[Destination, str] = {}
    for delivery in _deliveries:
        found = delivery.undelivered()
        if found is not None and delivery.destination is not None:
            signal, count, reason = found
            items = unsent[delivery.destination]
            items[signal] = items.get(signal, 0) + count
            reasons.setdefault(delivery.destination, reason)
    for destination, items in unsent.items():
        destination.ended(items, reasons.get(destination, ""), seconds)
