"""What limits phases and modules, as the report says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.report.figures.bottlenecks import bottleneck_lines, bottlenecks
from inferspan.report.figures.explained import explanation_of
from inferspan.report.session import Session, read_sessions
from inferspan.report.terminal import summary


@pytest.fixture
def session(recording: Any, tmp_path: Path) -> Session:
    """A request whose decode is bound by memory, but for its attention."""
    trace = recording.trace()

    def figures(share: float, bound: str | None) -> dict[str, Any]:
        found: dict[str, Any] = {semconv.DEVICE_FLOPS: 10, semconv.DEVICE_BYTES: 20, semconv.DEVICE_PEAK_SHARE: share}
        return found if bound is None else {**found, semconv.DEVICE_BOUND: bound}

    def module(name: str, kind: str, begin: int, length: int, step: Any, share: float, bound: str) -> None:
        attributes = {semconv.MODULE_NAME: name, semconv.MODULE_TYPE: kind, semconv.PHASE: "decode", **figures(share, bound)}
        recording.span(name, begin, length, trace=trace, parent=step, attributes=attributes)

    request = recording.span("chat m", 0, 100, trace=trace, attributes=figures(0.3, None))
    recording.span("prefill", 0, 20, trace=trace, parent=request, attributes={semconv.PHASE: "prefill", **figures(0.6, "compute")})
    decode = recording.span("decode", 20, 80, trace=trace, parent=request, attributes={semconv.PHASE: "decode", **figures(0.43, "memory")})
    step = recording.span("decode_step", 20, 40, trace=trace, parent=decode, attributes={semconv.PHASE: "decode", semconv.STEP_INDEX: 1})
    module("layers.12.mlp", "MLP", 20, 20, step, 0.61, "memory")
    module("layers.12.self_attn", "Attention", 40, 10, step, 0.1, "launch")
    return read_sessions([recording.write(tmp_path / "session.jsonl")])


def test_lines_of_phases(session: Session) -> None:
    """A line says what limits a phase, how near it is, and which modules stand out."""
    assert bottleneck_lines(session) == [
        "prefill: compute-bound, 60 % of peak FLOP/s",
        "decode: memory-bound, 43 % of peak bandwidth; layers.12.mlp 61 %; layers.12.self_attn 10 %; launch-bound Attention",
    ]


def test_lines_in_the_terminal(session: Session) -> None:
    """They stand below the table of requests."""
    assert "prefill: compute-bound, 60 % of peak FLOP/s" in summary(session)


def test_rows_of_the_json_report(session: Session) -> None:
    """Phases first, then modules by their time, each with what limits it and how sure that is."""
    rows = bottlenecks(session)
    assert [(row["kind"], row["name"], row["bound"], row["sure"]) for row in rows] == [
        ("phase", "prefill", "compute", 1.0),
        ("phase", "decode", "memory", 1.0),
        ("module", "layers.12.mlp", "memory", 1.0),
        ("module", "layers.12.self_attn", "launch", 1.0),
    ]
    assert [row["share"] for row in rows[:2]] == [pytest.approx(0.2), pytest.approx(0.8)]
    assert rows[1]["peak_share"] == pytest.approx(0.43)


def test_the_explanation_names_the_same_bounds(session: Session) -> None:
    """What limits a part is one fact, whichever part of the report tells it."""
    limits = {one.name: one.bound for one in explanation_of(session).bottlenecks}
    assert limits == {"prefill": "compute", "decode": "memory", "layers.*.mlp": "memory", "layers.*.self_attn": "launch"}


def test_most_of_the_time_decides(recording: Any, tmp_path: Path) -> None:
    """Of two phases with the same name the longer one; one without a bound counts as time of which nothing is told."""
    for length, bound in ((50, "memory"), (30, "compute"), (20, None)):
        trace = recording.trace()
        request = recording.span("chat m", 0, length, trace=trace)
        told = {semconv.PHASE: "decode", **({} if bound is None else {semconv.DEVICE_BOUND: bound})}
        recording.span("decode", 0, length, trace=trace, parent=request, attributes=told)
    found = read_sessions([recording.write(tmp_path / "session.jsonl")])
    assert [(row["bound"], row["sure"]) for row in bottlenecks(found)] == [("memory", pytest.approx(0.5))]
    assert [(one.bound, one.reason) for one in explanation_of(found).bottlenecks] == [("memory", "roofline, 62 % of its spans by time")]


def test_nothing_without_evidence(recording: Any, tmp_path: Path) -> None:
    """Spans that say nothing make no rows and no lines."""
    trace = recording.trace()
    request = recording.span("chat m", 0, 100, trace=trace)
    recording.span("decode", 0, 100, trace=trace, parent=request, attributes={semconv.PHASE: "decode"})
    found = read_sessions([recording.write(tmp_path / "session.jsonl")])
    assert bottlenecks(found) == []
    assert bottleneck_lines(found) == []
