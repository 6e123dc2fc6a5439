"""Spans of a phase or module -> what limits them, as the roofline has told on each. The report and explain have it from here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from inferspan import semconv

from .spans import SpanLike, number, text

__all__ = ["Bound", "bound_of", "peak_share_of"]


class Bound(NamedTuple):
    """What limits most of the time of some spans.

    Attributes:
        name: one of ``semconv.BOUNDS``.
        share: of the time of all these spans.
        share_of_told: of the time of those that have a bound.
    """

    name: str
    share: float
    share_of_told: float


def bound_of(spans: Iterable[SpanLike]) -> Bound | None:
    """What limits most of the time of some spans; ``None`` if none of them that takes time has a bound."""
    seconds: dict[str, float] = defaultdict(float)
    total = 0.0
    for span in spans:
        total += span.measured_seconds
        named = text(span, semconv.DEVICE_BOUND)
        if named in semconv.BOUNDS and named is not None:
            seconds[named] += span.measured_seconds
    told = sum(seconds.values())
    if told <= 0:
        return None
    name = max(seconds, key=lambda one: seconds[one])
    return Bound(name, seconds[name] / total, seconds[name] / told)


def peak_share_of(spans: Iterable[SpanLike]) -> float | None:
    """Achieved rate / ceiling of the nearer roof, mean over the time of the spans that have it."""
    weighed = [(span.measured_seconds, share) for span in spans if (share := number(span, semconv.DEVICE_PEAK_SHARE)) is not None]
    total = sum(seconds for seconds, _ in weighed)
    return sum(seconds * share for seconds, share in weighed) / total if total > 0 else None
