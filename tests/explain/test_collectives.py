"""Ranks that wait for each other, of services on GPUs that were made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inferspan import semconv
from inferspan.analysis.collectives import collective_share
from inferspan.explain.cause import Cause
from inferspan.report.figures.explained import explanation_of
from inferspan.report.session import read_sessions
from tests.explain.made import healthy, make


def _of_ranks(folder: Path, *shares: float) -> list[Cause]:
    """Causes of a job whose ranks are in collectives for these shares of their steps."""
    paths = []
    for rank, share in enumerate(shares):
        run = replace(healthy(), collective_share=share, request={semconv.BATCH_SIZE: 32, semconv.RANK: rank})
        make(folder / f"rank{rank}.jsonl", run)
        paths.append(folder / f"rank{rank}.jsonl")
    return [cause for cause in explanation_of(read_sessions(paths)).causes if cause.rule == "collectives"]


def test_the_rank_that_waits_least_is_named(tmp_path: Path) -> None:
    """It does the most work, and the others could save what they wait for it."""
    (found,) = _of_ranks(tmp_path, 0.1, 0.8)
    assert "rank 0 is in them the least (10 %)" in found.title
    assert found.advice.startswith("Balance the ranks")
    assert [part.name for part in found.parts] == ["rank 1", "rank 0"]
    assert found.gain == pytest.approx((found.seconds or 0.0) * 0.7 / 0.9, rel=0.01)


def test_of_even_ranks_none_is_named(tmp_path: Path) -> None:
    """They share the cost, and what could be saved is not known."""
    (found,) = _of_ranks(tmp_path, 0.5, 0.6)
    assert "the least" not in found.title
    assert found.gain is None


def test_times_that_cannot_be_added_say_nothing(tmp_path: Path) -> None:
    """Of a damaged file: their sum is infinite, in the report as in explain."""
    run = replace(healthy(), collective_share=0.9, step={semconv.PROFILER_PASS_TIME: 1.7e308, semconv.PROFILER_COLLECTIVE_TIME: 1.7e308})
    make(tmp_path / "session.jsonl", run)
    session = read_sessions([tmp_path / "session.jsonl"])
    assert [cause.rule for cause in explanation_of(session).causes if cause.rule == "collectives"] == []
    assert collective_share([step for request in session.requests for step in request.steps]) is None


def test_little_time_in_collectives_is_no_cause(tmp_path: Path) -> None:
    """Under a third of the steps."""
    assert _of_ranks(tmp_path, 0.2, 0.25) == []
