"""Services on a GPU that are slow for one reason, and one that is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.explain.made import MADE, healthy, make
from tests.explain.recording import explained


@pytest.mark.parametrize("name", MADE)
def test_the_planted_cause_comes_first(name: str, tmp_path: Path) -> None:
    """The first of all causes is the one that was planted."""
    run, rule = MADE[name]
    make(tmp_path / "session.jsonl", run)
    found = explained(tmp_path / "session.jsonl")
    assert [cause.rule for cause in found.causes][:1] == [rule]


def test_a_service_that_uses_its_card_well_has_no_cause(tmp_path: Path) -> None:
    """Large batches, kernels all the time, clocks and memory as they should be: no rule has evidence."""
    make(tmp_path / "session.jsonl", healthy())
    assert [cause.rule for cause in explained(tmp_path / "session.jsonl").causes] == []


@pytest.mark.parametrize("timed", [True, False], ids=["timed", "not timed"])
def test_steps_that_the_host_only_launches_are_no_time_between_steps(timed: bool, tmp_path: Path) -> None:
    """The host waits for the device where it reads the token, outside of the model."""
    make(tmp_path / "session.jsonl", replace(healthy(), launch_ms=1.0, kernel_share=None, timed=timed))
    assert [cause.rule for cause in explained(tmp_path / "session.jsonl").causes] == []
