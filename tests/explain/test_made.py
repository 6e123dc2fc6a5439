"""Services on a GPU that are slow for one reason, and one that is not."""

from __future__ import annotations

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
