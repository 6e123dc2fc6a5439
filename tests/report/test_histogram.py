"""Histograms of a session: percentiles, exponential buckets, summaries, and points that cannot be read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View

from inferspan.export.files.session_file import MetricFileExporter
from inferspan.report.histogram import Histogram
from inferspan.report.metric_series import Series
from inferspan.report.session import read_session
from tests.report.conftest import START


def series_of(recording: Any, folder: Path, kind: str, *points: dict[str, Any], delta: bool = False) -> list[Series]:
    """The series of one metric with these points."""
    data = {"aggregationTemporality": 1 if delta else 2, "dataPoints": [{"timeUnixNano": str(START), **point} for point in points]}
    recording.metrics = [{"name": "m", "unit": "s", kind: data}, {"name": "other", "unit": "1", "gauge": {"dataPoints": [{"asInt": "1"}]}}]
    return [series for series in read_session(recording.write(folder / "session.jsonl")).series if series.name == "m"]


def test_quantiles_lie_inside_what_was_seen() -> None:
    """Estimates never leave the observed range, and an empty histogram has none."""
    histogram = Histogram((1.0, 2.0), [0, 4, 0], 4, 6.0, 1.4, 1.6)
    assert (histogram.quantile(0.0), histogram.quantile(0.5), histogram.quantile(1.0)) == (1.4, 1.5, 1.6)
    assert Histogram((1.0,), [0, 0], 0, 0.0).quantile(0.5) is None
    assert Histogram((1.0, 2.0), [0, 0, 3], 3, None).quantile(0.95) == 2.0


def test_an_exponential_histogram_has_the_percentiles_of_its_values(tmp_path: Path) -> None:
    """Of what the SDK records with exponential buckets, count and sum are exact and percentiles are near."""
    reader = InMemoryMetricReader()
    view = View(instrument_name="h", aggregation=ExponentialBucketHistogramAggregation())
    provider = MeterProvider([reader], views=[view], shutdown_on_exit=False)
    instrument, chance = provider.get_meter("t").create_histogram("h", "s"), random.Random(5)
    values = sorted(chance.lognormvariate(-3, 1) for _ in range(2000))
    for value in values:
        instrument.record(value)
    exporter, data = MetricFileExporter(tmp_path / "s.jsonl"), reader.get_metrics_data()
    assert data is not None
    exporter.export(data)
    exporter.shutdown()
    (series,) = read_session(tmp_path / "s.jsonl").series
    assert series.histogram is not None
    assert series.histogram.count == 2000
    assert series.histogram.sum == pytest.approx(sum(values))
    assert series.histogram.quantile(0.5) == pytest.approx(values[1000], rel=0.02)
    assert series.histogram.quantile(0.95) == pytest.approx(values[1900], rel=0.02)


def test_exponential_buckets_become_explicit_ones(recording: Any, tmp_path: Path) -> None:
    """Negative values, zeros and positive values stand in order; an empty bucket fills each gap."""
    point = {
        "count": "10", "scale": 0, "zeroCount": "4", "zeroThreshold": 0.25,
        "negative": {"offset": 1, "bucketCounts": ["1"]}, "positive": {"offset": 0, "bucketCounts": ["2", "0", "3"]},
    }  # fmt: skip
    (series,) = series_of(recording, tmp_path, "exponentialHistogram", point)
    assert series.histogram == Histogram((-4.0, -2.0, -0.25, 0.25, 1.0, 2.0, 4.0, 8.0), [0, 1, 0, 4, 0, 2, 0, 3, 0], 10, None)


def test_exponential_deltas_are_added_up(recording: Any, tmp_path: Path) -> None:
    """Deltas of different scales and offsets are added at the coarser scale."""
    fine = {"count": "2", "sum": 3.0, "scale": 1, "positive": {"offset": 0, "bucketCounts": ["1", "1"]}, "min": 1.2, "max": 1.8}
    coarse = {"count": "1", "sum": 3.0, "scale": 0, "positive": {"offset": 1, "bucketCounts": ["1"]}, "min": 3.0, "max": 3.0}
    (series,) = series_of(recording, tmp_path, "exponentialHistogram", fine, coarse, delta=True)
    assert series.histogram == Histogram((1.0, 2.0, 4.0), [0, 2, 1, 0], 3, 6.0, 1.2, 3.0)


def test_cumulative_exponential_points_replace_each_other(recording: Any, tmp_path: Path) -> None:
    """The newest point holds everything before it."""
    points = [{"count": str(count), "scale": 0, "positive": {"bucketCounts": [str(count)]}} for count in (1, 5)]
    (series,) = series_of(recording, tmp_path, "exponentialHistogram", *points)
    assert series.histogram == Histogram((1.0, 2.0), [0, 5, 0], 5, None)


def test_exponential_buckets_beyond_a_double(recording: Any, tmp_path: Path) -> None:
    """Bounds that no float holds end at the largest one."""
    buckets = {"offset": 2**31 - 1, "bucketCounts": ["1"]}
    (series,) = series_of(recording, tmp_path, "exponentialHistogram", {"count": "2", "scale": -10, "positive": buckets, "negative": buckets})
    assert series.histogram is not None
    largest = 1.7976931348623157e308
    assert (series.histogram.bounds[0], series.histogram.bounds[-1]) == (-largest, largest)


def test_a_summary_shows_the_percentiles_of_the_program(recording: Any, tmp_path: Path) -> None:
    """A summary has no buckets; the percentiles that were sent are those of the report."""
    quantiles = [{"quantile": 0.5, "value": 2.5}, {"quantile": 0.99, "value": 9.0}]
    (series,) = series_of(recording, tmp_path, "summary", {"count": "3", "sum": 9.5, "quantileValues": quantiles})
    assert series.histogram is not None
    assert (series.histogram.count, series.histogram.sum) == (3, 9.5)
    assert (series.histogram.quantile(0.5), series.histogram.quantile(0.95)) == (2.5, None)


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        ("histogram", {"count": "1", "bucketCounts": ["1", "2", "3"]}),
        ("histogram", {"count": "-1", "bucketCounts": ["1"]}),
        ("histogram", {"count": "2", "bucketCounts": ["-1", "3"], "explicitBounds": [1.0]}),
        ("histogram", {"count": "9" * 400}),
        ("exponentialHistogram", {"count": "1", "scale": 10**9, "positive": {"bucketCounts": ["1"]}}),
        ("exponentialHistogram", {"count": "1", "positive": {"offset": "9" * 400, "bucketCounts": ["1"]}}),
        ("exponentialHistogram", {"count": "1", "positive": []}),
        ("exponentialHistogram", {"count": "1", "positive": {"bucketCounts": ["1"] * 5000}}),
        ("summary", {"count": {}}),
        ("gauge", {"asDouble": "NaN"}),
        ("gauge", {"asDouble": int("9" * 400)}),
        ("sum", {"asInt": "9" * 400}),
        ("sum", {"asInt": 1.5}),
    ],
)
def test_a_point_that_cannot_be_read_is_counted(recording: Any, tmp_path: Path, kind: str, point: dict[str, Any]) -> None:
    """It is left out, with a note; nothing is shown in its place."""
    assert series_of(recording, tmp_path, kind, point) == []
    notes = read_session(tmp_path / "session.jsonl").notes
    assert notes == ["Data points of metrics that could not be read, left out: 1."]


def test_a_metric_of_another_kind_is_counted(recording: Any, tmp_path: Path) -> None:
    """A kind of metric that does not exist today is said to be left out."""
    assert series_of(recording, tmp_path, "sketch", {"count": "1"}) == []
    notes = read_session(tmp_path / "session.jsonl").notes
    assert notes == ["Metrics without data points of a known kind, left out: 1."]
