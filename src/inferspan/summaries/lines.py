"""Operations and events -> the summary of a recording: events by type, seconds by module and stage, totals.

In come rows of operations and counts of events; out come plain values and lines of text. A figure that is not known is absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inferspan.analysis.operations import OperationRow
from inferspan.text.numbers import counted

__all__ = ["RecordingSummary", "recording_summary"]

_TIMED = ("module", "stage")


@dataclass(frozen=True)
class RecordingSummary:
    """What one recording holds.

    Attributes:
        total_events: number of events, those of spans that were not kept included.
        event_types: number by type, the most frequent first.
        module_times: seconds of each module and stage in total, with what is inside, the longest first.
        module_details: for each of them ``self`` seconds, ``calls``, ``kind``, and the ``clock`` of the seconds.
        total_duration: seconds from the beginning of the recording to the last event.
        steps: passes that the recording has steps of, and those of them with modules inside: all, or a sample.
    """

    total_events: int = 0
    event_types: dict[str, int] = field(default_factory=dict)
    module_times: dict[str, float] = field(default_factory=dict)
    module_details: dict[str, dict[str, Any]] = field(default_factory=dict)
    total_duration: float = 0.0
    steps: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an empty mapping of an empty recording."""
        if not self.total_events:
            return {}
        return {
            "total_events": self.total_events,
            "event_types": self.event_types,
            "module_times": self.module_times,
            "module_details": self.module_details,
            "total_duration": self.total_duration,
            "steps": self.steps,
        }

    def lines(self, most: int = 20) -> list[str]:
        """The summary as text: totals, a line for each type, a line for each module, the largest first; at most ``most`` modules."""
        if not self.total_events:
            return ["no events"]
        found = [f"total events: {self.total_events:,}", f"total duration: {self.total_duration:.3f} s", "events by type:"]
        found += [f"  {name}: {number:,}" for name, number in self.event_types.items()]
        if self.module_times:
            some = f", of {self.steps['with_modules']:,} of {counted(self.steps['recorded'], 'step')}" if self.steps else ""
            found.append(f"time by module and stage, with what is inside{some}:")
            shown = list(self.module_times.items())[:most]
            for name, seconds in shown:
                detail = self.module_details[name]
                calls = counted(detail["calls"], "call")
                found.append(f"  {name}: {seconds:.3f} s (own {detail['self']:.3f} s, {calls}, {detail['clock']} clock)")
            if len(self.module_times) > most:
                found.append(f"  and {len(self.module_times) - most:,} more")
        return found


def recording_summary(
    operations: Iterable[OperationRow], events: Mapping[str, int], seconds: float, steps: Mapping[str, int]
) -> RecordingSummary:
    """The summary of a recording.

    Args:
        operations: figures by operation.
        events: number of events by type.
        seconds: from the beginning of the recording to the last event.
        steps: ``recorded`` ones, and those of them ``with_modules``; empty without any.
    """
    rows = sorted((row for row in operations if row.kind in _TIMED), key=lambda row: (-row.total_duration, row.name))
    return RecordingSummary(
        total_events=sum(events.values()),
        event_types=dict(sorted(events.items(), key=lambda item: (-item[1], item[0]))),
        module_times={row.name: row.total_duration for row in rows},
        module_details={row.name: _detail(row) for row in rows},
        total_duration=seconds,
        steps=dict(steps),
    )


def _detail(row: OperationRow) -> dict[str, Any]:
    return {"self": row.self_duration, "calls": row.count, "kind": row.kind, "clock": row.clock}
