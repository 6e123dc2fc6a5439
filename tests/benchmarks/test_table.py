"""The benchmark's table: what a line says of a row that was measured, was not, or failed; and what the noise allows."""

from __future__ import annotations

from typing import Any

from torch import nn

from benchmarks.models import Workload
from benchmarks.receiver import Arrived
from benchmarks.rounds import Measured, Run
from benchmarks.rows import Row
from benchmarks.table import COLUMNS, lines_of, markdown, noise

PAIRS = 6


def _work() -> Workload:
    return Workload(name="model", mode="eager", model=nn.Linear(1, 1), tokens=10, request=lambda: None, targets={"ours": 1.05, "a/a": 1.01})


def _measured(key: str, ratio: float = 1.0, *, exported: float = 1.2, **more: Any) -> Measured:
    row = Row(
        key=key,
        name=f"row {key}",
        attach=lambda work: lambda: None,
        expected=lambda work: 0,
        gets="all|of it",
        exported=bool(more.pop("by_export", False)),
    )
    found = Measured(row, **more)
    if not more:
        found.plain = [Run(2.0, 2.0, Arrived(), (2**20, None)) for _ in range(PAIRS)]
        found.runs = [Run(2.0 * ratio, 2.0 * exported, Arrived({"span": 1200}, 9000), (3 * 2**20, None)) for _ in range(PAIRS)]
    return found


def test_line() -> None:
    """A measured row has its ratios, what arrived, the peak over the plain one's, and a verdict where it has a target."""
    line = lines_of(_work(), [_measured("ours", 1.04)])[0]
    assert {key: line[key] for key, _ in COLUMNS} == {
        "model": "model",
        "mode": "eager",
        "plain": "200.000",
        "setting": "row ours",
        "ratio": "1.040",
        "quartiles": "1.040 to 1.040",
        "sure": "1.040 to 1.040",
        "fastest": "1.040",
        "exported": "1.200 (1.200 to 1.200)",
        "pairs": "6",
        "target": "<= 1.050",
        "verdict": "met",
        "spans": "1,200",
        "bytes": "9,000",
        "memory": "+2.0",
        "gets": "all|of it",
    }


def test_target_with_export() -> None:
    """Where the target includes the export, the verdict is that of the time until everything had arrived."""
    assert lines_of(_work(), [_measured("ours", 1.0, by_export=True)])[0]["verdict"] == "missed, with export"


def test_reasons() -> None:
    """A row that was not run says why, and a failure is marked."""
    absent, failed = lines_of(
        _work(), [_measured("a", problem="not installed"), _measured("b", problem="1 span arrived, not 2", failed=True)]
    )
    assert (absent["verdict"], absent.get("failed")) == ("not installed", None)
    assert (failed["verdict"], failed["failed"]) == ("FAILED: 1 span arrived, not 2", True)


def test_markdown() -> None:
    """Columns that are empty everywhere are left out, and a bar within a cell is no border."""
    assert (
        markdown((("a", "A"), ("b", "B"), ("c", "C")), [{"a": "1|2", "b": ""}, {"c": "3"}])
        == "| A | C |\n| --- | --- |\n| 1\\|2 |  |\n|  | 3 |"
    )


def test_noise() -> None:
    """Plain against plain is told, with the targets that are finer than it."""
    lines = lines_of(_work(), [_measured("a/a", 1.03), _measured("ours", 1.04)])
    assert noise(lines) == [
        "model eager: plain against plain is 1.030, 95 % 1.030 to 1.030; the noise exceeds what the targets <= 1.010 allow, so this run cannot show them"
    ]
    assert noise(lines_of(_work(), [_measured("a/a", 1.0)])) == ["model eager: plain against plain is 1.000, 95 % 1.000 to 1.000"]
