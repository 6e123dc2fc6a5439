"""A session -> the JSON report: one mapping with everything that the page shows in figures, under a schema number.

In comes a ``Session``; out comes a mapping of plain values, as ``docs/looking/report-json.md`` and ``assets/report.schema.json`` describe
it. Its figures come from the same functions as those of the page. ``write_document`` writes it event by event, so no long text is held.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from inferspan import semconv
from inferspan.report.figures.analysis import analysis_of
from inferspan.report.figures.bottlenecks import bottlenecks
from inferspan.report.figures.events import Events, events_of, left_out
from inferspan.report.figures.explained import explanation_document, explanation_of
from inferspan.report.figures.inside import attention_document, data_flow_document
from inferspan.report.figures.memory import memory_document
from inferspan.report.figures.statistics import begin_of, metric_statistics, operation_statistics, timeline
from inferspan.report.figures.summary import phases, summary_of
from inferspan.report.figures.system import process_labels, systems_of
from inferspan.report.output.writing import write_text
from inferspan.report.overview import request_row, totals
from inferspan.report.plain import plain
from inferspan.report.session import Request, Session
from inferspan.version import version

__all__ = ["SCHEMA", "document", "encoded", "figures", "write_document"]

SCHEMA = 1
"""Number of the schema: raised when a key changes its meaning or goes; new keys may come without."""


def figures(session: Session) -> dict[str, Any]:
    """The keys that page and JSON report share, besides those that the page draws in its own form."""
    labels = process_labels(session)
    events, explained = events_of(session), explanation_document(explanation_of(session))
    rows = [request_row(request) for request in session.requests]
    return {
        "session": _session(session, labels) | {"totals": plain(totals(rows)._asdict())},
        "system": systems_of(session),
        "phases": plain_list(phases(session)),
        "operations": operation_statistics(session),
        "bottlenecks": plain_list(bottlenecks(session)),
        "suggestions": explained["causes"],
        "explanation": {key: explained[key] for key in ("seconds", "tree", "limits", "missing")},
        "summary": plain_tree(summary_of(session, events).as_dict()),
        "analysis": analysis_of(session.requests),
        "memory": memory_document(session),
        "events": events,
    }


def document(session: Session) -> dict[str, Any]:
    """The whole JSON report.

    Args:
        session: result of ``read_sessions``.
    """
    labels, shared = process_labels(session), figures(session)
    events = shared.pop("events")
    operations = shared.pop("operations")
    missing = left_out(session)
    return {
        "schema": SCHEMA,
        "version": version(),
        **shared,
        "attention": attention_document(session),
        "data_flow": data_flow_document(session),
        "timeline": timeline(session, labels),
        "statistics": {"operations": operations, "metrics": metric_statistics(session, labels)},
        "requests": [_request(number, request, labels) for number, request in enumerate(session.requests, 1)],
        "notes": list(session.notes),
        "events_left_out": sum(missing.values()),
        "events": events,
    }


def encoded(found: dict[str, Any]) -> Iterator[str]:
    """The JSON text of a document in pieces: a line for each key, and for each element of a list."""
    yield "{\n"
    for place, (key, value) in enumerate(found.items()):
        yield (",\n" if place else "") + f"{json.dumps(key)}: "
        if isinstance(value, list | Events) and value:
            for number, item in enumerate(value):
                yield ("[\n  " if not number else ",\n  ") + json.dumps(item, allow_nan=False)
            yield "\n]"
        else:
            yield json.dumps(list(value) if isinstance(value, Events) else value, allow_nan=False)
    yield "\n}\n"


def write_document(session: Session, path: Path) -> None:
    """Write the JSON report; readers never see an incomplete file, and only its owner may read it.

    Raises:
        OSError: the file cannot be written.
    """
    write_text(path, encoded(document(session)))


def _session(session: Session, labels: list[str]) -> dict[str, Any]:
    begin, end = begin_of(session), session.tally.last_ns
    named = [span for span in session.stages if semconv.SESSION_ID in span.attributes and semconv.STAGE_NAME not in span.attributes]
    return {
        "files": [plain(file.path.name) for file in session.files],
        "start": _moment(begin),
        "start_ns": str(begin) if begin else None,
        "duration": max(0, end - begin) / 1e9 if end else None,
        "processes": [plain(label) for label in labels],
        "spans": sum(session.tally.levels.values()),
        "sessions": [
            {
                "id": plain(span.attributes.get(semconv.SESSION_ID)),
                "name": plain(span.attributes.get(semconv.SESSION_NAME)),
                "tags": {
                    key.removeprefix(f"{semconv.SESSION_TAG}."): plain(value)
                    for key, value in span.attributes.items()
                    if key.startswith(f"{semconv.SESSION_TAG}.")
                },
                "duration": span.seconds if span.timed else None,
            }
            for span in named[:1_000]
        ],
    }


def _request(number: int, request: Request, labels: list[str]) -> dict[str, Any]:
    row = plain(request_row(request)._asdict())
    start = row.pop("start_ns")
    begin = {"start_ns": str(start) if start else None}
    ids = {"trace_id": plain(request.span.trace_id), "span_id": plain(request.span.span_id)}
    return {"number": number, "kind": request.kind, "process": plain(labels[request.span.resource]), **begin, **row, **ids}


def _moment(nanoseconds: int) -> str | None:
    try:
        return datetime.fromtimestamp(nanoseconds / 1e9, timezone.utc).isoformat() if nanoseconds else None
    except (ValueError, OverflowError, OSError):
        return None


def plain_list(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each mapping with plain values."""
    return [plain(value) for value in values]


def plain_tree(value: Any) -> Any:
    """Nested mappings with plain values."""
    return {str(plain(key)): plain_tree(part) for key, part in value.items()} if isinstance(value, dict) else plain(value)
