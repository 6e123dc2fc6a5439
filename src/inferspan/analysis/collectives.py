"""Share of profiled passes in which collectives with other ranks ran, from the spans of steps and of plain forward calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from inferspan import semconv

__all__ = ["PassTime", "collective_share", "profiled_pass", "share_of"]


class Spanlike(Protocol):
    """Attributes of a span."""

    @property
    def attributes(self) -> Mapping[str, Any]: ...


class PassTime(NamedTuple):
    """Seconds of a profiled pass, and those of them in collectives."""

    seconds: float
    collective: float


def profiled_pass(span: Spanlike) -> PassTime | None:
    """The figures of a span of a step or plain forward call; ``None`` if the pass was not profiled.

    A pass lasts as long as the device's time of it where that is longer than the host's.
    """
    host, device = _seconds(span, semconv.PROFILER_PASS_TIME), _seconds(span, semconv.DEVICE_TIME) or 0.0
    if host is None:
        return None
    seconds = max(host, device)
    return PassTime(seconds, min(seconds, _seconds(span, semconv.PROFILER_COLLECTIVE_TIME) or 0.0))


def collective_share(spans: Iterable[Spanlike]) -> float | None:
    """Share of all profiled passes among the spans, 0 to 1; ``None`` where no collective was seen."""
    return share_of([one for span in spans if (one := profiled_pass(span)) is not None])


def share_of(found: Sequence[PassTime]) -> float | None:
    """The same of passes."""
    seconds, collective = sum(one.seconds for one in found), sum(one.collective for one in found)
    return collective / seconds if collective > 0 and 0 < seconds < math.inf else None


def _seconds(span: Spanlike, key: str) -> float | None:
    value = span.attributes.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None
