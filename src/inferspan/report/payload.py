"""A session -> the JSON that the report's page draws: compact, bounded, plain values only.

In comes a ``Session``; out comes one mapping. Times inside a request are microseconds since its start. Module calls refer to a table of
attributes that all calls of a module share. Over ``DETAIL_BUDGET`` spans the detail of later requests is left out, with a note.
Values keep what the file holds: integers that a double of the page's script cannot hold are text of their digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from inferspan import semconv
from inferspan.analysis.levels import MODULE, PROFILED, level_of
from inferspan.report.breakdown import breakdowns
from inferspan.report.figures.analysis import analysis_of_request
from inferspan.report.figures.document import figures
from inferspan.report.figures.inside import MOST_REQUESTS, attention_of_request
from inferspan.report.metric_series import Series
from inferspan.report.overview import request_row, totals
from inferspan.report.plain import plain, rounded, unknown_as_none
from inferspan.report.session import Request, Session, Span
from inferspan.report.terminal import MEANINGS
from inferspan.report.tokens import Token, token_fields, tokens_of
from inferspan.text.numbers import counted

__all__ = ["DETAIL_BUDGET", "payload"]

DETAIL_BUDGET = 40_000
"""Step and module spans that one page holds; a browser stays quick with that, and the file stays under some megabytes."""
_MOST_TOKENS = 4_096
_MOST_SERIES = 5_000
_MOST_EVENTS = 100
_MOST_BARS = 4_000
_MOST_MOMENTS = 1_000
_INSIDE = (MODULE, PROFILED)
_STATIC_KEYS = (
    semconv.PROFILER_KIND,
    semconv.MODULE_NAME, semconv.MODULE_TYPE, semconv.MODULE_LAYER_INDEX, semconv.INPUT_SHAPES, semconv.OUTPUT_SHAPES,
    semconv.INPUT_DTYPES, semconv.OUTPUT_DTYPES, semconv.DEVICE, semconv.PHASE,
)  # fmt: skip
_REPEATED_KEYS = (semconv.STEP_INDEX,)
_ARRAYS_SHOWN_AS_TOKENS = (semconv.TOKEN_LOGPROBS, semconv.TOKEN_ENTROPIES, semconv.TOKEN_INTERVALS, semconv.TOKEN_IDS)
_MESSAGES = (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES)
_BRIEFS = {attribute.key: attribute.brief for attribute in semconv.ATTRIBUTES}


@dataclass(slots=True)
class _Page:
    budget: int
    module_numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    modules: list[dict[str, Any]] = field(default_factory=list)

    def module_number(self, span: Span) -> int:
        static = {key: span.attributes[key] for key in _STATIC_KEYS if key in span.attributes}
        key = (span.name, *((name, repr(value)) for name, value in static.items()))
        number = self.module_numbers.setdefault(key, len(self.modules))
        if number == len(self.modules):
            self.modules.append({"name": span.name, "attributes": plain(static)})
        return number


def payload(session: Session, *, budget: int = DETAIL_BUDGET) -> dict[str, Any]:
    """Everything that the page shows.

    Args:
        session: result of ``read_session``.
        budget: step and module spans to keep; requests past it come without detail.
    """
    page = _Page(budget)
    shown = session.requests[-MOST_REQUESTS:]
    rows = [request_row(request) for request in session.requests]
    first = len(session.requests) - len(shown) + 1
    requests = [_request(request, session, page) | {"number": number} for number, request in enumerate(shown, first)]
    notes = list(session.notes)
    if len(shown) < len(session.requests):
        left = counted(len(session.requests) - len(shown), "earlier request is", "earlier requests are")
        notes.append(f"{left} counted in the summary but not listed.")
    if len(session.series) > _MOST_SERIES:
        notes.append(f"Metric series over the {_MOST_SERIES:,} that a page shows, left out: {len(session.series) - _MOST_SERIES:,}.")
    shared = figures(session)
    del shared["events"]
    return {
        **shared,
        "file": session.name,
        "notes": notes,
        "totals": plain(totals(rows)._asdict()),
        "requests": requests,
        "bars": _bars(session),
        "moments": _moments(session),
        "modules": page.modules,
        "tokenFields": token_fields(),
        "series": [_series(series) for series in session.series[:_MOST_SERIES]],
        "resources": [plain(resource) for resource in session.resources],
        "briefs": _BRIEFS,
        "meanings": MEANINGS,
    }


def _request(request: Request, session: Session, page: _Page) -> dict[str, Any]:
    span = request.span
    tokens = tokens_of(request)
    attention = attention_of_request(request, session, tokens)
    exception = next((event.attributes for event in span.events if event.name == "exception"), {})
    others = [event for event in span.events if event.attributes is not exception]
    hidden = (*_ARRAYS_SHOWN_AS_TOKENS, *_MESSAGES, semconv.ATTENTION_PROMPT)
    return {
        "row": plain(request_row(request)._asdict()) | {"start_ns": str(span.start_ns)},
        "kind": request.kind,
        "startMs": span.start_ns / 1e6 or None,
        "us": _length(span),
        "trace": plain(span.trace_id),
        "span": plain(span.span_id),
        "resource": span.resource,
        "callers": plain(request.callers),
        "message": plain(span.status_message),
        "exception": plain(exception),
        "events": [[event.name, _since(event.time_ns, span), plain(event.attributes)] for event in others[:_MOST_EVENTS]],
        "eventsInFile": len(others),
        "links": [[link.trace_id, link.span_id, plain(link.attributes)] for link in span.links[:_MOST_EVENTS]],
        "attributes": plain({key: value for key, value in span.attributes.items() if key not in hidden}),
        "messages": plain({key: span.attributes[key] for key in _MESSAGES if key in span.attributes}),
        "phases": _phases(request, page),
        "calls": _module_calls(span, span.start_ns, page),
        "detailLeftOut": session.is_incomplete(request) or (page.budget <= 0 and bool(span.children)),
        "tokens": [[_token(token) for token in row[:_MOST_TOKENS]] for row in tokens.rows],
        "tokenReasons": tokens.reasons,
        "breakdowns": [
            plain(part._asdict()) | {"parts": [plain(piece._asdict()) for piece in part.parts]} for part in breakdowns(request)
        ],
        "analysis": analysis_of_request(request),
        "attention": attention,
        "unobserved": request.text(semconv.UNOBSERVED),
    }


def _bars(session: Session) -> list[list[Any]]:
    """What ran around requests: [kind, name, resource, start in milliseconds since the epoch, microseconds, failed]."""
    spans = [
        *(("session" if semconv.STAGE_NAME not in span.attributes else "stage", span) for span in session.stages),
        *(("load", span) for span in session.loads),
        *(("batch", span) for span in session.batches),
    ]
    bars = [[kind, plain(span.name), span.resource, span.start_ns / 1e6 or None, _length(span), span.failed] for kind, span in spans]
    for caller in session.callers.values():
        length = _micros(caller.end_ns - caller.start_ns) if 0 < caller.start_ns <= caller.end_ns else None
        bars.append(["caller", plain(caller.name), caller.resource, caller.start_ns / 1e6 or None, length, False])
    # The longest ones, if there are too many.
    return sorted(bars, key=lambda bar: -(bar[4] or 0.0))[:_MOST_BARS]


def _moments(session: Session) -> list[list[Any]]:
    """Events outside of requests: [name, place, resource, milliseconds since the epoch, attributes]; without a place if alone."""
    found: list[tuple[int, str, str, int, Any]] = []
    found += [(span.start_ns, span.name, "", span.resource, span.attributes) for span in session.events]
    for span in (*session.stages, *session.loads):
        found += [(event.time_ns, event.name, span.name, span.resource, event.attributes) for event in span.events]
    found.sort(key=lambda one: one[0])
    return [
        [plain(name), plain(place), resource, time / 1e6 or None, plain(attributes)]
        for time, name, place, resource, attributes in found[:_MOST_MOMENTS]
    ]


def _phases(request: Request, page: _Page) -> list[dict[str, Any]]:
    start = request.span.start_ns
    found = []
    for phase in request.phases:
        steps = []
        for child in phase.children:
            if page.budget <= 0:
                break
            page.budget -= 1
            steps.append(_bar(child, start, page) | {"calls": _module_calls(child, start, page)})
        found.append(_bar(phase, start, page) | {"steps": steps, "stepsInFile": len(phase.children)})
    return found


def _bar(span: Span, start: int, page: _Page) -> dict[str, Any]:
    return {
        "name": span.name,
        "at": _at(span, start),
        "us": _length(span),
        "failed": span.failed,
        "attributes": rounded(span.attributes),
    }


def _module_calls(span: Span, start: int, page: _Page) -> list[list[Any]]:
    """Module calls below a step, depth first: [module, depth, at, us, failed, attributes that differ between calls]."""
    calls: list[list[Any]] = []
    waiting = [(child, 0) for child in reversed(span.children) if level_of(child) in _INSIDE]
    while waiting and page.budget > 0:
        module, depth = waiting.pop()
        page.budget -= 1
        own = rounded({key: value for key, value in module.attributes.items() if key not in _STATIC_KEYS and key not in _REPEATED_KEYS})
        at, length = _at(module, start), _length(module)
        calls.append([page.module_number(module), depth, at, length, int(module.failed), own or 0])
        waiting.extend((child, depth + 1) for child in reversed(module.children) if level_of(child) in _INSIDE)
    return calls


def _token(token: Token) -> list[Any]:
    values = [rounded(getattr(token, name)) for name in token_fields()]
    while values and values[-1] in (None, []):
        values.pop()
    return values


def _series(series: Series) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": series.name,
        "kind": series.kind,
        "unit": series.unit,
        "description": series.description or getattr(semconv.METRICS.get(series.name), "brief", ""),
        "attributes": plain(series.attributes),
        "resource": series.resource,
    }
    if series.histogram is not None:
        histogram = series.histogram
        found["histogram"] = {
            "bounds": histogram.bounds,
            "counts": plain(histogram.counts),
            "count": plain(histogram.count),
            "sum": unknown_as_none(histogram.sum),
            "p50": unknown_as_none(histogram.quantile(0.5)),
            "p95": unknown_as_none(histogram.quantile(0.95)),
        }
    else:
        found["points"] = [
            (round(point[0] / 1e6) if point[0] else None, *map(rounded, point[1:4])) for point in series.points
        ]
    return found


def _length(span: Span) -> float | None:
    return _micros(span.end_ns - span.start_ns) if span.timed else None


def _at(span: Span, start: int) -> float:
    """Microseconds from the start of a request to that of a span; 0 where one of them is not known."""
    return _micros(span.start_ns - start) if start and span.start_ns else 0.0


def _since(time: int, span: Span) -> float | None:
    return _micros(time - span.start_ns) if time and span.start_ns else None


def _micros(nanoseconds: int) -> float:
    return round(nanoseconds / 1e3, 1)
