"""Session files -> requests, metric series and resources, the input of the report and the terminal table.

In come the paths of files of OTLP JSON lines, from inferspan or from a production collector. Out comes one ``Session``: our request
spans with their phases, steps and modules as trees, the metric series, the resources, figures over all spans, and counts of what was left
aside (third_party spans, spans whose request is missing, bad lines). Only files with nothing usable raise, as ``SessionFileError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from inferspan.analysis.levels import BATCH, LOAD, MODULE, REQUEST, TOPS, USER_STAGE, level_of
from inferspan.report.metric_series import MOST_POINTS, Series
from inferspan.report.otlp_lines import LineCounts, SessionFileError, Value, objects, read_lines
from inferspan.report.reading import LeftOut, Reading
from inferspan.report.spans import Caller, Link, Request, Span, SpanEvent
from inferspan.report.stream import LONGEST_LINE
from inferspan.report.tally import Tally

__all__ = [
    "MODULE", "ROOM", "FileRead", "Link", "Request", "Session", "SessionFileError", "Span", "SpanEvent", "level_of", "read_session",
    "read_sessions",
]  # fmt: skip

_LONGEST_CHAIN = 32
ROOM = 400 * 1024**2
"""Estimated bytes of spans and log records that are kept whole; of spans with their modules some 200,000."""
_SIZE_OF_TEXT = 2
"""Bytes of memory for each byte of a line, on top of the objects themselves."""


class FileRead(NamedTuple):
    """One file of a session: how its lines went, and why it gave nothing, if so."""

    path: Path
    lines: LineCounts
    refused: str | None = None

    @property
    def notes(self) -> list[str]:
        """One sentence for each thing that is wrong with the file."""
        lines, found = self.lines, []
        if self.refused is not None:
            return [f"The file was left out: {self.refused}"]
        if lines.torn:
            found.append("The file is truncated: its last line is cut off (the process was killed, or is still writing) and was left out.")
        if lines.bad:
            found.append(f"Lines that are not OTLP JSON, left out: {lines.bad}; the first is line {lines.first_bad}.")
        if lines.too_long:
            size, first = LONGEST_LINE >> 20, lines.first_too_long
            found.append(f"Lines longer than {size} MiB, left out: {lines.too_long}; the first is line {first}.")
        if lines.given_up:
            found.append(f"The rest of the file was not read: {lines.given_up}.")
        return found


@dataclass(slots=True)
class Session:
    """Everything of session files that the report shows.

    Attributes:
        files: the files, as they were given.
        requests, batches, stages, loads: spans that count for themselves, by start; stages are those of the program, sessions among them.
        callers: spans of other libraries by trace and span id.
        series: of metrics.
        resources: attributes of each process.
        systems: facts of the machine and settings, by resource.
        events: of the program, those that stand on no span of ours.
        attention: records of attention weights, by trace and span id of their request.
        tally: figures over all spans, also over those that are not kept.
        incomplete: ids of spans of which something inside was not kept.
    """

    files: Sequence[FileRead]
    requests: list[Request]
    batches: list[Span]
    stages: list[Span]
    loads: list[Span]
    callers: Mapping[tuple[str, str], Caller]
    series: list[Series]
    resources: list[Mapping[str, Value]]
    systems: Mapping[int, Mapping[str, Value]]
    tally: Tally
    incomplete: frozenset[int] = frozenset()
    events: Sequence[Span] = ()
    attention: Mapping[tuple[str, str], Sequence[Mapping[str, Value]]] = field(default_factory=dict)
    orphan_spans: int = 0
    log_records: int = 0
    left_out: LeftOut = field(default_factory=lambda: LeftOut())

    @property
    def path(self) -> Path:
        """The first file."""
        return self.files[0].path

    @property
    def name(self) -> str:
        """The name of the file, or of the first one and the number of the others."""
        return self.path.name + (f" and {len(self.files) - 1} more" if len(self.files) > 1 else "")

    @property
    def lines(self) -> LineCounts:
        """How the lines of the first file went."""
        return self.files[0].lines

    @property
    def third_party_spans(self) -> int:
        """Number of spans of other libraries."""
        return len(self.callers)

    def is_incomplete(self, request: Request) -> bool:
        """Whether something inside a request was not kept."""
        spans = (request.span, *request.phases, *request.steps) if self.incomplete else ()
        return any(hash((span.trace_id, span.span_id)) in self.incomplete for span in spans)

    @property
    def notes(self) -> list[str]:
        """One sentence for each thing that the reader of the session should know is missing or set aside."""
        several = len(self.files) > 1
        found = [f"{file.path.name}: {note}" if several else note for file in self.files for note in file.notes]
        if self.orphan_spans:
            found.append(
                "Spans whose request is not in the file (it is still running, was lost, or is in a rotated file), not shown:"
                f" {self.orphan_spans}."
            )
        if self.third_party_spans:
            found.append(f"Spans of other libraries, shown only as callers of requests: {self.third_party_spans}.")
        if self.tally.repeated:
            found.append(f"Spans that were in the files more than once, counted once: {self.tally.repeated}.")
        if self.tally.forgotten:
            found.append(f"Spans over the number whose own time can be told, counted with the time inside them: {self.tally.forgotten:,}.")
        return [*found, *self.left_out.notes]


def read_session(path: str | Path, *, room: int = ROOM) -> Session:
    """Read a session file; see ``read_sessions``."""
    return read_sessions([path], room=room)


def read_sessions(
    paths: Sequence[str | Path],
    *,
    room: int = ROOM,
    between: tuple[int, int] | None = None,
    points: int = MOST_POINTS,
    trace: str | None = None,
) -> Session:
    """Read session files of one or several processes as one session; a span that is in several of them counts once.

    Args:
        paths: files of OTLP JSON lines, plain or gzipped; pipes or devices as well.
        room: bytes of memory, estimated, that spans and log records may take. Further steps and modules are counted in the figures and
            not kept; of requests, stages and phases as much again is kept.
        between: nanoseconds since the epoch; spans that started earlier or later are passed over. Default: all spans.
        points: of a metric series; beyond it neighbouring ones are joined.
        trace: id of the only trace whose spans are read, 32 hexadecimal digits; metrics and events of the program are read all the same.

    Raises:
        SessionFileError: each file is missing, unreadable, empty or not OTLP JSON lines; the message is that of the first.
    """
    reading, files = Reading(room, between, points, trace), []
    first_error: SessionFileError | None = None
    for number, path in enumerate(map(Path, paths)):
        counts, refused = LineCounts(), None
        try:
            _read_file(path, number, counts, reading)
        except SessionFileError as error:
            refused, first_error = str(error), first_error or error
        files.append(FileRead(path, counts, refused))
    if first_error is not None and all(file.refused for file in files):
        raise first_error
    return _session(files, reading)


def _read_file(path: Path, number: int, counts: LineCounts, reading: Reading) -> None:
    reading.begin_file(number)
    for line, size in read_lines(path, counts):
        reading.text = _SIZE_OF_TEXT * size // max(1, _records(line))
        for block in objects(line, "resourceSpans"):
            reading.add_spans(block)
        for block in objects(line, "resourceMetrics"):
            resource = reading.resource(block)
            for scope in objects(block, "scopeMetrics", "instrumentationLibraryMetrics"):
                for metric in objects(scope, "metrics"):
                    reading.series.add(metric, resource, reading.known)
        for block in objects(line, "resourceLogs"):
            reading.add_logs(block)


def _records(line: Mapping[str, Any]) -> int:
    """Number of spans and log records of a line."""
    return sum(
        len(scope[records])
        for blocks, scopes, records in (("resourceSpans", "scopeSpans", "spans"), ("resourceLogs", "scopeLogs", "logRecords"))
        for block in objects(line, blocks)
        for scope in objects(block, scopes)
        if isinstance(scope.get(records), list)
    )


def _session(files: Sequence[FileRead], reading: Reading) -> Session:
    tops, orphans = _grow(reading)
    left_out, table = reading.left_out, reading.series
    left_out.points, left_out.points_over, left_out.metrics = table.unreadable, table.over, table.unknown
    left_out.joined = table.joined()
    return Session(
        files=files,
        requests=[Request(span, _callers(span, reading)) for span in tops[REQUEST]],
        batches=tops[BATCH],
        stages=tops[USER_STAGE],
        loads=tops[LOAD],
        callers=reading.third_party,
        series=reading.series.sorted(),
        resources=reading.resources,
        systems=reading.systems,
        events=reading.events,
        attention=reading.attention,
        tally=reading.tally,
        incomplete=frozenset(reading.incomplete),
        orphan_spans=orphans,
        log_records=reading.log_records,
        left_out=left_out,
    )


def _grow(reading: Reading) -> tuple[dict[str, list[Span]], int]:
    """Hang every span under its parent; out come the tops by level and start, and the number of spans that are below none."""
    tops: dict[str, list[Span]] = {level: [] for level in TOPS}
    circles: dict[int, bool] = {}
    for span in reading.spans.values():
        level = level_of(span)
        parent = reading.spans.get((span.trace_id, span.parent_id))
        # A circle is reached from outside through a request or stage in it alone; one that is not reached does no harm.
        if parent is not None and not (level in tops and _in_circle(span, reading, circles)) and parent is not span:
            parent.children.append(span)
        if level in tops:
            tops[level].append(span)
        if level == REQUEST:
            # What came as a log event is shown like what is on the span.
            key = (span.trace_id, span.span_id)
            span.attributes = {**reading.content.get(key, {}), **span.attributes}
            logged = reading.exceptions.get(key)
            if logged is not None and all(event.name != logged.name for event in span.events):
                span.events = (*span.events, logged)
    for span in reading.spans.values():
        if len(span.children) > 1:
            span.children.sort(key=lambda child: (child.start_ns, child.end_ns))
    reached = 0
    for found in tops.values():
        found.sort(key=lambda span: span.start_ns)
        reached += sum(1 + _count_below(span.children) for span in found)
    if reading.left_out.spans and reached < len(reading.spans):
        # These are no orphans: they are below spans that were not kept.
        _leave_out_loose(tops, reading)
        return tops, 0
    return tops, len(reading.spans) - reached


def _in_circle(span: Span, reading: Reading, known: dict[int, bool]) -> bool:
    """Whether a span is below itself; ``known`` has the answers so far by identity, so that each span is looked at once."""
    places: dict[int, int] = {}
    way: list[int] = []
    above: Span | None = span
    while above is not None and id(above) not in known and id(above) not in places:
        places[id(above)] = len(way)
        way.append(id(above))
        above = reading.spans.get((above.trace_id, above.parent_id))
    begin = places.get(id(above), len(way)) if above is not None else len(way)
    known.update({one: place >= begin for place, one in enumerate(way)})
    return known[id(span)]


def _leave_out_loose(tops: Mapping[str, list[Span]], reading: Reading) -> None:
    """Count spans that are kept and hang below none of ``tops`` as left out, too."""
    waiting = [span for found in tops.values() for span in found]
    reached: set[int] = set()
    while waiting:
        span = waiting.pop()
        reached.add(id(span))
        waiting.extend(child for child in span.children if level_of(child) not in TOPS)
    for span in reading.spans.values():
        if id(span) not in reached:
            reading.leave_out(span, level_of(span))


def _count_below(spans: Iterable[Span]) -> int:
    """Spans of a tree without requests and stages of the program, which count for themselves; deep trees need no recursion."""
    waiting, total = [span for span in spans if level_of(span) not in TOPS], 0
    while waiting:
        span = waiting.pop()
        total += 1
        waiting.extend(child for child in span.children if level_of(child) not in TOPS)
    return total


def _callers(span: Span, reading: Reading) -> tuple[str, ...]:
    names: list[str] = []
    parent_id = span.parent_id
    while parent_id and len(names) < _LONGEST_CHAIN:
        key = (span.trace_id, parent_id)
        found: Caller | Span | None = reading.third_party.get(key) or reading.spans.get(key)
        if found is None:
            break
        names.append(found.name)
        parent_id = found.parent_id
    return tuple(reversed(names))
