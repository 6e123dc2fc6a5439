"""Histograms of what modules return, by layer and class."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from inferspan import semconv
from inferspan.metrics.activations import MOST_SERIES, ActivationLabels
from inferspan.records import ModuleInfo
from tests.cases import models
from tests.cases.conftest import *  # noqa: F403
from tests.cases.telemetry import Telemetry

NAMES = (semconv.M_ACTIVATION_STD, semconv.M_ACTIVATION_ABS_MAX, semconv.M_ACTIVATION_SPARSITY)


def _points(telemetry: Telemetry, name: str) -> dict[tuple[Any, Any], Any]:
    telemetry.modules()  # hands everything over
    data: Any = telemetry.reader.get_metrics_data()
    metrics = [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics]
    points = [point for metric in metrics if metric.name == name for point in metric.data.data_points]
    return {(point.attributes[semconv.MODULE_TYPE], point.attributes.get(semconv.MODULE_LAYER_INDEX)): point for point in points}


def test_a_series_for_each_layer_and_class(telemetry: Telemetry) -> None:
    """The values are those on the spans of the calls."""
    model = models.llama()
    telemetry.instrument(model, output_stats=True, activation_metric=True, every_step=True)
    with torch.no_grad():
        model.generate(models.prompt(), do_sample=False, max_new_tokens=3, min_new_tokens=3)
    for name, key in zip(NAMES, ("std", "abs_max", "sparsity"), strict=True):
        points = _points(telemetry, name)
        assert set(points) == {(kind, layer) for kind in ("LlamaDecoderLayer", "LlamaAttention", "LlamaMLP") for layer in (0, 1)}
        for (kind, layer), point in points.items():
            spans: list[dict[str, Any]] = [dict(span.attributes or {}) for span in telemetry.modules()]
            of = [span for span in spans if (span[semconv.MODULE_TYPE], span[semconv.MODULE_LAYER_INDEX]) == (kind, layer)]
            assert point.count == len(of) == 3
            assert point.sum == pytest.approx(sum(span[f"inferspan.output.stat.{key}"] for span in of))
    telemetry.check()


def test_there_is_none_unless_it_is_asked_for(telemetry: Telemetry) -> None:
    """Statistics alone make no metric."""
    model = nn.Sequential(nn.Linear(2, 2))
    telemetry.instrument(model, modules="all", output_stats=True)
    model(torch.ones(1, 2))
    assert [name for name in NAMES if _points(telemetry, name)] == []


def test_the_number_of_series_is_bounded() -> None:
    """Layers and classes beyond it share one; those that came first keep theirs."""
    labels = ActivationLabels()
    found = [labels.of("m", ModuleInfo(f"layers.{index}", "Layer", index, "layer")) for index in range(2 * MOST_SERIES)]
    assert len({tuple(one.items()) for one in found}) == MOST_SERIES + 1
    assert found[-1] == {semconv.MODEL_NAME: "m", semconv.MODULE_TYPE: "other"}
    assert labels.of("m", ModuleInfo("layers.3", "Layer", 3, "layer")) == found[3]
