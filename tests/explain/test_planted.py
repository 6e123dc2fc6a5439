"""Programs that are slow for one reason: explain names it first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.explain.planted import PLANTED
from tests.explain.recording import explained


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_comes_first(name: str, tmp_path: Path) -> None:
    """The first of all causes is the one that was planted."""
    record, rule = PLANTED[name]
    record(tmp_path / "session.jsonl")
    found = explained(tmp_path / "session.jsonl")
    assert [cause.rule for cause in found.causes][:1] == [rule]
