"""The table of settings compared step by step: what a line says of one that was measured, was not, or failed."""

from __future__ import annotations

from collections import Counter

import pytest
from torch import nn

from benchmarks.models import Workload
from benchmarks.steps.pairs import AGAIN, PLAIN, RECORDED, SETTINGS, Compared, Timed
from benchmarks.steps.table import COLUMNS, lines_of
from benchmarks.table import markdown, noise

KEYS = [key for key, _ in COLUMNS]


def _work() -> Workload:
    targets = {"all": 1.05, "default": 1.02, "unsampled": 1.005}
    return Workload(name="model", mode="eager", model=nn.Linear(1, 1), tokens=10, request=lambda: None, targets=targets)


def _steps(*ratios: float, request: int = 0, again: float = 1.0) -> list[Timed]:
    """Blocks of one step each, between plain ones of 0.1 s."""
    blocks = [(PLAIN, 1.0)]
    for ratio in ratios:
        blocks += [(RECORDED, ratio), (PLAIN, 1.0), (AGAIN, again), (PLAIN, 1.0)]
    return [Timed(request, 6 + 2 * place, variant, ratio / 10) for place, (variant, ratio) in enumerate(blocks)]


def test_lines() -> None:
    """Plain against plain of all requests comes first; each setting has its ratio, what noise there was beside it, and its spans."""
    default = Compared(SETTINGS["default"], _steps(*[1.01] * 6), Counter({1: 5, 97: 1}))
    every = Compared(SETTINGS["all"], _steps(*[1.04] * 7, request=1), Counter({1423: 7}))
    first, *lines = lines_of(_work(), [default, every])
    assert {key: first.get(key) for key in KEYS} == {
        **dict.fromkeys(KEYS),
        "model": "model",
        "mode": "eager",
        "setting": "A/A: plain against plain, all requests",
        "plain": "100.000",
        "ratio": "1.0000",
        "sure": "1.0000 to 1.0000",
        "steps": "13",
    }
    assert [{key: line[key] for key in KEYS} for line in lines] == [
        {
            "model": "model",
            "mode": "eager",
            "setting": "default",
            "spans": "1 or 97",
            "plain": "100.000",
            "ratio": "1.0100",
            "sure": "1.0100 to 1.0100",
            "again": "1.0000 (1.0000 to 1.0000)",
            "steps": "6",
            "target": "<= 1.020",
            "verdict": "met",
        },
        {
            "model": "model",
            "mode": "eager",
            "setting": "every step, all modules",
            "spans": "1,423",
            "plain": "100.000",
            "ratio": "1.0400",
            "sure": "1.0400 to 1.0400",
            "again": "1.0000 (1.0000 to 1.0000)",
            "steps": "7",
            "target": "<= 1.050",
            "verdict": "met, without export",
        },
    ]
    assert lines[0]["timed"] == default.steps and markdown(COLUMNS, [first, *lines]).count("\n") == 4


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.01] * 9, "met"),
        ([1.03] * 9, "missed"),
        ([1.01] * 5 + [1.2] * 4, "met, not resolved"),
        ([1.01] * 4 + [1.2] * 5, "missed, not resolved"),
        ([1.01] * 4, "too few pairs"),
    ],
)
def test_verdict(ratios: list[float], verdict: str) -> None:
    """The words are those of the main table."""
    assert lines_of(_work(), [Compared(SETTINGS["default"], _steps(*ratios))])[1]["verdict"] == verdict


def test_no_figures() -> None:
    """A setting that could not be measured says why, one that had no time says so, and one that failed has no figures."""
    rows = [
        Compared(SETTINGS["all"], problem="needs a GPU"),
        Compared(SETTINGS["default"]),
        Compared(SETTINGS["layers"], _steps(*[1.01] * 9), problem="1 spans in 2 steps, not 3", failed=True),
    ]
    _, absent, none, failed = lines_of(_work(), rows)
    assert [(line["verdict"], line.get("failed"), "ratio" in line) for line in (absent, none, failed)] == [
        ("needs a GPU", None, False),
        ("not measured", None, False),
        ("FAILED: 1 spans in 2 steps, not 3", True, False),
    ]


def test_noise() -> None:
    """Which targets the noise does not allow is said as it is of the main table."""
    lines = lines_of(_work(), [Compared(SETTINGS["unsampled"], _steps(*[1.0] * 9, again=1.01))])
    assert noise(lines) == [
        "model eager: plain against plain is 1.010, 95 % 1.010 to 1.010; the noise exceeds what the targets <= 1.005 allow, so this run cannot show them"
    ]
