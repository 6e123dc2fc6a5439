"""The trials of the gate's benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gate import main, outcome, pairs, synthetic, windows

TIMES = synthetic(0.01, 4_000)


def test_windows_of_a_long_recording_do_not_overlap() -> None:
    """Each pair is in one of them."""
    found = windows(TIMES, 100, 40, apart=False, seed=1)
    assert [time for a, _ in found for time in a] == [a for a, _ in TIMES]


def test_windows_apart_hold_what_came_after() -> None:
    """B of a window begins where A ends."""
    ((a, b), *_) = windows(TIMES, 100, 10, apart=True, seed=1)
    assert a == [time for time, _ in TIMES[:100]]
    assert b == [time for _, time in TIMES[100:200]]


def test_a_recording_that_is_too_short_is_refused() -> None:
    """With both numbers."""
    with pytest.raises(ValueError, match="4000 pairs are too few for windows of 4001 requests"):
        windows(TIMES, 4_001, 1, apart=False, seed=1)


def test_planted_slow_downs_are_found_and_equal_sides_are_not() -> None:
    """At a deviation of 1 % and 100 requests: all and none."""
    trials = windows(TIMES, 100, 40, apart=False, seed=1)
    options = {"gate": 0.03, "alpha": 0.0005, "apart": False}
    assert outcome(trials, slower=1.0, **options)[:3] == (40, 0, 0)  # type: ignore[arg-type]
    assert outcome(trials, slower=1.03, **options)[:2] == (40, 40)  # type: ignore[arg-type]


def test_the_command_reads_recorded_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And prints a row for each number of requests."""
    noise = tmp_path / "noise.json"
    noise.write_text(json.dumps(TIMES[:1_000]))
    assert main(["--noise", str(noise), "--requests", "50", "--trials", "10"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("1000 pairs of requests, median 10.")
    assert [line.split()[:3] for line in out[4:]] == [["in", "turns", "50"], ["one", "after", "the"]]


def test_neighbours_are_pairs_in_either_order() -> None:
    """A last one without a neighbour is left out."""
    assert pairs([1, 2, 3, 4, 5, 6, 7]) == [(2, 1), (3, 4), (6, 5)]


def test_the_command_records_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through a session file, as users do."""
    noise = tmp_path / "noise.json"
    assert main(["--noise", str(noise), "--seconds", "0.3", "--requests", "100000"]) == 0
    times = json.loads(noise.read_text())
    assert all(a > 0 and b > 0 for a, b in times)
    assert capsys.readouterr().out.startswith(f"{len(times)} pairs of requests")
