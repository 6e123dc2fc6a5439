"""The latest requests of a recording: their figures, and when their phases and steps ran, for a timeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from inferspan.records import RequestStart
from inferspan.text.numbers import counted

from .notebook import request_html

__all__ = ["MOST_BARS", "Bar", "Ended", "RecordedRequest"]

MOST_BARS = 512
"""Phases, stages and steps of one request that are kept."""


class Bar(NamedTuple):
    """A phase, stage or step; seconds since the request began."""

    level: str
    name: str
    start: float
    end: float


class Ended(NamedTuple):
    """What is kept of a request when it ends, on the model's thread: figures, and nothing of its content."""

    name: str
    start: RequestStart
    end_ns: int
    input_tokens: int | None
    output_tokens: int | None
    time_to_first_token: float | None
    time_per_output_token: float | None
    failure: str | None
    findings: Sequence[str]
    bars: Sequence[Bar]
    context: Any

    def request(self) -> RecordedRequest:
        """The same as it is shown."""
        start, context = self.start, self.context
        return RecordedRequest(
            name=self.name,
            kind=start.kind,
            start_ns=start.start_ns,
            duration=max(0.0, (self.end_ns - start.start_ns) / 1e9),
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            time_to_first_token=self.time_to_first_token,
            time_per_output_token=self.time_per_output_token,
            failure=self.failure,
            findings=tuple(self.findings),
            nested=start.nested,
            trace_id=f"{context.trace_id:032x}" if context.is_valid else "",
            bars=tuple(self.bars),
        )


@dataclass(frozen=True, eq=False)
class RecordedRequest:
    """One request that has ended; what is not known is ``None``.

    Attributes:
        name: of its span.
        kind: ``generate``, ``forward`` or ``pipeline``.
        start_ns: nanoseconds since the epoch.
        duration: seconds.
        input_tokens, output_tokens: of all rows.
        time_to_first_token, time_per_output_token: seconds.
        failure: type of the exception that ended it.
        findings: kinds of what is wrong with its output.
        nested: whether it ran inside another request.
        trace_id: of its span, as hexadecimal digits; empty without one.
        bars: its phases, stages and steps in the order of their ends, the first ``MOST_BARS``.
    """

    name: str
    kind: str
    start_ns: int
    duration: float
    input_tokens: int | None = None
    output_tokens: int | None = None
    time_to_first_token: float | None = None
    time_per_output_token: float | None = None
    failure: str | None = None
    findings: tuple[str, ...] = ()
    nested: bool = False
    trace_id: str = ""
    bars: tuple[Bar, ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name for JSON, without those that are not known."""
        found = {key: value for key, value in vars(self).items() if value is not None}
        return found | {"findings": list(self.findings), "bars": [bar._asdict() for bar in self.bars]}

    def to_json(self, indent: int | None = None) -> str:
        """The same as text."""
        return json.dumps(self.as_dict(), indent=indent, default=str)

    def __str__(self) -> str:
        """In one line."""
        counts = ((self.input_tokens, "in"), (self.output_tokens, "out"))
        tokens = [f"{counted(number, 'token')} {word}" for number, word in counts if number is not None]
        times = [
            f"{word} {value * 1000:.1f} ms"
            for word, value in (("TTFT", self.time_to_first_token), ("time per token", self.time_per_output_token))
            if value is not None
        ]
        ended = [f"failed: {self.failure}"] if self.failure else []
        return " · ".join([self.name, f"{self.duration:.3f} s", *tokens, *times, *(f"{kind} output" for kind in self.findings), *ended])

    def _repr_html_(self) -> str:
        return request_html(str(self), self.name, self.duration, self.time_to_first_token, self.bars, failed=self.failure is not None)
