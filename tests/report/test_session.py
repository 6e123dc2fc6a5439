"""Reading session files: what is found in them, what is set aside, and which files are refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.report.histogram import Histogram
from inferspan.report.overview import request_rows, totals
from inferspan.report.session import SessionFileError, read_session, read_sessions


def test_requests_come_as_trees_with_their_callers(session_path: Path) -> None:
    """Children that come before their parents, on other lines, hang where they belong, and parents of other libraries are named."""
    session = read_session(session_path)
    assert [(request.span.name, request.callers, request.span.failed) for request in session.requests] == [
        ("text_completion tiny/model", ("POST /chat",), False),
        ("text_completion tiny/model", (), False),
        ("text_completion tiny/model", (), True),
    ]
    first = session.requests[0]
    assert [phase.name for phase in first.phases] == ["prefill", "decode"]
    assert [(step.name, step.seconds, len(step.children)) for step in first.steps] == [
        ("prefill_step", 0.02, 2), ("decode_step", 0.01, 2), ("decode_step", 0.01, 0),
    ]  # fmt: skip
    layer = first.steps[0].children[0]
    assert (layer.name, [child.name for child in layer.children]) == ("layer 0", ["layer 0 self_attn"])
    assert layer.attributes[semconv.OUTPUT_SHAPES] == ("1x12x64",)
    assert (session.third_party_spans, session.orphan_spans, session.lines.bad) == (1, 0, 0)
    assert session.resources == [{"service.name": "tests", "host.name": "box"}]


def test_stages_and_sessions_are_no_requests(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """Stages of the program are callers of the requests inside, stages of a model are parts of theirs, and none is an orphan."""
    generate(recording, 0)
    trace = recording.trace()
    session = recording.span("session nightly", 1, 9, trace=trace, attributes={semconv.SESSION_ID: "a", semconv.STAGE_SELF_TIME: 1.0})
    user = {semconv.STAGE_KIND: semconv.STAGE_KIND_USER, semconv.STAGE_NAME: "part", semconv.STAGE_SELF_TIME: 1.0}
    stage = recording.span("part", 2, 5, trace=trace, parent=session, attributes=user)
    request = recording.span("generate_content tiny/model", 3, 4, trace=trace, parent=stage, attributes={semconv.OPERATION_NAME: "x"})
    recording.span("vae_decode", 3, 1, trace=trace, parent=request, attributes={semconv.STAGE_KIND: semconv.STAGE_KIND_MODEL, semconv.STAGE_NAME: "vae_decode"})
    recording.span("inner", 3, 1, trace=trace, parent=request, attributes=user)
    found = read_session(recording.write(tmp_path / "session.jsonl"))
    assert [(one.span.name, one.callers[-2:]) for one in found.requests[-1:]] == [("generate_content tiny/model", ("session nightly", "part"))]
    assert len(found.requests) == 2
    assert found.orphan_spans == 0


def test_metrics_come_as_series(session_path: Path) -> None:
    """Cumulative points over time stay a series, and a histogram keeps its buckets."""
    series = {one.name: one for one in read_session(session_path).series}
    assert list(series) == [semconv.M_SERVER_TTFT, semconv.M_PROCESS_MEMORY]
    assert [value for _, value in series[semconv.M_PROCESS_MEMORY].points] == [1048576.0, 2097152.0, 3145728.0, 4194304.0]
    assert series[semconv.M_SERVER_TTFT].histogram == Histogram((0.01, 0.1), [0, 2, 0], 2, 0.04, 0.02, 0.02)


def test_gzip_reads_like_plain(session_path: Path, tmp_path: Path) -> None:
    """A gzipped file, and one that was cut off in the middle, give what is in them."""
    packed = tmp_path / "session.jsonl.gz"
    content = session_path.read_bytes()
    packed.write_bytes(gzip.compress(content))
    assert len(read_session(packed).requests) == 3
    packed.write_bytes(gzip.compress(content * 3)[:-20])
    cut = read_session(packed)
    assert (cut.lines.torn, len(cut.requests)) == (True, 3)


def test_torn_and_bad_lines_are_counted_not_fatal(session_path: Path) -> None:
    """A torn last line and lines of something else are counted and named, and the rest is read."""
    lines = session_path.read_text().splitlines(keepends=True)
    session_path.write_text("not json\n" + lines[0] + '{"other": 1}\n\n' + "".join(lines[1:]) + lines[0][:200])
    session = read_session(session_path)
    assert (len(session.requests), session.lines.bad, session.lines.first_bad, session.lines.torn) == (3, 2, 1, True)
    assert [note.split(",")[0].split(" (")[0] for note in session.notes] == [
        "The file is truncated: its last line is cut off", "Lines that are not OTLP JSON", "Spans of other libraries",
    ]  # fmt: skip


def test_malformed_spans_do_not_stop_the_reading(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """Fields of wrong types, as no exporter should write them, leave the rest of the session readable."""
    generate(recording, 0)
    broken = [
        {"traceId": "aa", "spanId": "bb", "name": None, "attributes": "x", "status": [], "events": [3], "startTimeUnixNano": {}},
        {"traceId": "aa", "spanId": "cc", "attributes": [{"key": 1}, {"key": "a", "value": {"doubleValue": "NaN"}}, {"key": "b"}]},
        {"name": "no ids"},
        7,
    ]
    line = {"resourceSpans": [{"resource": 5, "scopeSpans": [{"scope": {"name": semconv.SCOPE}, "spans": broken}, None]}, 3]}
    path = recording.write(tmp_path / "session.jsonl")
    metric = {"name": "m", "histogram": {"dataPoints": [{"bucketCounts": [1, 2, 3]}]}}
    metrics = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
    path.write_text(path.read_text() + json.dumps(line) + "\n" + json.dumps(metrics) + "\n")
    session = read_session(path)
    assert [(request.span.name, request.span.seconds) for request in session.requests[:2]] == [("", 0.0), ("", 0.0)]
    assert [request.span.name for request in session.requests[2:]] == ["text_completion tiny/model"]
    assert session.series == []


def test_spans_without_their_request_are_counted(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """Spans of a request that is not in the file, because it was still running, are counted as left aside."""
    generate(recording, 0, tokens=1, layers=1)
    del recording.spans[0]
    session = read_session(recording.write(tmp_path / "session.jsonl"))
    assert (session.requests, session.orphan_spans) == ([], 5)


def test_a_repeated_line_counts_once(session_path: Path) -> None:
    """Batches that a collector sent twice do not double requests or children."""
    session_path.write_text(session_path.read_text() * 2)
    session = read_session(session_path)
    assert (len(session.requests), len(session.requests[0].steps)) == (3, 3)


def test_content_events_are_joined_to_their_request(session_path: Path) -> None:
    """Messages that came as a log event stand on the request like messages on the span."""
    request = read_session(session_path).requests[0]
    record = {
        "eventName": semconv.CONTENT_EVENT,
        "traceId": request.span.trace_id,
        "spanId": request.span.span_id,
        "attributes": [{"key": semconv.INPUT_MESSAGES, "value": {"stringValue": "[]"}}],
    }
    with session_path.open("a") as stream:
        stream.write(json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}) + "\n")
    session = read_session(session_path)
    assert (session.log_records, session.requests[0].text(semconv.INPUT_MESSAGES)) == (1, "[]")


def test_an_exception_in_a_log_event_is_that_of_its_request(recording: Any, tmp_path: Path) -> None:
    """With ``exception_signal="logs"`` the stack trace is in a log record only; findings of the analysis are no surplus records."""
    recording.span("chat m", 0, 5, trace=recording.trace(), error="boom")
    ids = {key: recording.spans[0][key] for key in ("traceId", "spanId")}
    attributes = [{"key": semconv.EXCEPTION_TYPE, "value": {"stringValue": "ValueError"}}]
    records = [
        {**ids, "eventName": semconv.INFERENCE_EXCEPTION_EVENT, "timeUnixNano": "1800000000001000000", "attributes": attributes},
        {**ids, "eventName": semconv.EVALUATION_EVENT},
    ]
    path = recording.write(tmp_path / "session.jsonl")
    with path.open("a") as stream:
        stream.write(json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}) + "\n")
    session = read_session(path)
    (event,) = session.requests[0].span.events
    assert (event.name, dict(event.attributes)) == ("exception", {semconv.EXCEPTION_TYPE: "ValueError"})
    assert session.notes == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"hello\nworld\n", r"holds no OTLP JSON lines \(2 other lines\)"),
        (b"hello\n", r"holds no OTLP JSON lines \(1 other line\)"),
        (b"hello\n{", r"holds no OTLP JSON lines \(1 other line; the last one is cut off\)"),
        (b'{"resourceSpans":[{"resou', "is truncated: it breaks off before its first line is complete"),
        (gzip.compress(b"x" * 100, mtime=0)[:15], "is truncated: it breaks off before its first line is complete"),
        (b'{"a": 1}\n[]\n', "holds no OTLP JSON lines"),
        (b"\x28\xb5\x2f\xfd....", "zstd-compressed"),
        (b"\x00\x00\x01\x00\x28\xb5\x2f\xfd....", "zstd-compressed"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "holds no OTLP JSON lines"),
    ],
)
def test_unusable_files_are_refused_with_the_reason(content: bytes | None, message: str, tmp_path: Path) -> None:
    """A file with nothing usable in it raises one error that says why."""
    path = tmp_path / "session.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SessionFileError, match=message) as caught:
        read_session(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    """A folder given instead of a file is one clear error."""
    with pytest.raises(SessionFileError, match="it is a directory"):
        read_session(tmp_path)


def test_delta_points_are_added_up(recording: Any, tmp_path: Path) -> None:
    """A production collector that sends deltas gives the same totals."""
    point = {"count": "1", "sum": 2.0, "bucketCounts": ["1", "0"], "explicitBounds": [5.0], "timeUnixNano": "1"}
    recording.metrics = [
        {"name": "h", "unit": "s", "histogram": {"aggregationTemporality": 1, "dataPoints": [point, point]}},
        {"name": "c", "unit": "1", "sum": {"aggregationTemporality": 1, "dataPoints": [{"asInt": "3", "timeUnixNano": "1"}] * 2}},
    ]
    counter, histogram = read_session(recording.write(tmp_path / "session.jsonl")).series
    assert (counter.last, histogram.histogram) == (6.0, Histogram((5.0,), [2, 0], 2, 4.0))


def _series_of(recording: Any, path: Path, points: list[dict[str, Any]], most: int, kind: str = "gauge", **more: Any) -> Any:
    recording.metrics = [{"name": "m", "unit": "1", kind: {"dataPoints": points, **more}}]
    session = read_sessions([recording.write(path)], points=most)
    return session, session.series[0]


def test_neighbouring_points_are_joined_with_their_extremes(recording: Any, tmp_path: Path) -> None:
    """Over the limit two neighbours become one point with their mean, lowest and highest value; the newest stays as it is."""
    points = [{"asDouble": float(number), "timeUnixNano": str(1000 + number)} for number in (0, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14)]
    session, series = _series_of(recording, tmp_path / "session.jsonl", points, 10)
    assert series.points == [
        (1002, 2.0, 0.0, 4.0, 2), (1006, 6.0, 5.0, 7.0, 2), (1008, 8.5, 8.0, 9.0, 2), (1010, 10.5, 10.0, 11.0, 2), (1012, 12.5, 12.0, 13.0, 2),
        (1014, 14.0),
    ]  # fmt: skip
    assert "Data points joined with a neighbour, as lowest, highest and mean: 5 of 1 metric series." in session.notes


def test_joined_points_keep_the_weight_of_what_they_stand_for(recording: Any, tmp_path: Path) -> None:
    """However often points are joined, their mean is that of all points, and no extreme is lost."""
    points = [{"asDouble": float(number % 97), "timeUnixNano": str(number + 1)} for number in range(5000)]
    _, series = _series_of(recording, tmp_path / "session.jsonl", points, 100)
    whole = [point if len(point) > 2 else (*point, point[1], point[1], 1) for point in series.points]
    assert len(whole) <= 100
    assert sum(point[4] for point in whole) == 5000
    assert sum(point[1] * point[4] for point in whole) / 5000 == pytest.approx(series.average)
    assert (min(point[2] for point in whole), max(point[3] for point in whole)) == (0.0, 96.0)
    assert series.joined == 5000 - len(whole)


def test_counters_keep_the_later_of_two_points(recording: Any, tmp_path: Path) -> None:
    """A mean of totals says nothing, so a counter keeps exact totals."""
    points = [{"asInt": str(number * 2**54), "timeUnixNano": str(number)} for number in range(1, 12)]
    _, series = _series_of(recording, tmp_path / "session.jsonl", points, 10, "sum", isMonotonic=True, aggregationTemporality=2)
    assert series.points == [(number, number * 2**54) for number in (2, 4, 6, 8, 10, 11)]


def test_points_come_in_the_order_of_time(recording: Any, tmp_path: Path) -> None:
    """Readings are written up to a second after an export of later time."""
    points = [{"asDouble": float(time), "timeUnixNano": str(time)} for time in (5, 3, 4, 6)]
    _, series = _series_of(recording, tmp_path / "session.jsonl", points, 10)
    assert series.points == [(3, 3.0), (4, 4.0), (5, 5.0), (6, 6.0)]


def test_spans_over_the_memory_are_counted(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """Of a session that does not fit, steps and modules are left out with a note; requests and figures cover all of it."""
    for number in range(20):
        generate(recording, number * 100)
    path = recording.write(tmp_path / "session.jsonl")
    session = read_session(path, room=2 * path.stat().st_size + 50_000)
    assert session.left_out.spans > 0
    note = "Spans over the memory that is used for a session, counted in the figures and not shown one by one:"
    assert f"{note} {session.left_out.spans}." in session.notes
    assert len(session.requests) == 20
    assert session.is_incomplete(session.requests[0])
    rows = {(row.kind, row.name): row.count for row in session.tally.operations.rows()}
    assert (rows["step", "decode_step"], rows["module", "model.layers.1"]) == (40, 40)


def test_requests_have_a_bound_of_their_own(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """A file of nothing but requests ends in bounded memory."""
    for number in range(100):
        recording.span("forward tiny", number, 1, trace=recording.trace())
    path = recording.write(tmp_path / "session.jsonl")
    session = read_session(path, room=path.stat().st_size)
    assert 0 < len(session.requests) < 100
    assert session.left_out.spans == 100 - len(session.requests)
    assert session.tally.operations.rows()[0].count == 100


def test_files_of_several_processes_are_one_session(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """A span that is in both files counts once, processes are told apart, and a damaged file is named."""
    generate(recording, 0)
    first = recording.write(tmp_path / "rank0.jsonl")
    generate(recording, 500)
    second = recording.write(tmp_path / "rank1.jsonl")
    (tmp_path / "bad.jsonl").write_text("no telemetry\n")
    session = read_sessions([first, second, tmp_path / "bad.jsonl"])
    assert [request.span.resource for request in session.requests] == [0, 1]
    assert session.tally.repeated == len(recording.spans) // 2
    assert len(session.resources) == 2
    assert any(note.startswith("bad.jsonl: The file was left out: ") for note in session.notes)
    with pytest.raises(SessionFileError, match="no OTLP JSON lines"):
        read_sessions([tmp_path / "bad.jsonl"])


def test_own_time_is_that_without_what_is_inside(session_path: Path) -> None:
    """Children come before their parents in the file, and are taken off all the same."""
    rows = {(row.kind, row.name): row for row in read_session(session_path).tally.operations.rows()}
    layer, attention = rows["module", "model.layers.0"], rows["module", "model.layers.0.self_attn"]
    assert layer.total_duration == pytest.approx(0.024)
    assert layer.self_duration == pytest.approx(layer.total_duration - attention.total_duration)
    assert rows["phase", "prefill"].self_duration == pytest.approx(0.0)


def test_log_records_without_a_place_are_counted(session_path: Path) -> None:
    """The report shows no logs; a note says that there are some."""
    with session_path.open("a") as stream:
        stream.write(json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "hi"}}]}]}]}) + "\n")
    assert "Log records, which the report does not show: 1." in read_session(session_path).notes


@pytest.mark.parametrize("end", ["9" * 400, int("9" * 400), str(2**64), "-5", 1.5, "", None, [], "0"], ids=repr)
def test_an_end_that_no_span_can_have_is_unknown(recording: Any, tmp_path: Path, end: object) -> None:
    """The request is there without a duration, which is not 0."""
    recording.span("forward tiny", 0, 1, trace=recording.trace())
    recording.spans[0]["endTimeUnixNano"] = end
    session = read_session(recording.write(tmp_path / "session.jsonl"))
    (row,) = request_rows(session)
    assert row.seconds is None
    assert totals([row]).seconds is None


@pytest.mark.parametrize("value", ["9" * 400, int("9" * 400), str(2**63), "1.5", 1.5, "", True, [], {}], ids=repr)
def test_an_integer_that_otlp_cannot_hold_is_absent(recording: Any, tmp_path: Path, value: object) -> None:
    """A value that cannot be read is no value, never 0."""
    recording.span("forward tiny", 0, 1, trace=recording.trace())
    recording.spans[0]["attributes"] = [{"key": semconv.BATCH_SIZE, "value": {"intValue": value}}]
    (row,) = request_rows(read_session(recording.write(tmp_path / "session.jsonl")))
    assert row.batch is None


def test_sums_of_large_integers_are_exact(recording: Any, tmp_path: Path) -> None:
    """64-bit counters do not go through a double, deltas included."""
    points = [{"asInt": str(2**53 + 1), "timeUnixNano": "1"}, {"asInt": "2", "timeUnixNano": "2"}]
    recording.metrics = [{"name": "c", "sum": {"aggregationTemporality": 1, "dataPoints": points}}]
    (series,) = read_session(recording.write(tmp_path / "session.jsonl")).series
    assert series.last == 2**53 + 3
