"""Requests of metrics below the receivers' limits, where the exporter does not cut them itself."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult

from inferspan.export.older_exporters import in_parts


def collected(points: dict[str, int]) -> Any:
    """What a reader hands to its exporter: a counter of each name, in a scope of its own, with this many data points."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    for name, count in points.items():
        counter = provider.get_meter(name).create_counter(name)
        for number in range(count):
            counter.add(1, {"number": number})
    data = reader.get_metrics_data()
    provider.shutdown()
    return data


class Requests:
    """Keeps number of points and names of each request, and refuses those whose numbers it is told."""

    def __init__(self, refuse: tuple[int, ...] = ()) -> None:
        self.kept: list[dict[str, int]] = []
        self._refuse = refuse

    def export(self, data: Any, timeout_millis: float) -> MetricExportResult:
        """Take one request."""
        metrics = [m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics]
        scopes = [scope.scope.name for resource in data.resource_metrics for scope in resource.scope_metrics]
        assert scopes == [metric.name for metric in metrics]
        assert timeout_millis == 5.0
        self.kept.append({metric.name: len(metric.data.data_points) for metric in metrics})
        return MetricExportResult.FAILURE if len(self.kept) - 1 in self._refuse else MetricExportResult.SUCCESS


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ({"a": 3}, [{"a": 3}]),
        ({"a": 2, "b": 2}, [{"a": 2, "b": 2}]),
        ({"a": 2, "b": 3, "c": 1}, [{"a": 2}, {"b": 3, "c": 1}]),
        ({"a": 9, "b": 1}, [{"a": 9}, {"b": 1}]),
    ],
)
def test_requests_have_at_most_so_many_points(points: dict[str, int], expected: list[dict[str, int]]) -> None:
    """Metrics are kept whole and in order, each below its own resource and scope; one that is too large goes alone."""
    requests = Requests()
    assert in_parts(requests.export, 4)(collected(points), timeout_millis=5.0) is MetricExportResult.SUCCESS
    assert requests.kept == expected


def test_all_parts_are_sent_after_a_failure() -> None:
    """A part that is refused makes the whole a failure, and the others are sent."""
    requests = Requests(refuse=(0,))
    assert in_parts(requests.export, 1)(collected({"a": 1, "b": 1}), timeout_millis=5.0) is MetricExportResult.FAILURE
    assert requests.kept == [{"a": 1}, {"b": 1}]
