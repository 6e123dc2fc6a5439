"""The pairs of a table as parameters of a test."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from .pairs import Outcome

__all__ = ["marked"]


def marked(table: Mapping[str, Mapping[str, Outcome]]) -> list[Any]:
    """One parameter set, ``way, kind, outcome``, for each pair. A pair that is known to be wrong must fail."""
    sets = []
    for way, row in table.items():
        for kind, outcome in row.items():
            marks = [] if outcome.wrong is None else [pytest.mark.xfail(reason=outcome.wrong, strict=True)]
            name = re.sub(r"[^\w.]+", " ", f"{way} {kind}").strip().replace(" ", "-")
            sets.append(pytest.param(way, kind, outcome, id=name, marks=marks))
    return sets
