"""Limits of attributes: whatever way a span leaves, it has what the SDK would have left of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import SpanLimits

from inferspan import semconv
from tests.spans.outputs import CASES, Emitted, packed_spans, sdk_spans, session_file_spans

LIMITS = {
    "few attributes": SpanLimits(max_span_attributes=3),
    "short texts": SpanLimits(max_span_attribute_length=6),
    "few and short": SpanLimits(max_attributes=4, max_attribute_length=2),
    "none": SpanLimits(max_span_attributes=0, max_span_attribute_length=0),
    "the default": SpanLimits(),
}


def _bounded(name: str, limits: SpanLimits) -> list[Emitted]:
    found: list[Emitted] = []
    for attributes in CASES[name].expected:
        bounded = BoundedAttributes(limits.max_span_attributes, dict(attributes), max_value_len=limits.max_span_attribute_length)
        found.append((dict(bounded), bounded.dropped))
    return found


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", CASES)
def test_sdk_spans(name: str, limits: str) -> None:
    """Spans that are handed to the processors keep to the limits of their provider."""
    assert sdk_spans(CASES[name].records, LIMITS[limits]) == _bounded(name, LIMITS[limits])


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", CASES)
def test_packed_spans(name: str, limits: str) -> None:
    """Packed spans keep to the limits of their provider."""
    assert packed_spans(CASES[name].records, LIMITS[limits]) == _bounded(name, LIMITS[limits])


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", CASES)
def test_session_files(name: str, limits: str, tmp_path: Path) -> None:
    """Session files keep to the limits of the provider."""
    assert session_file_spans(CASES[name].records, tmp_path / "s.jsonl", LIMITS[limits]) == _bounded(name, LIMITS[limits])


def test_a_limit_is_no_reason_for_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The SDK warns of each text that it cuts; a request has thousands of spans, so detail does not."""
    with caplog.at_level(logging.WARNING):
        sdk_spans(CASES["modules from a template"].records, SpanLimits(max_span_attribute_length=2))
    about_detail = [record for record in caplog.records if "exceeds" in record.message]
    assert len(about_detail) < 24  # those of the request's own span


@pytest.mark.parametrize("level", ["phase", "step", "module", "op", "kernel"])
def test_no_span_reaches_a_limit_that_is_left_to_the_fast_path(level: str) -> None:
    """Limits of 120 attributes and more, as the SDK's own of 128, are not looked at; no kind of span under a request has so many."""
    assert len([row for row in semconv.ATTRIBUTES if level in row.on]) < 120


@pytest.mark.parametrize("count", [119, 120])
def test_the_fast_path_begins_at_120(count: int) -> None:
    """Both sides of the border give the same spans."""
    records = CASES["modules from a template"].records
    assert packed_spans(records, SpanLimits(max_span_attributes=count)) == packed_spans(records)
