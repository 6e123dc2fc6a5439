"""A cause: what took time, how much, what shows it, what to change and what that is expected to save."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .spans import SpanLike

__all__ = ["LIKELY", "POSSIBLE", "SURE", "Cause", "Part", "SpanRef", "shown_by"]

SURE, LIKELY, POSSIBLE = "sure", "likely", "possible"
"""How sure a cause is: its time was measured; it follows from figures that belong to it; others could have the same figures."""
MOST_SPANS = 3
_NOMINAL = {"high": 0.15, "medium": 0.05, "low": 0.01}
"""Rank of causes whose time nothing measures, as a share of the time, by severity."""
_HIGH, _MEDIUM = 0.3, 0.1


@dataclass(frozen=True, slots=True)
class SpanRef:
    """A span that shows a cause, by its ids; ``seconds`` as measured."""

    name: str
    trace_id: str
    span_id: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The fields under their names."""
        return {"name": self.name, "trace_id": self.trace_id, "span_id": self.span_id, "seconds": self.seconds}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a cause, such as a module or a place in the code, with its seconds if they are known."""

    name: str
    seconds: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What a rule has found.

    Attributes:
        rule: its name.
        title: one sentence with figures.
        place: part of the time it belongs to: a phase, ``queue``, ``program`` or ``machine``.
        seconds: of the time of requests and stages that the cause takes; ``None`` where nothing measures it.
        gain: seconds that the advice is expected to save; ``None`` where that cannot be told.
        basis: where the gain comes from, ``measured``, ``estimated`` or ``at most``.
        sure: ``SURE``, ``LIKELY`` or ``POSSIBLE``.
        figures: numbers and texts that show it, in base units.
        spans: that show it.
        advice: the next thing to change.
        setting: option or argument to change, as it is written; ``None`` if it is none.
        level: severity where it does not follow from the share.
        parts: what it consists of, the largest first.
    """

    rule: str
    title: str
    place: str
    seconds: float | None
    figures: Mapping[str, Any]
    advice: str
    setting: str | None = None
    gain: float | None = None
    basis: str = "estimated"
    sure: str = SURE
    spans: Sequence[SpanRef] = ()
    level: str | None = None
    parts: Sequence[Part] = field(default_factory=tuple)

    def share(self, total: float) -> float | None:
        """Seconds as a share of the time of the recording, at most 1."""
        return None if self.seconds is None or total <= 0 else min(1.0, max(0.0, self.seconds / total))

    def severity(self, total: float) -> str:
        """``high``, ``medium`` or ``low``."""
        if self.level is not None:
            return self.level
        share = self.share(total) or 0.0
        return "high" if share >= _HIGH else "medium" if share >= _MEDIUM else "low"

    def rank(self, total: float) -> float:
        """Order of causes: the expected gain, half of the time where the gain is a bound or not known, else by severity."""
        if self.gain is not None and self.basis != "at most" and total > 0:
            return min(1.0, self.gain / total)
        share = self.share(total)
        return _NOMINAL[self.severity(total)] if share is None else share / 2


def shown_by(spans: Iterable[SpanLike], most: int = MOST_SPANS) -> tuple[SpanRef, ...]:
    """The longest of these spans."""
    longest = sorted(spans, key=lambda span: -span.measured_seconds)[:most]
    return tuple(SpanRef(span.name, span.trace_id, span.span_id, span.measured_seconds) for span in longest)
