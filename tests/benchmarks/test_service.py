"""The load generator of a service: its ratios, and one short run against a dead collector."""

from __future__ import annotations

import os
import re

import pytest

from benchmarks.service import Load, main, ratios


def test_ratios_are_to_the_plain_runs_on_both_sides() -> None:
    """A drift of the machine between them cancels."""
    before, case, after = Load(100.0, 0.1, 0, 40, 0.01), Load(99.0, 0.22, 0, 41, 0.01), Load(120.0, 0.3, 0, 40, 0.01)
    assert ratios(case, before, after) == pytest.approx((0.9, 1.1))


@pytest.mark.integration
@pytest.mark.parametrize("length", [["--seconds", "2"], ["--burst"]], ids=["seconds", "burst"])
def test_short_run_prints_a_row_for_each_case(length: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Plain runs around the case, with threads and memory."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    assert main(["--connections", "4", *length, "--tokens", "2", "--cases", "dead"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["case", "plain", "dead", "plain"]
    assert re.search(r"dead +\d+\.\d{3} +\d+\.\d +\d+\.\d{3} +\d+\.\d{3} +-?\d+\.\d +\d+", rows[2])


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores of Linux")
def test_pairs_run_on_each_core_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    """A pair is two runs, and its ratio comes with its interval; this process keeps its cores."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    cores = os.sched_getaffinity(0)
    assert main(["--connections", "4", "--burst", "--tokens", "2", "--cases", "dead", "--pairs", "1"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["case", "dead", "dead", "dead:"]
    (first, second), told = ([float(cell) for cell in row.split()[1:3]] for row in rows[1:3]), rows[3]
    found = float(re.findall(r"throughput (\d+\.\d{3}) ", told)[0])
    assert found == pytest.approx((first[0] * second[0] / first[1] / second[1]) ** 0.5, rel=0.01)
    assert os.sched_getaffinity(0) == cores


@pytest.mark.integration
def test_requests_with_and_without_in_one_service(capsys: pytest.CaptureFixture[str]) -> None:
    """Each burst has its figures, and the ratio counts what threads of ours have spent."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    assert main(["--connections", "4", "--tokens", "2", "--mixed", "2", "--cases", "dead"]) == 0
    head, *rows, threads_by_name, found = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "case"
    for row in rows:
        ours, plain, threads, ratio = map(float, row.split()[1:])
        assert ratio == pytest.approx((ours + threads) / plain, abs=2e-2 / plain)
    assert len(rows) == 2
    assert re.fullmatch(r"dead: ms a request by thread: \S+ \d+\.\d\d(, \S+ \d+\.\d\d)*", threads_by_name)
    assert found.startswith("dead: CPU a request ")
