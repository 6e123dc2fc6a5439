"""The time from the start of a process to its first request."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from inferspan import semconv
from inferspan.metrics.first_request import FirstRequest, process_start
from inferspan.metrics.requests import RequestMetrics
from inferspan.records import ModelInfo, RequestStart
from inferspan.settings import Settings


def test_once_a_process() -> None:
    """The first request of each process has it, that of a forked child too."""
    pids = [7, 7, 8, 8]
    first = FirstRequest(began=lambda: 100.0, pid=lambda: pids.pop(0))
    assert [first.take(130_500_000_000) for _ in range(4)] == [30.5, None, 30.5, None]


@pytest.mark.parametrize("began", [None, 200.0])
def test_not_known(began: float | None) -> None:
    """It is absent where the system does not say when the process began, or where its clock was set since."""
    assert FirstRequest(began=lambda: began, pid=lambda: 7).take(130_000_000_000) is None


def test_start_of_this_process() -> None:
    """This process began before now, and a test run takes less than a day."""
    import time

    began = process_start()
    assert began is not None
    assert 0 < time.time() - began < 86_400


def test_metric() -> None:
    """It is a value of one histogram, labelled with the model of that request."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics = RequestMetrics(lambda: provider.get_meter("test"), Settings(), FirstRequest(lambda: 100.0, lambda: 7))
    for name in ("first", "second"):
        metrics.started(RequestStart("forward", None, ModelInfo(name, "huggingface", "Model"), 112_000_000_000, False, {}))
    data: Any = reader.get_metrics_data()
    (metric,) = [one for resource in data.resource_metrics for scope in resource.scope_metrics for one in scope.metrics]
    (point,) = metric.data.data_points
    assert metric.name == semconv.M_FIRST_REQUEST
    assert (point.count, point.sum) == (1, 12.0)
    assert point.attributes == {semconv.REQUEST_MODEL: "first"}
