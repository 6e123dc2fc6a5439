"""Pairs and rounds: who is measured beside whom, in which order, and what a row that fails does to the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from benchmarks import rounds
from benchmarks.models import Workload
from benchmarks.receiver import Arrived
from benchmarks.rounds import measure
from benchmarks.rows import Row


class _Script:
    """Notes which row each request ran under; its receiver gives a number of spans for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spans: dict[str, int] | None = None) -> None:
        self.log: list[str] = []
        self.attached = "plain"
        self.spans = spans or {}
        self.last = ""
        self.work = Workload(name="fake", mode="eager", model=nn.Linear(1, 1), tokens=1, request=self._request)
        monkeypatch.setattr(rounds, "count", lambda address: Arrived({"span": self.spans.get(self.last, 0)}))

    def _request(self) -> None:
        self.log.append(self.attached)

    def row(self, key: str, *, expected: int = 0, **more: Any) -> Row:
        def attach(work: Workload) -> Callable[[], None]:
            self.attached = self.last = key
            return lambda: setattr(self, "attached", "plain")

        return Row(**{"key": key, "name": key, "attach": attach, "expected": lambda work: expected, "gets": "", **more})

    def measure(self, *rows: Row, count: int, seconds: float = 1000.0, clock: Callable[[], float] = lambda: 0.0) -> list[rounds.Measured]:
        return measure(self.work, rows, "nowhere", rounds=count, seconds=seconds, clock=clock)


def test_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows begin one later every round, and the plain request stands before and behind its partner in turn."""
    script = _Script(monkeypatch)
    found = script.measure(script.row("a"), script.row("b"), count=3)
    warm = ["plain", "plain", "a", "plain", "b"]
    assert script.log == [*warm, *["plain", "a", "plain", "b"], *["b", "plain", "a", "plain"], *["plain", "a", "plain", "b"]]
    assert [(len(one.runs), len(one.plain)) for one in found] == [(3, 3), (3, 3)]


def test_rows_with_targets_come_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where some rows have targets, those and the noise are measured every round, and the others in every third."""
    script = _Script(monkeypatch)
    script.work.targets = {"b": 1.1}
    found = script.measure(script.row("a/a"), script.row("b"), script.row("c"), count=7)
    assert [len(one.runs) for one in found] == [7, 7, 3]


def test_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time is over no round begins, but three are always made."""
    script = _Script(monkeypatch)
    now = iter(range(1000))
    assert len(script.measure(script.row("a"), count=50, seconds=1.0, clock=lambda: float(next(now)))[0].runs) == 3


def test_missing_spans(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A row whose spans have not all arrived fails aloud and is not measured further; the others go on."""
    script = _Script(monkeypatch, spans={"short": 12, "whole": 13})
    short, whole = script.measure(script.row("short", expected=13), script.row("whole", expected=13), count=4)
    assert (short.failed, short.problem, short.runs) == (True, "12 spans arrived, not 13", [])
    assert (whole.failed, whole.problem, len(whole.runs)) == (False, None, 4)
    assert "FAILED fake eager, short: 12 spans arrived, not 13" in capsys.readouterr().err


def test_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that cannot be attached ends with what it raised."""
    script = _Script(monkeypatch)

    def broken(work: Workload) -> Callable[[], None]:
        raise RuntimeError("no such thing\nand more")

    bad, good = script.measure(script.row("bad", attach=broken), script.row("good"), count=3)
    assert (bad.failed, bad.problem) == (True, "RuntimeError: no such thing")
    assert len(good.runs) == 3


def test_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that needs what is not there is not run, and says so; that is no failure."""
    script = _Script(monkeypatch)
    script.work.mode = "compiled"
    absent, inside = script.measure(
        script.row("absent", missing=lambda work: "not installed"), script.row("inside", compiled=False), count=3
    )
    assert (absent.failed, absent.problem, absent.runs) == (False, "not installed", [])
    assert (inside.failed, inside.problem) == (False, "not on a compiled model: hooks inside would break its graphs")


def test_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is measured through a pipeline has a plain partner through the pipeline."""
    script = _Script(monkeypatch)
    piped: list[str] = []
    script.work.piped = lambda: piped.append(script.attached)
    script.measure(script.row("a", piped=True), count=3)
    assert piped == ["plain", "a", "plain", "a", "a", "plain", "plain", "a"]
