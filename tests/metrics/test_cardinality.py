"""How many series the metrics of workers are: bounded for one, whatever its requests are, and linear in their number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

import inferspan
from inferspan import semconv
from tests.cases import models

WORKERS = 500
MOST = {"default": 400, "production": 350}
"""Of one process without a GPU; docs/services.md has the figures."""
_OF_THE_PROCESS = semconv.M_ERRORS
"""Has a series for each place that has failed since the process began: of the tests that ran before these, in the same process."""


def _series(reader: InMemoryMetricReader) -> Iterator[tuple[Any, ...]]:
    """The series that Prometheus makes of what a worker sends: each bucket, sum and count of a histogram is one."""
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        instance = resource.resource.attributes["service.instance.id"]
        for scope in resource.scope_metrics:
            for metric in (one for one in scope.metrics if one.name != _OF_THE_PROCESS):
                for point in metric.data.data_points:
                    labels = tuple(sorted((point.attributes or {}).items()))
                    parts = [*range(len(point.bucket_counts)), "sum", "count"] if isinstance(point, HistogramDataPoint) else [""]
                    yield from ((instance, metric.name, labels, part) for part in parts)


def _provider(instance: str) -> tuple[MeterProvider, InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    return MeterProvider([reader], Resource({"service.instance.id": instance}), shutdown_on_exit=False), reader


def _work(model: Any, requests: int) -> None:
    """Requests of different users, lengths and prompts, one that fails, and a plain pass."""
    with torch.no_grad():
        for number in range(requests):
            with inferspan.context(conversation_id=f"c-{number}", user_id=f"u-{number}"):
                prompt = models.prompt()[:, : 2 + number % 2]
                model.generate(prompt, max_new_tokens=2 + number % 3, min_new_tokens=2, do_sample=False)
        with pytest.raises(TypeError):
            model.generate(models.prompt(), max_new_tokens=3, logits_processor=3)
        model(models.prompt())


@pytest.mark.parametrize("preset", MOST)
def test_series_of_a_worker_do_not_depend_on_its_requests(preset: str) -> None:
    """Twelve further users, prompts and lengths add no series, and all of them are below the figure of the guide."""
    model = models.llama()
    meters, reader = _provider("one")
    options: dict[str, Any] = {"tracer_provider": TracerProvider(), "meter_provider": meters, "preset": preset, "nvml": False}
    with inferspan.instrument(model, **options, host=False, allocator=False):
        _work(model, 4)
        inferspan.flush()
        few = set(_series(reader))
        _work(model, 12)
        inferspan.flush()
        many = set(_series(reader))
    assert many == few
    assert 100 < len(many) < MOST[preset]


def test_series_of_500_workers_are_500_times_those_of_one() -> None:
    """Each with its own instance; nothing but the instance tells their series apart."""
    model = models.llama()
    found: set[tuple[Any, ...]] = set()
    for number in range(WORKERS):
        meters, reader = _provider(f"worker-{number}")
        options: dict[str, Any] = {"tracer_provider": TracerProvider(), "meter_provider": meters, "nvml": False, "host": False}
        with inferspan.instrument(model, **options, allocator=False, modules="none", logits=False), torch.no_grad():
            model(models.prompt())
        found |= set(_series(reader))
    one = {series[1:] for series in found}
    assert len(found) == WORKERS * len(one)
    assert len({series[0] for series in found}) == WORKERS
