"""Stages of the program as metrics: how many, how long, and how much memory they have taken.

The names of stages are the program's, so their number is bounded here: a loop that puts an index into a name makes one series ``other``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context

from inferspan import semconv
from inferspan.guard import guarded

__all__ = ["StageMetrics"]

MOST_NAMES = 50
"""Values of the label; a name beyond them is counted as ``other``."""
_OTHER = {semconv.STAGE_NAME: semconv.OTHER_STAGE}
# Not empty, or the SDK would take the current context and with it the current span.
_NO_SPAN = Context({"inferspan": True})


class StageMetrics:
    """The two instruments of one meter, whose names are counted together however many sessions there are.

    Args:
        meter: returns the meter; asked again after it failed.
    """

    def __init__(self, meter: Callable[[], Any]) -> None:
        self._meter = meter
        self._duration: Any = None
        self._memory: Any = None
        self._names: dict[str, dict[str, str]] = {}
        """Attributes by the name of the stage."""

    @guarded("metrics of stages")
    def ended(self, name: str, seconds: float, memory_delta: int | None, span: Any) -> None:
        """Record a stage that has ended.

        Args:
            name: of the stage.
            seconds: from start to end.
            memory_delta: bytes in use at the end minus at the start; ``None`` if nothing has measured them.
            span: its span, for exemplars.
        """
        if self._duration is None:
            # The duration last: it says that both are there.
            self._memory = self._make(semconv.M_PROGRAM_STAGE_MEMORY)
            self._duration = self._make(semconv.M_PROGRAM_STAGE_DURATION)
        attributes = self._names.get(name) or self._of(name)
        self._duration.record(seconds, attributes, trace.set_span_in_context(span, _NO_SPAN))
        if memory_delta is not None:
            self._memory.add(memory_delta, attributes, _NO_SPAN)

    def _of(self, name: str) -> dict[str, str]:
        if len(self._names) >= MOST_NAMES:
            return _OTHER
        return self._names.setdefault(name, {semconv.STAGE_NAME: name})

    def _make(self, name: str) -> Any:
        metric, meter = semconv.METRICS[name], self._meter()
        if metric.instrument == semconv.HISTOGRAM:
            return meter.create_histogram(
                name, unit=metric.unit, description=metric.brief, explicit_bucket_boundaries_advisory=metric.buckets
            )
        return meter.create_up_down_counter(name, unit=metric.unit, description=metric.brief)
