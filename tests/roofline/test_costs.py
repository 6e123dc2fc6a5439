"""Classes of modules that the program adds to the table, and models of which nothing is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import inferspan
from inferspan import semconv
from inferspan.roofline import costs
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.roofline.tiny import MODELS


class Outer(nn.Module):
    """A product whose class is not in the table."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones(4, 8))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of rows of 4 numbers rows of 8."""
        return hidden @ self.factors


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registrations end with the test."""
    monkeypatch.setattr(costs, "_registered", {})
    yield
    costs._rules.clear()


def _attributes(telemetry: Telemetry, model: Any, *inputs: Any, **settings: Any) -> dict[str, Any]:
    telemetry.instrument(model, **settings)
    with torch.no_grad():
        model(*inputs)
    telemetry.check()
    return dict(telemetry.roots()[0].attributes or {})


def test_unknown_class_has_no_figures(telemetry: Telemetry) -> None:
    """A sum without one of its parts would be wrong, so there is none."""
    found = _attributes(telemetry, nn.Sequential(Outer(), nn.Linear(8, 2)), torch.ones(3, 4))
    assert semconv.DEVICE_FLOPS not in found
    assert semconv.DEVICE_BYTES not in found


def test_registered_class(telemetry: Telemetry, registered: None) -> None:
    """What the program says of a class counts in the sum."""
    inferspan.register_cost(Outer, lambda module: inferspan.Cost(flops=2 * module.factors.numel(), weights=128, moved=12))
    found = _attributes(telemetry, nn.Sequential(Outer(), nn.Linear(8, 2)), torch.ones(3, 4))
    assert found[semconv.DEVICE_FLOPS] == 3 * (2 * 32 + 2 * 16)
    assert found[semconv.DEVICE_BYTES] == 128 + 3 * 12 * 4 + (16 + 2) * 4 + 3 * 10 * 4


def test_subclass_of_a_registered_class(telemetry: Telemetry, registered: None) -> None:
    """A subclass is meant as well."""
    inferspan.register_cost(Outer, lambda module: inferspan.Cost(flops=7))
    found = _attributes(telemetry, nn.Sequential(type("Inner", (Outer,), {})()), torch.ones(3, 4))
    assert found[semconv.DEVICE_FLOPS] == 21


def test_registered_class_before_the_table(telemetry: Telemetry, registered: None) -> None:
    """The program may correct the table."""
    inferspan.register_cost(nn.Linear, lambda module: inferspan.Cost(flops=1))
    found = _attributes(telemetry, nn.Sequential(nn.Linear(4, 4)), torch.ones(3, 4))
    assert found[semconv.DEVICE_FLOPS] == 3


def test_registered_function_that_fails(telemetry: Telemetry, registered: None, contained: list[Any]) -> None:
    """The program goes on, without figures."""
    inferspan.register_cost(Outer, lambda module: module.missing)
    telemetry.instrument(model := nn.Sequential(Outer()))
    assert model(torch.ones(3, 4)).shape == (3, 8)
    telemetry.check(complaints=True)
    assert {error.place for error in contained} == {"roofline"}
    contained.clear()
    assert semconv.DEVICE_FLOPS not in (telemetry.roots()[0].attributes or {})


@pytest.mark.parametrize("arguments", [("Linear", len), (nn.Linear, "2 * n")])
def test_wrong_registration(arguments: Any) -> None:
    """Both arguments are checked at once."""
    with pytest.raises(TypeError, match="register_cost"):
        inferspan.register_cost(*arguments)


def test_switched_off(telemetry: Telemetry) -> None:
    """Without the setting nothing is added."""
    found = _attributes(telemetry, models.llama(), models.prompt(1, 6), roofline="none")
    assert [key for key in found if key.startswith("inferspan.device.") and not key.endswith((".id", ".type"))] == []


def test_default_leaves_steps_and_modules_alone(telemetry: Telemetry) -> None:
    """By default requests and phases have figures, steps and modules none."""
    model = models.llama()
    telemetry.instrument(model)
    model.generate(models.prompt(1, 6), max_new_tokens=3, min_new_tokens=3)
    telemetry.check()
    having = {span.name for span in telemetry.spans() if semconv.DEVICE_FLOPS in (span.attributes or {})}
    assert having == {"text_completion", "prefill", "decode"}


def test_metrics_of_a_request(telemetry: Telemetry) -> None:
    """Operations and bytes of each phase are counted, and how near the request came to its ceilings."""
    model = models.llama()
    telemetry.instrument(model, peaks={"flops": 1e12, "bandwidth": 1e11})
    model.generate(models.prompt(1, 6), max_new_tokens=3, min_new_tokens=3)
    spans = {span.name: span.attributes or {} for span in telemetry.spans()}
    for phase in ("prefill", "decode"):
        assert telemetry.metric_sum(semconv.M_DEVICE_FLOPS, **{semconv.PHASE: phase}) == spans[phase][semconv.DEVICE_FLOPS]
        assert telemetry.metric_sum(semconv.M_DEVICE_BYTES, **{semconv.PHASE: phase}) == spans[phase][semconv.DEVICE_BYTES]
    points = telemetry.metrics()
    assert len(points[semconv.M_DEVICE_PEAK_SHARE]) == 2
    assert len(points[semconv.M_UTILIZATION_FLOPS]) == 1
    assert len(points[semconv.M_UTILIZATION_BANDWIDTH]) == 1


def test_requests_without_spans_count(telemetry: Telemetry) -> None:
    """Metrics do not depend on what becomes a span: half of the steps have none here."""
    model = models.llama()
    telemetry.instrument(model, steps="none", modules="none")
    model.generate(models.prompt(1, 6), max_new_tokens=9, min_new_tokens=9)
    every = telemetry.metric_sum(semconv.M_DEVICE_FLOPS, **{semconv.PHASE: "decode"})
    telemetry.check()
    assert every == (telemetry.spans("decode")[0].attributes or {})[semconv.DEVICE_FLOPS]
    assert every > 0


def test_outputs_are_the_same() -> None:
    """The figures change nothing of what the model computes."""
    model, telemetry = MODELS["llama"](), Telemetry()
    ids = models.prompt(2, 5)
    before = model.generate(ids, max_new_tokens=4, do_sample=False)
    telemetry.instrument(model, roofline="all")
    after = model.generate(ids, max_new_tokens=4, do_sample=False)
    telemetry.close()
    assert torch.equal(before, after)


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_weights_that_torch_has_packed_to_int8(telemetry: Telemetry) -> None:
    """A model whose linear modules are dynamically quantized does the operations of the model that it was, with a quarter of their bytes."""
    quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4), nn.Linear(4, 2)), {nn.Linear})
    found = _attributes(telemetry, quantized, torch.ones(3, 8))
    assert found[semconv.DEVICE_FLOPS] == 3 * 2 * (8 * 4 + 4 * 2)
    assert found[semconv.DEVICE_BYTES] == (8 + 8) * 4 + 8 * 4 + 4 * 2 + 3 * (8 + 4 + 4 + 2) * 4


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_packed_module_that_is_not_linear(telemetry: Telemetry) -> None:
    """Its weights are no parameters, so nothing says what it costs."""
    quantized = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LSTM(8, 4)), {nn.LSTM})
    assert semconv.DEVICE_FLOPS not in _attributes(telemetry, quantized, torch.ones(5, 3, 8))


def _complained(telemetry: Telemetry, model: Any) -> list[dict[str, Any]]:
    telemetry.instrument(model, roofline="all", modules="all")
    model(torch.ones(3, 4))
    telemetry.check(complaints=True)
    return [dict(span.attributes or {}) for span in telemetry.spans()]


@pytest.mark.parametrize(
    "cost",
    [5, inferspan.Cost(flops=-1), inferspan.Cost(flops=10**30), inferspan.Cost(flops=float("nan")), inferspan.Cost(flops=1, over="x")],  # type: ignore[arg-type]
    ids=["no cost", "negative", "huge", "not a number", "unknown axes"],
)
def test_registered_function_with_a_wrong_result(telemetry: Telemetry, registered: None, contained: list[Any], cost: Any) -> None:
    """It is told of, and nothing wrong reaches spans and metrics."""
    inferspan.register_cost(Outer, lambda module: cost)
    found = _complained(telemetry, nn.Sequential(Outer()))
    assert {error.place for error in contained} == {"roofline"}
    contained.clear()
    assert not any(semconv.DEVICE_FLOPS in attributes for attributes in found)
    assert semconv.M_DEVICE_FLOPS not in telemetry.metrics()


def test_number_that_no_attribute_holds(telemetry: Telemetry, registered: None) -> None:
    """It is left out of all spans, and the metric goes on beyond 64 bits."""
    inferspan.register_cost(Outer, lambda module: inferspan.Cost(flops=2**62))
    telemetry.instrument(model := nn.Sequential(Outer()), roofline="all", modules="all")
    model(torch.ones(3, 4))
    telemetry.check()
    assert not any(semconv.DEVICE_FLOPS in (span.attributes or {}) for span in telemetry.spans())
    total = telemetry.metric_sum(semconv.M_DEVICE_FLOPS)
    assert isinstance(total, float)
    assert total == 3 * 2.0**62
