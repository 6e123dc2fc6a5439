"""A recording -> its summary: what ``handle.summary()`` and ``session.summary()`` return.

In comes a ``Recording``; out comes an object of plain values, which is also a mapping, JSON, a table for terminals and HTML for notebooks.
A figure that is not known is ``None`` in the object and absent elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from inferspan.analysis.operations import OperationRow
from inferspan.metrics.summary import Totals

from .activations import ModuleRow
from .lines import RecordingSummary, recording_summary
from .notebook import summary_html
from .recording import Recording
from .table import plain_table, rich_table

__all__ = ["RunSummary", "summary_of"]


@dataclass(frozen=True)
class RunSummary(Totals):
    """Totals of the requests, and figures of everything that was recorded; times in seconds.

    ``operations``, ``event_types`` and what follows from them are of spans that were recorded, by the same rules as ``inferspan report``
    has them of a session file: where only a sample of steps or requests has spans, they are of that sample. Each request counts as an
    operation, with or without a span. Percentiles of up to 512 calls are exact, those of more are at most 1 % off.
    """

    operations: tuple[OperationRow, ...] = ()
    """By kind from the outside to the inside, then the longest in total first; at most 4,000, further ones together as ``(others)``."""
    event_types: Mapping[str, int] = field(default_factory=dict)
    """Number of events by type, the most frequent first."""
    modules: tuple[ModuleRow, ...] = ()
    """Shapes, and mean, deviation and range of the outputs where ``output_stats`` are recorded, in the model's order; at most 4,000."""
    analysis: Mapping[str, Any] = field(default_factory=dict)
    """Of generated tokens: requests that were analysed, ``findings`` by kind, and average, min and max of each figure over the requests."""
    total_duration: float = 0.0
    """Seconds from the first beginning to the last end."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """``recorded``: steps with a span, and ``with_modules``: those of them with modules inside; empty without steps."""

    @property
    def total_events(self) -> int:
        """Number of events of all types."""
        return sum(self.event_types.values())

    @property
    def module_times(self) -> dict[str, float]:
        """Seconds of each module and stage in total, with what is inside, the longest first."""
        return self._recording().module_times

    def operation(self, kind: str, name: str) -> OperationRow | None:
        """The figures of one operation, such as ``("step", "decode_step")``; ``None`` if it has not been recorded."""
        return next((row for row in self.operations if (row.kind, row.name) == (kind, name)), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an empty mapping of an empty recording."""
        totals = {item.name: getattr(self, item.name) for item in fields(Totals)}
        if not (self.total_events or self.operations or self.requests or self.forwards):
            return {}
        return {
            "requests": {name: value for name, value in totals.items() if value is not None},
            **self._recording().as_dict(),
            "operations": [row.as_dict() for row in self.operations],
            "modules": [row.as_dict() for row in self.modules],
            "analysis": dict(self.analysis),
        }

    def to_json(self, indent: int | None = None) -> str:
        """The same as text.

        Args:
            indent: spaces by which each level is set in; ``None`` for one line.
        """
        return json.dumps(self.as_dict(), indent=indent, allow_nan=False, default=str)

    def text(self, most: int = 12) -> str:
        """Everything as plain text: totals, events by type, seconds by module, operations, and modules with their outputs.

        Args:
            most: rows of operations of each kind, and of modules.
        """
        parts = [str(self), *map(printable, self._recording().lines(most))]
        operations = plain_table(self.operations, most)
        if operations:
            parts += ["operations:", operations]
        told = [row for row in self.modules if row.outputs is not None]
        if told:
            parts += ["outputs of modules, over all recorded calls (std is the population's):"]
            parts += [f"  {printable(str(row))}" for row in told[:most]]
            parts += [f"  and {len(told) - most:,} more"] if len(told) > most else []
        return "\n".join(parts)

    def table(self, most: int = 12) -> Any:
        """The operations as a ``rich.table.Table``, or as plain text where rich is not installed.

        Args:
            most: rows of each kind.
        """
        found = rich_table(self.operations, most)
        return plain_table(self.operations, most) if found is None else found

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield str(self)
        if self.operations:
            yield rich_table(self.operations, width=options.max_width)

    def __str__(self) -> str:
        """One line for a person."""
        return super().__str__()

    def _repr_html_(self) -> str:
        return summary_html(str(self), self.operations, self.event_types, self.modules)

    def _recording(self) -> RecordingSummary:
        return recording_summary(self.operations, self.event_types, self.total_duration, self.steps)


def printable(text: str) -> str:
    """A text without control characters, which a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def summary_of(recording: Recording) -> RunSummary:
    """The summary of what a recording holds by now."""
    times = recording.times()
    return RunSummary(
        **vars(recording.totals.totals()),
        operations=tuple(recording.operations.rows()),
        event_types=recording.events(),
        modules=recording.modules(),
        analysis=recording.analysis(),
        total_duration=times.seconds,
        steps={"recorded": times.steps, "with_modules": times.with_modules} if times.steps else {},
    )
