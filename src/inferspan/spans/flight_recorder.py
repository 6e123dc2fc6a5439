"""Which requests are worth their detail: it is held while a request runs, and made into spans only if the request turns out so.

The outermost request decides at its end for itself and all requests inside it, so no span loses its parent. What is held is bounded:
the oldest goes first, and as children are handed over before their parents, what is left hangs together. Nothing here makes spans.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Any

from inferspan import semconv
from inferspan.records import ModuleBatch, Phase, RequestEnd, RequestStart, Step
from inferspan.settings import Settings

__all__ = ["FlightRecorder", "HeldDetail", "RunningQuantile", "weight_of"]

HELD_BYTES = 48 * 2**20
"""What one outermost request may hold, by the rough sizes of its records: 200,000 module calls, or 20,000 steps of one row."""
CALL_BYTES, STATISTICS_BYTES, SECONDS_BYTES = 240, 700, 130
"""Of a module call, of the statistics of its output, and of its device time."""
WINDOW = 2048
"""Latest durations that a quantile is taken of: enough for two values above the highest share that can be set."""
LEAST = 30
"""Durations before a quantile decides anything, however low its share."""
DEFAULT_SHARE = 0.99
_STATISTICS = (semconv.OUTPUT_STAT_NAN_COUNT, semconv.OUTPUT_STAT_INF_COUNT)
Record = Phase | Step | ModuleBatch


def _size_of(record: Record) -> int:
    if isinstance(record, Step):
        return record.size
    if isinstance(record, Phase):
        return CALL_BYTES
    return CALL_BYTES * (1 + weight_of(record)) + STATISTICS_BYTES * len(record.statistics) + SECONDS_BYTES * len(record.device)


def weight_of(record: Record) -> int:
    """Spans that a record makes."""
    return len(record.calls) + len(record.profiled) if isinstance(record, ModuleBatch) else 1


class RunningQuantile:
    """The quantile of the latest values, exact, and only once there are enough of them for one to lie above it.

    A window rather than P2 (Jain and Chlamtac, 1985): that one never forgets, so after a change of load or of the model it would call
    everything slow, or nothing, for as long as it had run before. Two thousand numbers, kept sorted, cost some microseconds a request.

    Args:
        share: of the values that are at most as large, such as 0.99.
        window: how many values count.
    """

    def __init__(self, share: float, window: int = WINDOW) -> None:
        self.share = share
        self._window = window
        self._needed = max(LEAST, math.ceil(round(1 / (1 - share), 6)))
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
    """Detail of an outermost request and of those inside it, until it is known whether it becomes spans.

    Args:
        room: bytes that may be held, roughly; when they are used up, the oldest detail is let go of.
    """

    def __init__(self, room: int = HELD_BYTES) -> None:
        self._room = room
        self._entries: deque[tuple[Any, Record]] = deque()
        self._lock = threading.Lock()
        self._kept: bool | None = None
        self.spans = 0
        """Spans that are held now."""
        self.lost = 0
        """Spans for which there was no room."""
        self.failed = False
        self.nonfinite = False
        self.marked = False

    def add(self, scope: Any, records: Sequence[Record]) -> bool | None:
        """Hold detail of a request; ``None`` if it is held, else what has been decided meanwhile: the outermost request has ended."""
        with self._lock:
            if self._kept is not None:
                return self._kept
            for record in records:
                self._entries.append((scope, record))
                self._room -= _size_of(record)
                self.spans += weight_of(record)
                if isinstance(record, ModuleBatch) and record.statistics and not self.nonfinite:
                    self.nonfinite = any(found.get(key) for found in record.statistics.values() for key in _STATISTICS)
            while self._room < 0 and len(self._entries) > 1:
                _, oldest = self._entries.popleft()
                self._room += _size_of(oldest)
                self.spans -= weight_of(oldest)
                self.lost += weight_of(oldest)
        return None

    def note(self, end: RequestEnd, *, marked: bool) -> None:
        """Note what matters of a request that ends, be it the outermost or one inside it."""
        self.failed = self.failed or end.failure is not None
        self.nonfinite = self.nonfinite or bool(end.nonfinite)
        self.marked = self.marked or marked

    def decide(self, kept: bool) -> list[tuple[Any, list[Record]]]:
        """Let go of everything; what is kept comes back by request, those inside first."""
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
        settings: ``keep`` and what says when a request is slow.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._words = frozenset(settings.keep_words)
        share = settings.slow_quantile
        if share is None and settings.slow_after is None and settings.slow_first_token is None:
            share = DEFAULT_SHARE
        self._share = share if "slow" in self._words else None
        self._quantiles: dict[str, RunningQuantile] = {}
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        """Called in a forked child, where nobody is left to release it."""
        self._lock = threading.Lock()

    def hold(self) -> HeldDetail | None:
        """Where an outermost request that begins holds its detail; ``None`` where all detail becomes spans."""
        return HeldDetail() if self._words else None

    def reasons(self, start: RequestStart, end: RequestEnd, held: HeldDetail) -> tuple[str, ...]:
        """Why the detail of an outermost request becomes spans; empty if it does not. Its duration counts from now on."""
        slow = self._slow(start, end) if "slow" in self._words else ()
        others = (("errors", held.failed), ("nonfinite", held.nonfinite))
        return (*slow, *(word for word, true in others if true and word in self._words), *(("marked",) if held.marked else ()))

    def _slow(self, start: RequestStart, end: RequestEnd) -> tuple[str, ...]:
        seconds = (end.end_ns - start.start_ns) / 1e9
        longest, first = self._settings.slow_after, self._settings.slow_first_token
        usual = self._usual(start, end, seconds) if self._share is not None else None
        slow = any(limit is not None and seconds > limit for limit in (longest, usual))
        late = first is not None and end.time_to_first_token is not None and end.time_to_first_token > first
        return (*(("slow",) if slow else ()), *(("slow_first_token",) if late else ()))

    def _usual(self, start: RequestStart, end: RequestEnd, seconds: float) -> float | None:
        """What the request is measured by: the quantile of those before it, one for ``generate()`` and one for plain forward passes."""
        assert self._share is not None
        with self._lock:
            quantile = self._quantiles.setdefault(start.kind, RunningQuantile(self._share))
            usual = quantile.value
            # Compilations and failures say nothing about how long a request takes.
            if end.failure is None and not end.attributes.get(semconv.WARMUP):
                quantile.add(seconds)
        return usual
