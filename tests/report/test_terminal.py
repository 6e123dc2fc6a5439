"""The table of requests as text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.metrics.summary import percentile
from inferspan.report.overview import request_rows, totals
from inferspan.report.session import read_session
from inferspan.report.terminal import summary
from tests.report.conftest import otlp_attributes


def test_summary_is_a_table_of_requests(session_path: Path) -> None:
    """Totals come first, then one line a request; what is absent is a dash, never 0."""
    text = summary(read_session(session_path))
    assert text.splitlines()[0] == (
        f"{session_path}: 3 requests (1 failed); 24 tokens in, 8 out; TTFT p50 20.0 ms, p95 20.0 ms; TPOT p50 10.0 ms, p95 10.0 ms;"
        " 80.0 tok/s; peak memory 3.00 MiB"
    )
    assert text.splitlines()[2:6] == [
        "#  request                     batch  in  out     TTFT     TPOT  tok/s  duration  result",
        "1  text_completion tiny/model      1  12    3  20.0 ms  10.0 ms   75.0   40.0 ms  length",
        "2  text_completion tiny/model      1  12    5  20.0 ms  10.0 ms   83.3   60.0 ms  length",
        "3  text_completion tiny/model      -   -    -        -        -      -   2.00 ms  error ValueError",
    ]


def test_an_interrupted_request_shows_what_it_had_done(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """Tokens and times of a request that failed on its way are in its line, and its tokens in the totals; one of a thing has no plural s."""
    generate(recording, 0, tokens=1, layers=1)
    request = recording.spans[0]
    request["status"] = {"code": 2}
    request["attributes"] = [item for item in request["attributes"] if item["key"] not in (semconv.TPOT, semconv.MEMORY_PEAK)]
    request["attributes"] += otlp_attributes({semconv.ERROR_TYPE: "KeyboardInterrupt", semconv.SPANS_DROPPED: 1})
    lines = summary(read_session(recording.write(tmp_path / "session.jsonl"))).splitlines()
    assert lines[0].split(": ", 1)[1] == "1 request (1 failed); 12 tokens in, 1 out; 50.0 tok/s"
    assert lines[3].split("  ")[-1] == "error KeyboardInterrupt, 1 span dropped"
    assert lines[3].split()[3:8] == ["1", "12", "1", "20.0", "ms"]


def test_totals_agree_with_the_summary_of_a_handle(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """Percentiles of the report are those of ``inferspan.summary``, which interpolate."""
    times = [0.1, 0.2, 0.4]
    for number in range(3):
        generate(recording, number * 100, tokens=1, layers=1)
    requests = [span for span in recording.spans if "parentSpanId" not in span]
    for span, seconds in zip(requests, times, strict=True):
        span["attributes"] = [item for item in span["attributes"] if item["key"] != semconv.TTFT] + otlp_attributes({semconv.TTFT: seconds})
    figures = totals(request_rows(read_session(recording.write(tmp_path / "session.jsonl"))))
    assert figures.ttft == (percentile(times, 0.5), percentile(times, 0.95))
    assert figures.ttft == pytest.approx((0.2, 0.38))


def test_colour_marks_failures_only_when_asked(session_path: Path) -> None:
    """A terminal gets the failed line in red; anything else gets no escape sequence."""
    session = read_session(session_path)
    assert "\x1b" not in summary(session)
    red = [line for line in summary(session, colour=True).splitlines() if line.startswith("\x1b[31m")]
    assert len(red) == 1
    assert "ValueError" in red[0]


def test_control_characters_of_the_file_do_not_reach_the_terminal(recording: Any, tmp_path: Path) -> None:
    """A model name with an escape sequence cannot steer the terminal."""
    recording.span("forward evil\x1b[2Jmodel", 0, 1, trace=recording.trace())
    text = summary(read_session(recording.write(tmp_path / "session.jsonl")))
    assert "\x1b" not in text
    assert "evil?[2Jmodel" in text


def test_long_sessions_show_their_end(recording: Any, generate: Callable[..., str], tmp_path: Path) -> None:
    """Of many requests the last ones are listed, and the others are counted."""
    for number in range(5):
        generate(recording, number * 100, tokens=1, layers=1)
    lines = summary(read_session(recording.write(tmp_path / "session.jsonl")), most=2).splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["4", "5", "3"]
    assert lines[-1] == "3 earlier requests are not shown"


def test_a_session_without_requests_says_so(recording: Any, tmp_path: Path) -> None:
    """Metrics alone are a valid session with no table."""
    recording.metric("m", "gauge", "1", [{"asDouble": 1.0, "timeUnixNano": "1"}])
    assert summary(read_session(recording.write(tmp_path / "session.jsonl"))).endswith("no request of an instrumented model in this file")


def test_what_was_decided_about_the_detail(recording: Any, tmp_path: Path) -> None:
    """The line of a request says why its detail was kept, or that it was not; without a decision it says neither."""
    decisions: list[dict[str, Any]] = [
        {semconv.DETAIL_KEPT: True, semconv.DETAIL_RULE: "slow,nonfinite", semconv.NONFINITE: True},
        {semconv.DETAIL_KEPT: False, semconv.DETAIL_RULE: "slow", semconv.DETAIL_SPANS: 40},
        {},
    ]
    for number, attributes in enumerate(decisions):
        recording.span("forward tiny", number * 10, 2, trace=recording.trace(), attributes=attributes)
    lines = summary(read_session(recording.write(tmp_path / "session.jsonl"))).splitlines()[-3:]
    assert [line.split("2.00 ms  ")[1] for line in lines] == ["ok, NaN/Inf, kept: slow,nonfinite", "ok, detail not kept", "ok"]


def test_a_width_is_kept(session_path: Path, recording: Any, tmp_path: Path) -> None:
    """Totals are divided between figures; the batch of 1 and tok/s go first, then the name is cut, and words get a meaning."""
    for line in summary(read_session(session_path), width=80).splitlines():
        assert len(line) <= 80 or str(session_path) in line
    attributes = {semconv.HEALTH_KINDS: ["low"], semconv.WARMUP: True}
    recording.span("forward " + "long" * 20, 0, 1, trace=recording.trace(), attributes=attributes)
    lines = summary(read_session(recording.write(tmp_path / "s.jsonl")), width=80).splitlines()
    assert max(map(len, lines[2:-1])) <= 80
    assert lines[-3] == "low: low confidence, the model gave its tokens little probability"
