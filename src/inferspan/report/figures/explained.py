"""A session -> why it took its time: the keys ``suggestions`` and ``explanation`` of the JSON report, the page's section, and ``explain``.

In comes a ``Session``; out comes an ``Explanation``. Only spans that the reader has kept are looked at.
"""

from __future__ import annotations

from typing import Any

from inferspan.explain.explanation import Explanation, explain
from inferspan.explain.figures import figures_of
from inferspan.report.plain import plain_values
from inferspan.report.session import Session

__all__ = ["explanation_document", "explanation_of"]

_AROUND_NS = 10_000_000_000
"""Readings of the machine this long before and after the spans are theirs: samplers have an interval."""


def explanation_of(session: Session, *, at_these_times: bool = False) -> Explanation:
    """The explanation of a session.

    Args:
        session: result of ``read_sessions``.
        at_these_times: use readings of the machine from the time of the spans only, if there are some: the session has spans of one
            trace, and metrics of the whole file.
    """
    tally = session.tally
    between = (tally.first_ns - _AROUND_NS, tally.last_ns + _AROUND_NS) if at_these_times and tally.last_ns else None
    return explain(
        figures_of(
            requests=[(request.span, request.kind == "generate") for request in session.requests],
            stages=session.stages,
            batches=session.batches,
            series=session.series,
            systems=session.systems.values(),
            complete=not session.left_out.spans,
            between=between,
        )
    )


def explanation_document(found: Explanation) -> dict[str, Any]:
    """An explanation as values that JSON takes; names and texts of a file are cut and cleaned as in the report."""
    made: dict[str, Any] = plain_values(found.as_dict())
    return made
