"""Attributes of the spans under a request: what ``spans.attributes`` says of a record is what every output says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferspan import semconv
from tests.spans.outputs import CASES, STEP_ATTRIBUTES, packed_spans, sdk_spans, session_file_spans


@pytest.mark.parametrize("name", CASES)
def test_sdk_spans_have_these_attributes(name: str) -> None:
    """A span of the SDK has exactly the attributes that the record has."""
    assert [found for found, _ in sdk_spans(CASES[name].records)] == CASES[name].expected


@pytest.mark.parametrize("name", CASES)
def test_packed_spans_have_these_attributes(name: str) -> None:
    """Packed bytes, decoded, have exactly the attributes that the record has."""
    assert [found for found, _ in packed_spans(CASES[name].records)] == CASES[name].expected


@pytest.mark.parametrize("name", CASES)
def test_session_files_have_these_attributes(name: str, tmp_path: Path) -> None:
    """The lines of a session file have exactly the attributes that the record has."""
    assert [found for found, _ in session_file_spans(CASES[name].records, tmp_path / "s.jsonl")] == CASES[name].expected


@pytest.mark.parametrize(("name", "level"), [("phase", "phase"), ("step", "step"), ("module of a plain forward", "module")])
def test_every_attribute_has_its_row(name: str, level: str) -> None:
    """What these functions add to a record stands in the table of attributes, on the level of the span."""
    rows = {row.key for row in semconv.ATTRIBUTES if level in row.on}
    added = {key for found in CASES[name].expected for key in found} - STEP_ATTRIBUTES.keys()
    assert added - rows == set()
