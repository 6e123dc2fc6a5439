"""Every span of a session file, once -> figures that need no span kept: by operation, by kind of span, and the time they cover.

The reader shows each span to ``Tally.add`` as it comes. Spans come in any order, children usually before their parents; of each, an integer
and the number of its operation are remembered, so that time inside is taken off its parent's own time and a repeated span counts once.
"""

from __future__ import annotations

from collections import Counter

from inferspan import semconv
from inferspan.analysis.levels import MODULE, STEP, measured, operation_of
from inferspan.analysis.operations import Operations
from inferspan.report.spans import Span

__all__ = ["Tally"]

_MOST_REMEMBERED = 5_000_000
"""Spans: some 100 bytes each. Further ones count in full, without the check for repeats and without own time."""


class Tally:
    """Adds up spans.

    Attributes:
        operations: figures by operation.
        levels: number of spans by level.
        first_ns, last_ns: the earliest start and the latest end of spans and events, 0 if none has both.
        repeated: spans that came again, and were left aside.
        forgotten: spans over those that are remembered.
    """

    def __init__(self) -> None:
        self.operations = Operations()
        self.levels: Counter[str] = Counter()
        self.first_ns = self.last_ns = self.repeated = self.forgotten = 0
        self._operations: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._known: dict[int, int] = {}
        self._waiting: dict[int, tuple[float, float]] = {}
        self._around_modules: set[int] = set()
        self._closed: dict[int, tuple[float, float | None]] = {}
        """Steps with nothing inside so far, with their seconds."""

    @property
    def steps_with_modules(self) -> int:
        """Number of steps that have spans of modules inside."""
        kinds = (self._operations[self._known[key]][0] for key in self._around_modules if key in self._known)
        return sum(kind == "step" for kind in kinds)

    def seen(self, trace_id: str, span_id: str) -> bool:
        """Whether a span has come before; counts it if so."""
        if hash((trace_id, span_id)) in self._known:
            self.repeated += 1
            return True
        return False

    def add(self, span: Span, level: str) -> None:
        """Count a span."""
        self.levels[level] += 1
        operation = operation_of(span, level)
        if level == MODULE and span.parent_id and len(self._around_modules) < _MOST_REMEMBERED:
            self._around_modules.add(hash((span.trace_id, span.parent_id)))
        device_seconds, delta = measured(span.attributes)
        if not span.timed and device_seconds is None:
            self._remember(span, operation, None)
            return
        seconds = span.seconds
        if span.timed:
            self.covers(span.start_ns, span.end_ns)
        self.operations.add(*operation, seconds, device_seconds=device_seconds, memory_delta=delta)
        self._remember(span, operation, (seconds, device_seconds))
        if span.parent_id and span.name != semconv.SPAN_BACKWARD:  # that comes after its request
            self._inside(hash((span.trace_id, span.parent_id)), seconds, device_seconds)

    def covers(self, start_ns: int, end_ns: int) -> None:
        """Something happened from one time to another; times that are not known, which are 0, are passed over."""
        if 0 < start_ns <= end_ns:
            self.first_ns = min(self.first_ns or start_ns, start_ns)
            self.last_ns = max(self.last_ns, end_ns)

    def _remember(self, span: Span, operation: tuple[str, str], times: tuple[float, float | None] | None) -> None:
        if len(self._known) >= _MOST_REMEMBERED:
            self.forgotten += 1
            return
        number = self._numbers.setdefault(operation, len(self._operations))
        if number == len(self._operations):
            self._operations.append(operation)
        key = hash((span.trace_id, span.span_id))
        self._known[key] = number
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            self.operations.add_inside(*operation, waiting[0], device_seconds=waiting[1])
        if operation[0] == STEP and times is not None:
            if waiting is not None:
                self.operations.add_open(*operation, times[0], device_seconds=times[1])
            else:
                self._closed[key] = times

    def _inside(self, parent: int, seconds: float, device_seconds: float | None) -> None:
        number = self._known.get(parent)
        if number is not None:
            step = self._closed.pop(parent, None)
            if step is not None:
                self.operations.add_open(*self._operations[number], step[0], device_seconds=step[1])
            self.operations.add_inside(*self._operations[number], seconds, device_seconds=device_seconds)
        elif len(self._waiting) < _MOST_REMEMBERED:
            host, device = self._waiting.get(parent, (0.0, 0.0))
            self._waiting[parent] = (host + seconds, device + (seconds if device_seconds is None else device_seconds))
