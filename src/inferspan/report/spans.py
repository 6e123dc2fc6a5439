"""Spans of a session file and the requests among them, as plain objects: what the reader makes and everything else draws on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inferspan import semconv
from inferspan.analysis.levels import PHASE, STEP, level_of
from inferspan.report.otlp_lines import Value

__all__ = ["Caller", "Link", "Request", "Span", "SpanEvent"]


@dataclass(slots=True)
class Caller:
    """A span of another library; times are nanoseconds since the Unix epoch, 0 if unknown."""

    name: str
    parent_id: str
    start_ns: int
    end_ns: int
    resource: int


@dataclass(slots=True)
class SpanEvent:
    """An event of a span, for example the exception that ended it."""

    name: str
    time_ns: int
    attributes: Mapping[str, Value]


@dataclass(slots=True)
class Link:
    """A link of a span to another one."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Value]


@dataclass(slots=True)
class Span:
    """One span of ours; times are nanoseconds since the Unix epoch, 0 if unknown, ``resource`` indexes ``Session.resources``."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    failed: bool
    status_message: str
    events: tuple[SpanEvent, ...]
    links: tuple[Link, ...]
    resource: int
    children: list[Span] = field(default_factory=list)

    @property
    def timed(self) -> bool:
        """Whether the duration is known: both times are, and they are in order."""
        return 0 < self.start_ns <= self.end_ns

    @property
    def seconds(self) -> float:
        """Duration in seconds, by the host's clock; 0 where it is not known."""
        return (self.end_ns - self.start_ns) / 1e9 if self.timed else 0.0

    @property
    def measured_seconds(self) -> float:
        """Device time in seconds where it was measured, else the duration by the host's clock."""
        value = self.attributes.get(semconv.DEVICE_TIME)
        return max(0.0, float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else self.seconds


@dataclass(slots=True)
class Request:
    """One ``generate()`` or one plain forward pass: its span, the tree below it and its callers."""

    span: Span
    callers: tuple[str, ...] = ()
    """Names of the enclosing spans, outermost first, as far as the file holds them."""

    @property
    def phases(self) -> list[Span]:
        """Phase spans in order of start."""
        return [child for child in self.span.children if level_of(child) == PHASE]

    @property
    def steps(self) -> list[Span]:
        """Step spans of all phases, in order of start."""
        return [step for phase in self.phases for step in phase.children if level_of(step) == STEP]

    @property
    def kind(self) -> str:
        """``forward`` for a plain call of the model or of a method of it, else ``generate``."""
        plain = self.span.name.split(" ", 1)[0] == semconv.SPAN_FORWARD or semconv.METHOD in self.span.attributes
        return "forward" if plain else "generate"

    @property
    def model(self) -> str | None:
        """Name of the model, if the request carries one."""
        return self.text(semconv.REQUEST_MODEL) or self.text(semconv.MODEL_NAME)

    def number(self, key: str) -> float | None:
        """A numeric attribute of the request span, ``None`` if it is absent."""
        value = self.span.attributes.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, key: str) -> str | None:
        """A text attribute of the request span, ``None`` if it is absent."""
        value = self.span.attributes.get(key)
        return value if isinstance(value, str) else None

    def flag(self, key: str) -> bool:
        """Whether a boolean attribute of the request span is true."""
        return self.span.attributes.get(key) is True

    def numbers(self, key: str) -> tuple[float, ...]:
        """A numeric array of the request span, empty if it is absent."""
        value = self.span.attributes.get(key)
        parts = value if isinstance(value, tuple) else ()
        return tuple(part for part in parts if isinstance(part, int | float) and not isinstance(part, bool))

    def texts(self, key: str) -> tuple[str, ...]:
        """A text array of the request span, empty if it is absent."""
        value = self.span.attributes.get(key)
        return tuple(part for part in value if isinstance(part, str)) if isinstance(value, tuple) else ()
