"""Records of a request's detail as the values of finished spans: names, ids, times and attributes, for whichever writer sends them.

Times are those of the records: ``capture`` ends a request, a phase and a step no earlier than their children. A kernel keeps the times at
which the device ran it, which may lie behind the end of its request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from opentelemetry.trace import SpanContext

from inferspan import semconv
from inferspan.analysis.levels import step_name
from inferspan.export.ids import ids
from inferspan.guard import contain
from inferspan.records import AttributeValue, ModuleBatch, PassFlow, Phase, Record, RequestScope, Stage, Step
from inferspan.spans import attributes
from inferspan.spans.links import SpanLink, flow_links
from inferspan.spans.request import RequestSpan

__all__ = ["FinishedSpan", "finished_spans", "one_span"]


_new = tuple.__new__  # a third of the time that the class's own takes


class FinishedSpan(NamedTuple):
    """The values of one span under a request; its attributes belong to it alone."""

    name: str
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, AttributeValue]
    failure: str | None
    dropped: int = 0
    """Attributes that the span has lost to a limit of their number."""
    links: tuple[SpanLink, ...] = ()
    """Spans that it is linked to."""


def finished_spans(request: RequestSpan, record: Record) -> Iterator[FinishedSpan]:
    """The spans of a record: one of a phase, step or stage, one for each call and each operation or kernel of a forward pass."""
    if not isinstance(record, ModuleBatch):
        yield one_span(request, record)
        return
    above, offset = request.above(record), record.offset
    calls = list(record.calls.rows())
    limits, dropped = request.limits, 0
    new_id = ids().generate_span_id
    own = {call[0]: new_id() for call in (*calls, *record.profiled)}
    flow = None if record.flow is None else _Flow(request.context, record.flow, own, above)  # type: ignore[arg-type]
    for call in calls:
        number, parent, info, start, end, _, _, failure, _ = call
        found = attributes.of_call(record, call)
        links: tuple[SpanLink, ...] = ()
        if flow is not None:
            links, found = flow.of(number, found)
        if limits is not None:
            found, dropped = limits.apply(found)
        times = start + offset, end + offset
        yield _new(FinishedSpan, (info.span_name, own[number], own.get(parent, above), *times, found, failure, dropped, links))
    for profiled in record.profiled:
        start, end = profiled.start + offset, profiled.end + offset
        found = attributes.of_profiled(record, profiled)
        if limits is not None:
            found, dropped = limits.apply(found)
        yield FinishedSpan(profiled.name, own[profiled.number], own.get(profiled.parent, above), start, end, found, None, dropped)


class _Flow:
    """The links of the data flow of one pass.

    Args:
        context: of the request's span.
        flow: the data flow.
        own: span id of each call, by its number.
        above: span id of the pass.
    """

    def __init__(self, context: SpanContext, flow: PassFlow, own: Mapping[int, int], above: int) -> None:
        self._context, self._own, self._above = context, own, above
        self._links, self._left_out = flow_links(flow)

    def of(self, number: int, found: dict[str, AttributeValue]) -> tuple[tuple[SpanLink, ...], dict[str, AttributeValue]]:
        """The links of a call, and its attributes with how many it has too many."""
        trace_id, flags, state = self._context.trace_id, self._context.trace_flags, self._context.trace_state
        links = tuple(
            SpanLink(SpanContext(trace_id, self._own.get(linked, self._above), False, flags, state), described)
            for linked, described in self._links.get(number, ())
        )
        left_out = self._left_out.get(number)
        return links, found if left_out is None else {semconv.FLOW_LEFT_OUT: left_out, **found}


def linked_contexts(scopes: Sequence[RequestScope]) -> Iterator[SpanContext]:
    """Contexts of the spans of requests, of those that have one."""
    for scope in scopes:
        if isinstance(scope, RequestSpan) and scope.context.is_valid:
            yield scope.context


def one_span(request: RequestSpan, record: Phase | Step | Stage) -> FinishedSpan:
    """The span of a phase, step or stage."""
    if isinstance(record, Step):
        name, own, parent = step_name(record.phase.name), request.step_id(record.number), request.above_in(record.phase)
        found = attributes.of_step(record, request.device)
    elif isinstance(record, Stage):
        name, own = record.name, request.stage_id(record.number)
        parent = request.above_stage(record)
        found = attributes.of_stage(record)
    else:
        name, own, parent = record.key.name, request.above_in(record.key), request.context.span_id
        found = attributes.of_phase(record)
    dropped = 0
    whole = found
    if request.limits is not None:
        found, dropped = request.limits.apply(found)
    links = tuple(map(SpanLink, linked_contexts(record.links))) if isinstance(record, Step) and record.links else ()
    made = _new(FinishedSpan, (name, own, parent, record.start_ns, record.end_ns, found, record.failure, dropped, links))
    if request.figures is not None:
        with contain("summary"):
            request.figures.part(record, made if found is whole else made._replace(attributes=whole))
    return made
