"""Values on their way to the page: as the file holds them, in what a script can hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferspan.report.payload import payload
from inferspan.report.plain import plain, rounded
from inferspan.report.session import read_session
from tests.report.conftest import START


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2**53, 2**53),
        (2**53 + 1, str(2**53 + 1)),
        (-(2**63), str(-(2**63))),
        ((1, 2**60), [1, str(2**60)]),
        (0.1, 0.1),
        (1234567.891, 1234567.891),
        (float("inf"), None),
        (float("nan"), None),
        (True, True),
        ("x" * 1_000_001, "x" * 1_000_000 + " ... (1 more characters are in the session file)"),
        (({"__proto__": 1},), ['{"__proto__": 1}']),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_values_are_plain(value: Any, shown: Any) -> None:
    """Large integers are text of their digits, maps text of JSON, and what is no number is absent."""
    assert plain(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(0.123456789, 0.123457), (99999.96, 100000.0), (1234567.891, 1234567.9), (1e308, 1e308)])
def test_rounding_keeps_whole_units(value: float, shown: float) -> None:
    """Six digits are enough for a timeline, but never fewer than stand before the point."""
    assert rounded(value) == shown


def test_attributes_of_a_request_are_not_rounded(recording: Any, tmp_path: Path) -> None:
    """What the program put on the request is shown as it is."""
    recording.span("forward tiny", 0, 1, trace=recording.trace(), attributes={"app.price": 1234567.891, "app.share": 0.123456789})
    data = payload(read_session(recording.write(tmp_path / "session.jsonl")))
    assert data["requests"][0]["attributes"] == {"app.price": 1234567.891, "app.share": 0.123456789}


def test_resources_and_labels_keep_large_integers(recording: Any, tmp_path: Path) -> None:
    """Not only requests: every attribute on the page has all of its digits."""
    big = {"key": "id", "value": {"intValue": str(2**60 + 1)}}
    metric = {"name": "m", "gauge": {"dataPoints": [{"asInt": str(2**60 + 1), "timeUnixNano": str(START), "attributes": [big]}]}}
    path = tmp_path / "session.jsonl"
    path.write_text(json.dumps({"resourceMetrics": [{"resource": {"attributes": [big]}, "scopeMetrics": [{"metrics": [metric]}]}]}) + "\n")
    data = payload(read_session(path))
    assert data["resources"] == [{"id": str(2**60 + 1)}]
    assert data["series"][0]["attributes"] == {"id": str(2**60 + 1)}
    assert data["series"][0]["points"] == [(START // 1_000_000, str(2**60 + 1))]


def test_a_sum_that_overflows_is_unknown(recording: Any, tmp_path: Path) -> None:
    """Percentiles over values at the end of a double's range do not make the page unreadable."""
    point = {"count": "2", "bucketCounts": ["1", "1", "0"], "explicitBounds": [-1.7e308, 1.7e308], "timeUnixNano": str(START)}
    recording.metric("m", "histogram", "s", [point])
    (series,) = payload(read_session(recording.write(tmp_path / "session.jsonl")))["series"]
    assert series["histogram"]["p95"] is None


def test_series_over_the_limit_of_a_page_are_counted(recording: Any, tmp_path: Path) -> None:
    """A page of a million rows opens in no browser; a note says what is left out."""
    points = [{"asInt": "1", "attributes": [{"key": "n", "value": {"intValue": str(number)}}]} for number in range(5_010)]
    recording.metric("m", "gauge", "1", points)
    data = payload(read_session(recording.write(tmp_path / "session.jsonl")))
    assert len(data["series"]) == 5_000
    assert data["notes"] == ["Metric series over the 5,000 that a page shows, left out: 10."]
