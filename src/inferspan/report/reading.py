"""Decoded lines of session files -> spans, content, series and resources, as far as there is memory for them.

``Reading`` takes the blocks of the lines, file after file. Every span is counted in its ``Tally``; it is kept as a ``Span`` while there is
room. Malformed things are left aside.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inferspan import semconv
from inferspan.analysis.levels import FIGURES, MODULE, PROFILED, STEP, level_of
from inferspan.report.metric_series import MOST_POINTS, SeriesTable
from inferspan.report.otlp_lines import Value, attributes_of, moment, objects, text_of
from inferspan.report.spans import Caller, Link, Span, SpanEvent
from inferspan.report.tally import Tally

__all__ = ["LeftOut", "Reading"]

_ERROR_CODES = (2, "2", "STATUS_CODE_ERROR")
_SPAN_SIZE = 1000
_MOST_RESOURCES = 5_000
"""Further ones are shown as one without attributes."""
_DETAIL = (STEP, MODULE, PROFILED)
_INSTANCE = "service.instance.id"


@dataclass(slots=True)
class LeftOut:
    """Numbers of things in the file that could not be read, are more than fit into memory, or have no place in the report."""

    spans: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    """Those spans by level; steps by name."""
    callers: int = 0
    logs: int = 0
    points: int = 0
    points_over: int = 0
    joined: tuple[int, int] = (0, 0)
    """Points of metrics that were joined with a neighbour, and the number of their series."""
    metrics: int = 0
    other_logs: int = 0

    @property
    def notes(self) -> list[str]:
        """One sentence for each kind."""
        told = (
            (self.spans, "Spans over the memory that is used for a session, counted in the figures and not shown one by one:"),
            (self.callers, "Spans of other libraries over that memory, left out:"),
            (self.logs, "Log records over the memory that is used for a session, left out:"),
            (self.points_over, "Data points of further metric series than a report can hold, left out:"),
            (self.points, "Data points of metrics that could not be read, left out:"),
            (self.metrics, "Metrics without data points of a known kind, left out:"),
            (self.other_logs, "Log records, which the report does not show:"),
        )
        notes = [f"{words} {number:,}." for number, words in told if number]
        if self.joined[0]:
            notes.append(
                f"Data points joined with a neighbour, as lowest, highest and mean: {self.joined[0]:,} of {self.joined[1]:,} metric series."
            )
        return notes


class Reading:
    """What has been read so far.

    Args:
        room: estimated bytes that spans and log records may take.
        between: nanoseconds since the epoch; spans that started earlier or later are passed over.
        points: of a metric series, beyond which neighbours are joined.
        trace: id of the only trace whose spans are taken; default: all.
    """

    def __init__(
        self, room: int, between: tuple[int, int] | None = None, points: int = MOST_POINTS, trace: str | None = None
    ) -> None:
        self.room = room
        self._between = between
        self._trace = trace
        self._reserve = -room
        self.text = 0
        """Memory of the texts of the line at hand, for each record in it."""
        self._file = 0
        self.resources: list[Mapping[str, Value]] = []
        self._resource_numbers: dict[str, int] = {}
        self.known: dict[Value, Value] = {}
        self.spans: dict[tuple[str, str], Span] = {}
        self.third_party: dict[tuple[str, str], Caller] = {}
        self.content: dict[tuple[str, str], dict[str, Value]] = {}
        self.exceptions: dict[tuple[str, str], SpanEvent] = {}
        self.attention: dict[tuple[str, str], list[dict[str, Value]]] = {}
        self.systems: dict[int, Mapping[str, Value]] = {}
        self.events: list[Span] = []
        self.series = SeriesTable(points)
        self.tally = Tally()
        self.incomplete: set[int] = set()
        self.log_records = 0
        self.left_out = LeftOut()

    def begin_file(self, number: int) -> None:
        """What follows is of this file."""
        self._file = number

    def resource(self, block: Mapping[str, Any]) -> int:
        """The number of the resource of a block; equal ones of a file are one, and of several files if they name their instance."""
        holder = block.get("resource")
        attributes = attributes_of(holder, self.known) if isinstance(holder, dict) else {}
        key = json.dumps([0 if _INSTANCE in attributes else self._file, attributes], sort_keys=True)
        if key not in self._resource_numbers and len(self.resources) >= _MOST_RESOURCES:
            key, attributes = "", {}
        number = self._resource_numbers.setdefault(key, len(self.resources))
        if number == len(self.resources):
            self.resources.append(attributes)
        return number

    def add_spans(self, block: Mapping[str, Any]) -> None:
        """Take in one OTLP ``resourceSpans`` object."""
        number = self.resource(block)
        for holder in objects(block, "scopeSpans", "instrumentationLibrarySpans"):
            scope = holder.get("scope") or holder.get("instrumentationLibrary")
            ours = isinstance(scope, dict) and scope.get("name") == semconv.SCOPE
            for raw in objects(holder, "spans"):
                key = _ids(raw)
                if not all(key) or not self._wanted(raw) or self._trace not in (None, key[0]):
                    continue
                if ours:
                    self._add_span(raw, key, number)
                elif self._take(_SPAN_SIZE // 3):
                    parent = text_of(raw.get("parentSpanId")).lower()
                    times = moment(raw.get("startTimeUnixNano")), moment(raw.get("endTimeUnixNano"))
                    self.third_party[key] = Caller(text_of(raw.get("name")), parent, *times, number)
                else:
                    self.left_out.callers += 1

    def _wanted(self, raw: Mapping[str, Any]) -> bool:
        if self._between is None:
            return True
        first, last = self._between
        return first <= moment(raw.get("startTimeUnixNano")) <= last

    def _add_span(self, raw: Mapping[str, Any], key: tuple[str, str], resource: int) -> None:
        if self.tally.seen(*key):
            return
        # Of spans for which there is no room, only what the figures need is decoded.
        partly = self.room <= 0
        span = _span(raw, key, resource, self.known, FIGURES if partly else None)
        level = level_of(span)
        if partly and level not in _DETAIL:
            span = _span(raw, key, resource, self.known)
        self.tally.add(span, level)
        if self._take(_SPAN_SIZE, reserve=level not in _DETAIL):
            self.spans[key] = span
        else:
            self.leave_out(span, level)

    def leave_out(self, span: Span, level: str) -> None:
        """Count a span that is not kept."""
        self.left_out.spans += 1
        self.left_out.by_kind[span.name if level == STEP else level] += 1
        self.incomplete.add(hash((span.trace_id, span.parent_id)))

    def _take(self, size: int, *, reserve: bool = False) -> bool:
        """Whether there is memory for something; charges it."""
        if self.room <= (self._reserve if reserve else 0):
            return False
        self.room -= size + self.text
        return True

    def add_logs(self, block: Mapping[str, Any]) -> None:
        """Take in one OTLP ``resourceLogs`` object."""
        for scope in objects(block, "scopeLogs", "instrumentationLibraryLogs"):
            described = scope.get("scope")
            ours = isinstance(described, dict) and described.get("name") == semconv.SCOPE
            for record in objects(scope, "logRecords"):
                name = record.get("eventName")
                if name == semconv.SYSTEM_EVENT:
                    self.systems[self.resource(block)] = attributes_of(record, self.known)
                    continue
                self.log_records += 1
                if not self._take(0):
                    self.left_out.logs += 1
                    continue
                attributes = attributes_of(record, self.known)
                kind = name or attributes.get("event.name")
                if kind == semconv.CONTENT_EVENT:
                    self.content[_ids(record)] = {key: attributes[key] for key in semconv.MESSAGES if key in attributes}
                elif kind == semconv.INFERENCE_EXCEPTION_EVENT:
                    logged = SpanEvent(semconv.EXCEPTION_EVENT, moment(record.get("timeUnixNano")), attributes)
                    self.exceptions[_ids(record)] = logged
                elif kind == semconv.ATTENTION_MAP_EVENT:
                    self.attention.setdefault(_ids(record), []).append(attributes)
                elif ours and isinstance(name, str) and name and name not in _KNOWN_EVENTS:
                    if self._take(_SPAN_SIZE):
                        event = _moment(record, name, attributes, self.resource(block))
                        self.events.append(event)
                        self.tally.covers(event.start_ns, event.end_ns)
                    else:
                        self.left_out.logs += 1
                elif kind != semconv.EVALUATION_EVENT:  # those stand on the request, too
                    self.left_out.other_logs += 1


_KNOWN_EVENTS = frozenset(event.name for event in semconv.EVENTS)


def _moment(record: Mapping[str, Any], name: str, attributes: Mapping[str, Value], resource: int) -> Span:
    """An event of the program that stands alone, as a span without duration."""
    time, (trace_id, span_id) = moment(record.get("timeUnixNano")), _ids(record)
    return Span(trace_id, "", span_id, name, time, time, attributes, False, "", (), (), resource)


def _ids(raw: Mapping[str, Any]) -> tuple[str, str]:
    return text_of(raw.get("traceId")).lower(), text_of(raw.get("spanId")).lower()


def _span(
    raw: Mapping[str, Any], key: tuple[str, str], resource: int, known: dict[Value, Value], only: frozenset[str] | None = None
) -> Span:
    status = raw.get("status")
    status = status if isinstance(status, dict) else {}
    name = text_of(raw.get("name"))
    return Span(
        trace_id=str(known.setdefault(key[0], key[0])),
        span_id=key[1],
        parent_id=text_of(raw.get("parentSpanId")).lower(),
        name=str(known.setdefault(name, name)),
        start_ns=moment(raw.get("startTimeUnixNano")),
        end_ns=moment(raw.get("endTimeUnixNano")),
        attributes=attributes_of(raw, known, only),
        failed=status.get("code") in _ERROR_CODES,
        status_message=text_of(status.get("message")),
        events=tuple(
            SpanEvent(text_of(event.get("name")), moment(event.get("timeUnixNano")), attributes_of(event, known))
            for event in objects(raw, "events")
        ),
        links=tuple(Link(*_ids(link), attributes_of(link, known)) for link in objects(raw, "links")),
        resource=resource,
    )
