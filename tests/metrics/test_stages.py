"""Metrics of stages of the program: kinds, units, labels, and a meter that fails."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.trace import INVALID_SPAN

from inferspan import semconv
from inferspan.metrics.stages import StageMetrics


def _collected(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    return {metric.name: metric for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics for metric in scope.metrics}


def test_kinds_units_and_buckets() -> None:
    """The instruments have the kind, unit, buckets and labels of the table; the memory is a sum that may fall."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics = StageMetrics(lambda: provider.get_meter("test"))
    metrics.ended("load", 0.5, 100, INVALID_SPAN)
    metrics.ended("load", 1.5, -300, INVALID_SPAN)
    metrics.ended("load", 0.25, None, INVALID_SPAN)
    found = _collected(reader)
    assert found.keys() == {semconv.M_PROGRAM_STAGE_DURATION, semconv.M_PROGRAM_STAGE_MEMORY}
    for name, metric in found.items():
        assert metric.unit == semconv.METRICS[name].unit
        assert dict(metric.data.data_points[0].attributes) == {semconv.STAGE_NAME: "load"}
    (durations,) = found[semconv.M_PROGRAM_STAGE_DURATION].data.data_points
    assert (durations.count, durations.sum) == (3, 2.25)
    assert tuple(durations.explicit_bounds) == semconv.METRICS[semconv.M_PROGRAM_STAGE_DURATION].buckets
    memory = found[semconv.M_PROGRAM_STAGE_MEMORY].data
    assert memory.is_monotonic is False
    assert memory.data_points[0].value == -200


def test_a_meter_that_fails(contained: list[Any]) -> None:
    """A meter that fails costs these metrics, and is asked again at the next stage."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    asked = []

    def meter() -> Any:
        asked.append(True)
        if len(asked) == 1:
            raise OSError("theirs")
        return provider.get_meter("test")

    metrics = StageMetrics(meter)
    metrics.ended("load", 0.5, None, INVALID_SPAN)
    assert [error.place for error in contained] == ["metrics of stages"]
    contained.clear()
    metrics.ended("load", 0.5, None, INVALID_SPAN)
    assert _collected(reader)[semconv.M_PROGRAM_STAGE_DURATION].data.data_points[0].count == 1


@pytest.mark.parametrize("count", [50, 51])
def test_names_are_bounded(count: int) -> None:
    """The first 50 names are labels; others are counted together."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics = StageMetrics(lambda: provider.get_meter("test"))
    for number in range(count):
        metrics.ended(f"part {number}", 0.5, None, INVALID_SPAN)
    names = {point.attributes[semconv.STAGE_NAME] for point in _collected(reader)[semconv.M_PROGRAM_STAGE_DURATION].data.data_points}
    assert (semconv.OTHER_STAGE in names) == (count > 50)
