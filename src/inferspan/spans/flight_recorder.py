"""Decides which requests keep their detail: it is held while a request runs and becomes spans only if a rule applies at its end.

The outermost request decides at its end for itself and all requests inside it, so no span loses its parent. Held detail is bounded:
the oldest is dropped first, and as children are handed over before their parents, the rest stays connected. No spans are made here.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Any

from inferspan import semconv
from inferspan.records import ModuleBatch, Phase, Record, RequestEnd, RequestStart, Stage, Step
from inferspan.settings import Settings

__all__ = ["FlightRecorder", "HeldDetail", "RunningQuantile", "weight_of"]

HELD_BYTES = 48 * 2**20
"""Bytes that one outermost request may hold, estimated from its records: 200,000 module calls, or 20,000 steps of one row."""
CALL_BYTES, STATISTICS_BYTES, SECONDS_BYTES, EDGE_BYTES = 240, 700, 130, 500
"""Estimated size of a module call, of the statistics of its output, of its device time, and of an edge of the data flow."""
LATEST_DURATIONS = 2048
"""Number of durations in the window of a quantile: enough for two values above the highest share that can be set."""
MIN_DURATIONS = 30
"""Number of durations before a quantile is used, however low its share."""
DEFAULT_SHARE = 0.99
_STATISTICS = (semconv.OUTPUT_STAT_NAN_COUNT, semconv.OUTPUT_STAT_INF_COUNT)


def _size_of(record: Record) -> int:
    if isinstance(record, Step):
        return record.size
    if isinstance(record, Phase | Stage):
        return CALL_BYTES
    edges = 0 if record.flow is None else EDGE_BYTES * len(record.flow.edges)
    return edges + CALL_BYTES * (1 + weight_of(record)) + STATISTICS_BYTES * len(record.statistics) + SECONDS_BYTES * len(record.device)


def weight_of(record: Record) -> int:
    """Number of spans of a record."""
    return len(record.calls) + len(record.profiled) if isinstance(record, ModuleBatch) else 1


class RunningQuantile:
    """The exact quantile of the latest values, available once there are enough of them for one to lie above it.

    A window rather than P2 (Jain and Chlamtac, 1985), which never forgets: after a change of load or model it would classify everything
    as slow, or nothing, for as long as it had run before. Two thousand sorted numbers cost some microseconds a request.

    Args:
        share: of the values that are at most as large, such as 0.99.
        window: how many values count.
    """

    def __init__(self, share: float, window: int = LATEST_DURATIONS) -> None:
        self.share = share
        self._window = window
        self._needed = max(MIN_DURATIONS, math.ceil(round(1 / (1 - share), 6)))
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        """Count a value, and forget the oldest if there are too many."""
        self._latest.append(value)
        insort(self._sorted, value)
        if len(self._latest) > self._window:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    @property
    def value(self) -> float | None:
        """Smallest of the values that at least ``share`` of them do not exceed; ``None`` while there are too few."""
        count = len(self._sorted)
        return self._sorted[math.ceil(round(self.share * count, 6)) - 1] if count >= self._needed else None


class HeldDetail:
    """Detail of an outermost request and of the requests inside it, until the decision whether it becomes spans.

    Args:
        capacity: estimated bytes that may be held; beyond them the oldest detail is dropped.
    """

    def __init__(self, capacity: int = HELD_BYTES) -> None:
        self.free = capacity
        """Estimated bytes that are left."""
        self._entries: deque[tuple[Any, Record]] = deque()
        self._lock = threading.Lock()
        self._kept: bool | None = None
        self.spans = 0
        """Spans that are held now."""
        self.lost = 0
        """Spans that were dropped because of the capacity."""
        self.failed = False
        self.nonfinite = False
        self.marked = False

    def add(self, scope: Any, records: Sequence[Record]) -> bool | None:
        """Hold detail of a request; ``None`` if it is held, else the decision of the outermost request, which has ended meanwhile."""
        with self._lock:
            if self._kept is not None:
                return self._kept
            for record in records:
                self._entries.append((scope, record))
                self.free -= _size_of(record)
                self.spans += weight_of(record)
                if isinstance(record, ModuleBatch) and record.statistics and not self.nonfinite:
                    self.nonfinite = any(found.get(key) for found in record.statistics.values() for key in _STATISTICS)
            while self.free < 0 and len(self._entries) > 1:
                _, oldest = self._entries.popleft()
                self.free += _size_of(oldest)
                self.spans -= weight_of(oldest)
                self.lost += weight_of(oldest)
        return None

    def note(self, end: RequestEnd, *, marked: bool) -> None:
        """Record the facts that rules need of a request that ends, the outermost or one inside it."""
        self.failed = self.failed or end.failure is not None
        self.nonfinite = self.nonfinite or bool(end.nonfinite)
        self.marked = self.marked or marked

    def decide(self, kept: bool) -> list[tuple[Any, list[Record]]]:
        """Release all held detail; if it is kept, return it by request, inner requests first."""
        with self._lock:
            self._kept = kept
            entries, self._entries = self._entries, deque()
        found: dict[int, tuple[Any, list[Record]]] = {}
        for scope, record in entries if kept else ():
            found.setdefault(id(scope), (scope, []))[1].append(record)
        return list(found.values())


class FlightRecorder:
    """Decides about the requests on one model.

    Args:
        settings: ``keep`` and the limits from which on a request is slow.

    Attributes:
        capacity: estimated bytes of detail that each outermost request may hold.
    """

    def __init__(self, settings: Settings) -> None:
        self.capacity = HELD_BYTES
        self._settings = settings
        self._words = frozenset(settings.keep_words)
        share = settings.slow_quantile
        if share is None and settings.slow_after is None and settings.slow_first_token is None:
            share = DEFAULT_SHARE
        self._share = share if "slow" in self._words else None
        self._quantiles: dict[str, RunningQuantile] = {}
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        """Replace the lock in a forked child: the thread that held it does not exist there."""
        self._lock = threading.Lock()

    def hold(self) -> HeldDetail | None:
        """A store for the detail of an outermost request that starts; ``None`` if all detail becomes spans."""
        return HeldDetail(self.capacity) if self._words else None

    def reasons(self, start: RequestStart, end: RequestEnd, held: HeldDetail) -> tuple[str, ...]:
        """Why the detail of an outermost request becomes spans; empty if it does not. Its duration counts from now on."""
        slow = self._slow(start, end) if "slow" in self._words else ()
        unhealthy = held.nonfinite or semconv.STOP_KINDS in end.attributes or any(kind != semconv.FINDING_LOW for kind in end.findings)
        known = (held.failed, held.nonfinite, bool(end.findings), unhealthy)
        others = zip(("errors", "nonfinite", "findings", "unhealthy"), known, strict=True)
        return (*slow, *(word for word, true in others if true and word in self._words), *(("marked",) if held.marked else ()))

    def _slow(self, start: RequestStart, end: RequestEnd) -> tuple[str, ...]:
        seconds = (end.end_ns - start.start_ns) / 1e9
        longest, first = self._settings.slow_after, self._settings.slow_first_token
        usual = self._usual(start, end, seconds) if self._share is not None else None
        slow = any(limit is not None and seconds > limit for limit in (longest, usual))
        late = first is not None and end.time_to_first_token is not None and end.time_to_first_token > first
        return (*(("slow",) if slow else ()), *(("slow_first_token",) if late else ()))

    def _usual(self, start: RequestStart, end: RequestEnd, seconds: float) -> float | None:
        """The quantile of the requests before this one, kept apart for ``generate()`` and plain forward passes."""
        assert self._share is not None
        with self._lock:
            quantile = self._quantiles.setdefault(start.kind, RunningQuantile(self._share))
            usual = quantile.value
            # Durations of compilations and failures are not typical of requests.
            if end.failure is None and not end.attributes.get(semconv.WARMUP):
                quantile.add(seconds)
        return usual
