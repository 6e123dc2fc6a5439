"""The tables of names: what the conventions and stores of telemetry ask of them, whatever is emitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import generate
from inferspan import semconv

NAMES = sorted({attribute.key for attribute in semconv.ATTRIBUTES} | {key for metric in semconv.METRICS.values() for key in (metric.name, *metric.attributes)})
"""Every attribute and metric."""
PAGE = generate.pages()[Path(generate.__file__).with_name("telemetry.md")]


def test_no_name_of_ours_is_also_a_prefix() -> None:
    """Stores that nest names by their dots cannot hold ``a.b`` beside ``a.b.c``; the pairs of the conventions are not ours to change."""
    ours = [name for name in NAMES if name.startswith("inferspan.")]
    pairs = [(name, other) for name in ours for other in NAMES if other.startswith(f"{name}.")]
    assert pairs == []


@pytest.mark.parametrize("renamed", semconv.RENAMED, ids=lambda row: row.old)
def test_a_renamed_name_has_no_alias(renamed: semconv.Renamed) -> None:
    """The old name is gone from the tables, and the new one stands in them."""
    assert renamed.old not in NAMES
    assert renamed.new in NAMES


@pytest.mark.parametrize("renamed", semconv.RENAMED, ids=lambda row: row.old)
def test_the_page_lists_what_changed(renamed: semconv.Renamed) -> None:
    """The page about telemetry says which name replaces the old one."""
    _, _, section = PAGE.partition("## Names that changed")
    assert f"| `{renamed.old}` | `{renamed.new}` |" in section
