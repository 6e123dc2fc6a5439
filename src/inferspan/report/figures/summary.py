"""A session -> its summary: events by type, seconds by module and stage, totals; what ``--text`` prints and the JSON report holds.

In comes a ``Session``; out come a ``RecordingSummary`` of plain values, a table of the operations as text, and phases with their share.
A figure that is not known is absent.
"""

from __future__ import annotations

from typing import Any

from inferspan import semconv
from inferspan.report.figures.events import Events, events_of, left_out
from inferspan.report.session import Session
from inferspan.summaries.lines import RecordingSummary, recording_summary

__all__ = ["phases", "summary_of"]


def summary_of(session: Session, events: Events | None = None) -> RecordingSummary:
    """The summary of a session.

    Args:
        session: result of ``read_sessions``.
        events: those of ``events_of``, if they are at hand.
    """
    counts = (events_of(session) if events is None else events).types
    counts.update(left_out(session))
    tally = session.tally
    recorded = tally.levels["step"]
    return recording_summary(
        tally.operations.rows(),
        counts,
        max(0, tally.last_ns - tally.first_ns) / 1e9,
        {"recorded": recorded, "with_modules": tally.steps_with_modules} if recorded else {},
    )


def phases(session: Session) -> list[dict[str, Any]]:
    """Phases and stages of requests: number, seconds in total, and share of the time of all requests; the longest first."""
    rows = session.tally.operations.rows(("request", "phase", "stage"))
    whole = sum(row.total_duration for row in rows if row.kind == "request")
    found = [row for row in rows if row.kind == "phase" or (row.kind == "stage" and row.name in _STAGES)]
    return [
        {
            "name": row.name,
            "count": row.count,
            "total": row.total_duration,
            "share": min(1.0, row.total_duration / whole) if whole else None,
            "clock": row.clock,
        }
        for row in sorted(found, key=lambda row: (-row.total_duration, row.name))
    ]


_STAGES = (
    semconv.STAGE_VISION_ENCODE, semconv.STAGE_AUDIO_ENCODE, semconv.STAGE_FUSION, semconv.STAGE_TEXT_ENCODE, semconv.STAGE_VAE_ENCODE,
    semconv.STAGE_VAE_DECODE, semconv.STAGE_VOCODE, semconv.STAGE_DENOISE,
)  # fmt: skip
