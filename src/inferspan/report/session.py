"""A session file -> requests, metric series and resources, the input of the report and the terminal table.

In comes the path of a file of OTLP JSON lines, from inferspan or from a production collector. Out comes one ``Session``: our request
spans with their phases, steps and modules as trees, the metric series, the resources, and counts of what was left aside (third_party
spans, spans whose request is missing, bad lines). Only a file with nothing usable in it raises, as ``SessionFileError``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferspan import semconv
from inferspan.report.levels import BATCH, MODULE, PHASE, REQUEST, STEP, TOPS, level_of
from inferspan.report.metric_series import Series, SeriesTable
from inferspan.report.otlp_lines import (
    LineCounts,
    SessionFileError,
    Value,
    attributes_of,
    moment,
    objects,
    read_lines,
    text_of,
)
from inferspan.report.stream import LONGEST_LINE

__all__ = ["MODULE", "Link", "Request", "Session", "SessionFileError", "Span", "SpanEvent", "level_of", "read_session"]

_ERROR_CODES = (2, "2", "STATUS_CODE_ERROR")
_LONGEST_CHAIN = 32
ROOM = 2 * 1024**3
"""Estimated bytes of spans and log records that are kept; of spans with their modules some 700,000."""
_SPAN_SIZE = 1000
_MOST_RESOURCES = 5_000
"""Further ones are shown as one without attributes."""
_SIZE_OF_TEXT = 2
"""Bytes of memory for each byte of a line, on top of the objects themselves."""


@dataclass(slots=True)
class SpanEvent:
    """An event of a span, for example the exception that ended it."""

    name: str
    time_ns: int
    attributes: Mapping[str, Value]


@dataclass(slots=True)
class Link:
    """A link of a span to another one."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Value]


@dataclass(slots=True)
class Span:
    """One span of ours; times are nanoseconds since the Unix epoch, 0 if unknown, ``resource`` indexes ``Session.resources``."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    failed: bool
    status_message: str
    events: tuple[SpanEvent, ...]
    links: tuple[Link, ...]
    resource: int
    children: list[Span] = field(default_factory=list)

    @property
    def timed(self) -> bool:
        """Whether the duration is known: both times are, and they are in order."""
        return 0 < self.start_ns <= self.end_ns

    @property
    def seconds(self) -> float:
        """Duration in seconds, by the host's clock; 0 where it is not known."""
        return (self.end_ns - self.start_ns) / 1e9 if self.timed else 0.0

    @property
    def measured_seconds(self) -> float:
        """Device time in seconds where it was measured, else the duration by the host's clock."""
        value = self.attributes.get(semconv.DEVICE_TIME)
        return max(0.0, float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else self.seconds


@dataclass(slots=True)
class Request:
    """One ``generate()`` or one plain forward pass: its span, the tree below it and its callers."""

    span: Span
    callers: tuple[str, ...] = ()
    """Names of the enclosing spans, outermost first, as far as the file holds them."""

    @property
    def phases(self) -> list[Span]:
        """Phase spans in order of start."""
        return [child for child in self.span.children if level_of(child) == PHASE]

    @property
    def steps(self) -> list[Span]:
        """Step spans of all phases, in order of start."""
        return [step for phase in self.phases for step in phase.children if level_of(step) == STEP]

    @property
    def kind(self) -> str:
        """``forward`` for a plain call of the model or of a method of it, else ``generate``."""
        plain = self.span.name.split(" ", 1)[0] == semconv.SPAN_FORWARD or semconv.METHOD in self.span.attributes
        return "forward" if plain else "generate"

    @property
    def model(self) -> str | None:
        """Name of the model, if the request carries one."""
        return self.text(semconv.REQUEST_MODEL) or self.text(semconv.MODEL_NAME)

    def number(self, key: str) -> float | None:
        """A numeric attribute of the request span, ``None`` if it is absent."""
        value = self.span.attributes.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, key: str) -> str | None:
        """A text attribute of the request span, ``None`` if it is absent."""
        value = self.span.attributes.get(key)
        return value if isinstance(value, str) else None

    def flag(self, key: str) -> bool:
        """Whether a boolean attribute of the request span is true."""
        return self.span.attributes.get(key) is True

    def numbers(self, key: str) -> tuple[float, ...]:
        """A numeric array of the request span, empty if it is absent."""
        value = self.span.attributes.get(key)
        parts = value if isinstance(value, tuple) else ()
        return tuple(part for part in parts if isinstance(part, int | float) and not isinstance(part, bool))

    def texts(self, key: str) -> tuple[str, ...]:
        """A text array of the request span, empty if it is absent."""
        value = self.span.attributes.get(key)
        return tuple(part for part in value if isinstance(part, str)) if isinstance(value, tuple) else ()


@dataclass(slots=True)
class LeftOut:
    """Numbers of things in the file that could not be read, are more than fit into memory, or have no place in the report."""

    spans: int = 0
    logs: int = 0
    points: int = 0
    points_over: int = 0
    metrics: int = 0
    other_logs: int = 0

    @property
    def notes(self) -> list[str]:
        """One sentence for each kind."""
        told = (
            (self.spans, "Spans over the memory that is used for a session, left out:"),
            (self.logs, "Log records over the memory that is used for a session, left out:"),
            (self.points_over, "Data points of further metric series than a report can hold, left out:"),
            (self.points, "Data points of metrics that could not be read, left out:"),
            (self.metrics, "Metrics without data points of a known kind, left out:"),
            (self.other_logs, "Log records, which the report does not show:"),
        )
        return [f"{words} {number:,}." for number, words in told if number]


@dataclass(slots=True)
class Session:
    """Everything of a session file that the report shows."""

    path: Path
    requests: list[Request]
    batches: list[Span]
    series: list[Series]
    resources: list[Mapping[str, Value]]
    lines: LineCounts
    third_party_spans: int = 0
    orphan_spans: int = 0
    log_records: int = 0
    left_out: LeftOut = field(default_factory=lambda: LeftOut())

    @property
    def notes(self) -> list[str]:
        """One sentence for each thing that the reader of the session should know is missing or set aside."""
        found = []
        if self.lines.torn:
            found.append("The file is truncated: its last line is cut off (the process was killed, or is still writing) and was left out.")
        if self.lines.bad:
            found.append(f"Lines that are not OTLP JSON, left out: {self.lines.bad}; the first is line {self.lines.first_bad}.")
        if self.lines.too_long:
            size, first = LONGEST_LINE >> 20, self.lines.first_too_long
            found.append(f"Lines longer than {size} MiB, left out: {self.lines.too_long}; the first is line {first}.")
        if self.lines.given_up:
            found.append(f"The rest of the file was not read: {self.lines.given_up}.")
        if self.orphan_spans:
            found.append(
                "Spans whose request is not in the file (it is still running, was lost, or is in a rotated file), not shown:"
                f" {self.orphan_spans}."
            )
        if self.third_party_spans:
            found.append(f"Spans of other libraries, shown only as callers of requests: {self.third_party_spans}.")
        return [*found, *self.left_out.notes]


@dataclass(slots=True)
class _Reading:
    resources: list[Mapping[str, Value]] = field(default_factory=list)
    resource_numbers: dict[str, int] = field(default_factory=dict)
    known: dict[Value, Value] = field(default_factory=dict)
    spans: dict[tuple[str, str], Span] = field(default_factory=dict)
    third_party: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    content: dict[tuple[str, str], dict[str, Value]] = field(default_factory=dict)
    series: SeriesTable = field(default_factory=SeriesTable)
    log_records: int = 0
    room: int = ROOM
    left_out: LeftOut = field(default_factory=LeftOut)

    def resource(self, block: Mapping[str, Any]) -> int:
        holder = block.get("resource")
        attributes = attributes_of(holder, self.known) if isinstance(holder, dict) else {}
        key = json.dumps(attributes, sort_keys=True)
        if key not in self.resource_numbers and len(self.resources) >= _MOST_RESOURCES:
            key, attributes = "", {}
        number = self.resource_numbers.setdefault(key, len(self.resources))
        if number == len(self.resources):
            self.resources.append(attributes)
        return number


def read_session(path: str | Path, *, room: int = ROOM) -> Session:
    """Read a session file.

    Args:
        path: file of OTLP JSON lines, plain or gzipped; a pipe or a device as well.
        room: bytes of memory, estimated, that spans and log records may take; further ones are counted and left out.

    Raises:
        SessionFileError: the file is missing, unreadable, empty or not OTLP JSON lines.
    """
    path, counts, reading = Path(path), LineCounts(), _Reading(room=room)
    for line, size in read_lines(path, counts):
        if isinstance(line.get("resourceSpans"), list) or isinstance(line.get("resourceLogs"), list):
            reading.room -= _SIZE_OF_TEXT * size
        for block in objects(line, "resourceSpans"):
            _read_spans(block, reading)
        for block in objects(line, "resourceMetrics"):
            number = reading.resource(block)
            for scope in objects(block, "scopeMetrics", "instrumentationLibraryMetrics"):
                for metric in objects(scope, "metrics"):
                    reading.series.add(metric, number, reading.known)
        for block in objects(line, "resourceLogs"):
            _read_logs(block, reading)
    requests, batches, orphans = _grow(reading)
    left_out, table = reading.left_out, reading.series
    left_out.points, left_out.points_over, left_out.metrics = table.unreadable, table.over, table.unknown
    return Session(
        path=path,
        requests=requests,
        batches=batches,
        series=reading.series.sorted(),
        resources=reading.resources,
        lines=counts,
        third_party_spans=len(reading.third_party),
        orphan_spans=orphans,
        log_records=reading.log_records,
        left_out=left_out,
    )


def _read_spans(block: Mapping[str, Any], reading: _Reading) -> None:
    number = reading.resource(block)
    for holder in objects(block, "scopeSpans", "instrumentationLibrarySpans"):
        scope = holder.get("scope") or holder.get("instrumentationLibrary")
        ours = isinstance(scope, dict) and scope.get("name") == semconv.SCOPE
        for raw in objects(holder, "spans"):
            key = _ids(raw)
            parent = text_of(raw.get("parentSpanId")).lower()
            if not all(key):
                continue
            if reading.room <= 0:
                reading.left_out.spans += 1
                continue
            reading.room -= _SPAN_SIZE
            if ours and not (raw.get("name") in semconv.LOAD_SPANS and semconv.LOAD_KIND in attributes_of(raw, reading.known)):
                reading.spans[key] = _span(raw, key, parent, number, reading.known)
            else:
                reading.third_party[key] = (text_of(raw.get("name")), parent)


def _ids(raw: Mapping[str, Any]) -> tuple[str, str]:
    return text_of(raw.get("traceId")).lower(), text_of(raw.get("spanId")).lower()


def _span(raw: Mapping[str, Any], key: tuple[str, str], parent: str, resource: int, known: dict[Value, Value]) -> Span:
    status = raw.get("status")
    status = status if isinstance(status, dict) else {}
    name = text_of(raw.get("name"))
    return Span(
        trace_id=str(known.setdefault(key[0], key[0])),
        span_id=key[1],
        parent_id=parent,
        name=str(known.setdefault(name, name)),
        start_ns=moment(raw.get("startTimeUnixNano")),
        end_ns=moment(raw.get("endTimeUnixNano")),
        attributes=attributes_of(raw, known),
        failed=status.get("code") in _ERROR_CODES,
        status_message=text_of(status.get("message")),
        events=tuple(
            SpanEvent(text_of(event.get("name")), moment(event.get("timeUnixNano")), attributes_of(event, known))
            for event in objects(raw, "events")
        ),
        links=tuple(Link(*_ids(link), attributes_of(link, known)) for link in objects(raw, "links")),
        resource=resource,
    )


def _read_logs(block: Mapping[str, Any], reading: _Reading) -> None:
    for scope in objects(block, "scopeLogs", "instrumentationLibraryLogs"):
        for record in objects(scope, "logRecords"):
            reading.log_records += 1
            if reading.room <= 0:
                reading.left_out.logs += 1
                continue
            attributes = attributes_of(record, reading.known)
            name = record.get("eventName") or attributes.get("event.name")
            if name == semconv.CONTENT_EVENT:
                messages = (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES)
                reading.content[_ids(record)] = {message: attributes[message] for message in messages if message in attributes}
            else:
                reading.left_out.other_logs += 1


def _grow(reading: _Reading) -> tuple[list[Request], list[Span], int]:
    """Hang every span under its parent; requests come out by start time, then batches, and the number of spans that found neither."""
    requests, tops, reached = [], [], 0
    for span in reading.spans.values():
        parent = reading.spans.get((span.trace_id, span.parent_id))
        if parent is not None and parent is not span:
            parent.children.append(span)
        level = level_of(span)
        if level in TOPS:
            tops.append(span)
        if level == REQUEST:
            # Content that came as a log event is shown like content on the span.
            span.attributes = {**reading.content.get((span.trace_id, span.span_id), {}), **span.attributes}
            requests.append(Request(span, _callers(span, reading)))
    for span in reading.spans.values():
        span.children.sort(key=lambda child: (child.start_ns, child.end_ns))
    requests.sort(key=lambda request: request.span.start_ns)
    for span in tops:
        reached += 1 + _count_below(span.children)
    return requests, [span for span in tops if level_of(span) == BATCH], len(reading.spans) - reached


def _count_below(spans: Iterable[Span]) -> int:
    """Spans of a tree without requests and stages of the program, which count for themselves; deep trees need no recursion."""
    waiting, total = [span for span in spans if level_of(span) not in TOPS], 0
    while waiting:
        span = waiting.pop()
        total += 1
        waiting.extend(child for child in span.children if level_of(child) not in TOPS)
    return total


def _callers(span: Span, reading: _Reading) -> tuple[str, ...]:
    names: list[str] = []
    parent_id = span.parent_id
    while parent_id and len(names) < _LONGEST_CHAIN:
        key = (span.trace_id, parent_id)
        if key in reading.third_party:
            name, parent_id = reading.third_party[key]
        elif key in reading.spans:
            name, parent_id = reading.spans[key].name, reading.spans[key].parent_id
        else:
            break
        names.append(name)
    return tuple(reversed(names))
