"""What explain needs of a span and of a metric series, as protocols, and readers of their attributes.

The report's ``Span`` and ``Series`` are of this form. A value that is missing or of another type is ``None``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from inferspan.analysis.levels import MODULE, level_of

__all__ = ["EventLike", "SeriesLike", "SpanLike", "number", "numbers", "shape", "submodules", "taken", "text", "whole"]

_DIMENSIONS = re.compile(r"[0-9]{1,15}(x[0-9]{1,15}){0,15}")


class EventLike(Protocol):
    """An event of a span."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes by name."""
        ...


class SpanLike(Protocol):
    """A span; ``seconds`` by the host's clock, ``measured_seconds`` by the device's where it was measured."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def trace_id(self) -> str:
        """Id of its trace."""
        ...

    @property
    def span_id(self) -> str:
        """Its id."""
        ...

    @property
    def start_ns(self) -> int:
        """Nanoseconds since the epoch, 0 if not known."""
        ...

    @property
    def end_ns(self) -> int:
        """The same of its end."""
        ...

    @property
    def resource(self) -> int:
        """Number of its process."""
        ...

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        ...

    @property
    def seconds(self) -> float:
        """Duration by the host's clock."""
        ...

    @property
    def measured_seconds(self) -> float:
        """Duration by the device's clock where it was measured."""
        ...

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes by name."""
        ...

    @property
    def events(self) -> Sequence[EventLike]:
        """Events on it."""
        ...

    @property
    def children(self) -> Sequence[SpanLike]:
        """Spans directly inside."""
        ...


class SeriesLike(Protocol):
    """A metric series: points as (nanoseconds, value, ...) and figures over all of them."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes by name."""
        ...

    @property
    def resource(self) -> int:
        """Number of its process."""
        ...

    @property
    def points(self) -> Sequence[tuple[Any, ...]]:
        """(Nanoseconds, value, ...) in order of time."""
        ...

    @property
    def average(self) -> float | None:
        """Mean of all points."""
        ...

    @property
    def maximum(self) -> int | float | None:
        """Largest of all points."""
        ...

    @property
    def last(self) -> int | float | None:
        """The newest value."""
        ...


def taken(step: SpanLike) -> float:
    """Seconds of a step: a device works on when the host has launched all of it, and the host goes on to what waits for the result."""
    return max(step.seconds, step.measured_seconds)


def number(span: SpanLike, key: str) -> float | None:
    """A finite number among the attributes of a span."""
    value = span.attributes.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def whole(span: SpanLike, key: str) -> int | None:
    """A whole number that is not negative."""
    value = span.attributes.get(key)
    return value if type(value) is int and value >= 0 else None


def text(span: SpanLike, key: str) -> str | None:
    """A text."""
    value = span.attributes.get(key)
    return value if isinstance(value, str) else None


def numbers(span: SpanLike, key: str) -> list[float]:
    """An array of numbers; empty if one of them is none."""
    value = span.attributes.get(key)
    if not isinstance(value, tuple) or not all(isinstance(part, int | float) and math.isfinite(part) for part in value):
        return []
    return [float(part) for part in value if not isinstance(part, dict | tuple | str)]


def shape(span: SpanLike, key: str) -> list[int]:
    """The first shape of an array of shapes such as ``2x16``."""
    value = span.attributes.get(key)
    first = value[0] if isinstance(value, tuple) and value else None
    return [int(part) for part in first.split("x")] if isinstance(first, str) and _DIMENSIONS.fullmatch(first) else []


def submodules(span: SpanLike) -> list[SpanLike]:
    """Spans of modules directly inside a span."""
    return [child for child in span.children if level_of(child) == MODULE]
