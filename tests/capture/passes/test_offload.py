"""Weights that accelerate moves in for each call: the time of it stands on the request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.matrix.wrappers import offloaded, on_disk

accelerate: Any = pytest.importorskip("accelerate")
DELAY = 0.005


class Slow(Mapping[str, Any]):
    """Weights that take their time to come."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = {name: value.clone() for name, value in weights.items()}
        self.taken = 0

    def __getitem__(self, name: str) -> Any:
        self.taken += 1
        time.sleep(DELAY)
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _slow(model: nn.Module) -> tuple[Any, Slow]:
    weights = Slow(model.state_dict())
    accelerate.hooks.attach_align_device_hook(model, execution_device=torch.device("cpu"), offload=True, weights_map=weights)
    return model, weights


def test_time_of_a_pass(telemetry: Telemetry) -> None:
    """The time is at least that of fetching the weights, and no more than that of the request."""
    model, weights = _slow(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval())
    weights.taken = 0
    model(torch.ones(2, 4))
    alone = weights.taken
    telemetry.instrument(model)
    weights.taken = 0
    model(torch.ones(2, 4))
    root = telemetry.roots()[0]
    seconds = telemetry.only(telemetry.roots())[semconv.OFFLOAD_TIME]
    assert weights.taken == alone >= 4
    assert seconds >= weights.taken * DELAY
    assert seconds <= ((root.end_time or 0) - (root.start_time or 0)) / 1e9


def test_time_of_a_generation_is_that_of_all_steps(telemetry: Telemetry) -> None:
    """A generation adds up its steps."""
    model, weights = _slow(models.llama())
    telemetry.instrument(model)
    weights.taken = 0
    model.generate(models.prompt(1, 4), max_new_tokens=2, min_new_tokens=2, do_sample=False)
    telemetry.check()
    assert weights.taken > 0
    assert telemetry.only(telemetry.requests())[semconv.OFFLOAD_TIME] >= weights.taken * DELAY


@pytest.mark.parametrize("offload", [offloaded, on_disk])
def test_both_kinds_of_offloading(telemetry: Telemetry, offload: Any) -> None:
    """From memory and from disk."""
    model = offload(models.llama())
    telemetry.instrument(model)
    model(input_ids=models.prompt(1, 4))
    assert telemetry.only(telemetry.roots())[semconv.OFFLOAD_TIME] > 0


def test_nothing_is_said_without_offloading(telemetry: Telemetry) -> None:
    """A model in place has no such time, not zero, also where accelerate has its hooks on it."""
    model = accelerate.dispatch_model(models.llama(), {"": "cpu"}, force_hooks=True)
    telemetry.instrument(model)
    model(input_ids=models.prompt(1, 4))
    assert semconv.OFFLOAD_TIME not in telemetry.only(telemetry.roots())


def test_hooks_are_put_back(telemetry: Telemetry) -> None:
    """After ``uninstrument()`` accelerate's methods are as they were."""
    kind = accelerate.hooks.AlignDevicesHook
    before = kind.pre_forward, kind.post_forward
    telemetry.instrument(models.llama()).uninstrument()
    assert (kind.pre_forward, kind.post_forward) == before
