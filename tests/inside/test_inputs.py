"""Inputs of modules, and weights: statistics, NaN and Inf, as they were before the module ran."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import inferspan
from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.support.attached import attached

NAN, INF = float("nan"), float("inf")


class _Net(nn.Module):
    """Writes to its input in place, and passes a mask on by name."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.part = nn.ReLU(inplace=True), _Part()

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.part(self.act(hidden), scale=hidden.double(), attention_mask=torch.full((2, 2), -INF))
        return result


class _Part(nn.Module):
    def forward(self, hidden: Tensor, scale: Tensor, attention_mask: Tensor) -> Tensor:
        return hidden * scale.float()


def _of(telemetry: Telemetry, name: str) -> dict[str, Any]:
    spans = [dict(span.attributes or {}) for span in telemetry.modules()]
    return [span for span in spans if span[semconv.MODULE_NAME] == name][-1]


def test_figures_are_of_what_the_module_was_given(telemetry: Telemetry) -> None:
    """Against float64, also where the module writes to its input; with and without figures of outputs."""
    values = torch.randn(3, 7)
    for outputs in (False, True):
        model = _Net()
        handle = telemetry.instrument(model, modules="all", input_stats=True, output_stats=outputs)
        model(values.clone())
        found = _of(telemetry, "act")
        assert found[semconv.INPUT_STATS[semconv.OUTPUT_STAT_MEAN]] == pytest.approx(values.double().mean().item(), abs=1e-6)
        assert found[semconv.INPUT_STATS[semconv.OUTPUT_STAT_STD]] == pytest.approx(values.double().std(correction=0).item(), abs=1e-6)
        assert found[semconv.INPUT_STATS[semconv.OUTPUT_STAT_ELEMENT_COUNT]] == 21
        assert (semconv.OUTPUT_STAT_MEAN in found) is outputs
        (row,) = handle.activations("act")
        assert row.inputs is not None
        assert row.inputs == row.last_inputs
        assert row.inputs.range is not None
        assert row.inputs.range[0] == pytest.approx(values.min().item())
        assert row.inputs.range[1] == pytest.approx(values.max().item())
        assert (row.outputs is not None) is outputs
        assert "; inputs: mean" in str(row)
        telemetry.check()
        handle.uninstrument()


def test_every_input_has_figures_but_masks(telemetry: Telemetry) -> None:
    """Positional and named ones in order; a mask has infinite values where all is well."""
    model = _Net()
    telemetry.instrument(model, modules="all", input_stats=True)
    model(torch.ones(2, 2))
    found = _of(telemetry, "part")
    assert found[semconv.INPUT_STATS[semconv.OUTPUTS_STATS[semconv.OUTPUT_STAT_ELEMENT_COUNT]]] == (4, 4)
    assert found[semconv.INPUT_STAT_INF_COUNT] == 0


def test_only_recorded_calls_have_figures(telemetry: Telemetry) -> None:
    """Steps without spans of modules take none, and tokens are those of a plain model."""
    model = models.llama()
    with torch.no_grad():
        plain = model.generate(models.prompt(), do_sample=False, max_new_tokens=9, min_new_tokens=9)
    handle = telemetry.instrument(model, input_stats=True)
    with torch.no_grad():
        assert torch.equal(model.generate(models.prompt(), do_sample=False, max_new_tokens=9, min_new_tokens=9), plain)
    spans = telemetry.modules()
    key = semconv.INPUT_STATS[semconv.OUTPUT_STAT_MEAN]
    assert 0 < len(spans) < 9 * 6
    assert [span.name for span in spans if key not in (span.attributes or {})] == []
    assert all(row.inputs is not None for row in handle.activations())
    assert attached(model)["hooks"] == 0
    telemetry.check()


def test_it_switches_at_run_time(telemetry: Telemetry) -> None:
    """On and off, and with other modules."""
    model = _Net()
    handle = telemetry.instrument(model, modules="all")
    key = semconv.INPUT_STATS[semconv.OUTPUT_STAT_MEAN]
    found = []
    for settings in ({}, {"input_stats": True}, {"modules": ["part"]}, {"input_stats": False}):
        handle.set(**settings)
        before = len(telemetry.modules())
        model(torch.ones(2, 2))
        spans = [dict(span.attributes or {}) for span in telemetry.modules()[before:]]
        found.append([span[semconv.MODULE_NAME] for span in spans if key in span])
    assert found == [[], ["act", "part"], ["part"], []]


def test_bad_inputs_are_counted_where_they_are_first(telemetry: Telemetry) -> None:
    """A module that hides NaN has a sound output; its inputs say what it was given."""

    class Hides(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return torch.nan_to_num(hidden)

    model = nn.Sequential(nn.Identity(), Hides(), nn.Identity())
    handle = telemetry.instrument(model, modules="all", numerics=["1", "2"], numerics_inputs=True)
    model(torch.tensor([1.0, NAN, INF, 3.0]))
    verdict = handle.numerics()
    assert verdict.first is None
    assert verdict.inputs is not None
    assert verdict.inputs.first is not None
    assert (verdict.inputs.first.module, verdict.inputs.first.nan, verdict.inputs.first.inf) == ("1", 1, 1)
    assert verdict.inputs.calls == 2
    assert str(verdict).splitlines()[0] == "numerics: no NaN or Inf in 2 calls of 2 modules; 2 of 8 values near the limit of their dtype; not looked at: none"
    assert str(verdict).splitlines()[1] == (
        "  inputs: 1 of 2 modules were given NaN or Inf; first 1, call 0 (1 NaN and 1 Inf of 4 values)"
    )
    assert _of(telemetry, "1")[semconv.INPUT_STAT_NAN_COUNT] == 1
    assert semconv.INPUT_STAT_NAN_COUNT not in _of(telemetry, "2")
    assert telemetry.only(telemetry.forwards())[semconv.NONFINITE] is True
    telemetry.check()


def test_weights_are_checked_on_demand(telemetry: Telemetry) -> None:
    """Parameters and buffers, those of one module, and what is not looked at, without any setting."""
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).to(torch.bfloat16))
    handle = telemetry.instrument(model)
    assert str(handle.check_weights()) == "weights: no NaN or Inf in 42 values of 8 tensors; not looked at: 1 integer"
    with torch.no_grad():
        model[0].weight[1] = NAN
        model[2].bias[0] = -INF
        model[2].bias[1] = torch.finfo(torch.bfloat16).max
        model[1].running_mean[2] = INF
    verdict = handle.check_weights()
    assert [(bad.name, bad.nan, bad.inf) for bad in verdict.problematic] == [("0.weight", 3, 0), ("2.bias", 0, 1), ("1.running_mean", 0, 1)]
    assert verdict.near_limit == 1
    assert str(verdict).splitlines() == [
        "weights: NaN or Inf in 3 of 8 tensors, 42 values of 8 tensors; 1 near the limit of their dtype; not looked at: 1 integer",
        "  0.weight (4x3 float32): 3 NaN, 0 Inf of 12 values",
        "  2.bias (2 bfloat16): 0 NaN, 1 Inf of 2 values",
        "  1.running_mean (4 float32): 0 NaN, 1 Inf of 4 values",
    ]
    assert [bad.name for bad in handle.check_weights("2").problematic] == ["2.bias"]
    assert handle.check_weights("*.weight").tensors == 3
    assert handle.check_weights("nothing").tensors == 0
    handle.uninstrument()
    assert handle.check_weights().tensors == 0


def test_tied_and_odd_weights(telemetry: Telemetry) -> None:
    """Shared parameters count once; meta and sparse ones are named and counted."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    model[1].weight = model[0].weight
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    model.register_buffer("freed", freed := torch.ones(8))
    freed.untyped_storage().resize_(0)
    verdict = inferspan.instrument(model, enabled=True, session_file=None).check_weights()
    assert (verdict.tensors, verdict.not_looked_at) == (3, {"meta": 2, "sparse": 1, "without memory": 1})
    inferspan.uninstrument(model)


def _tied() -> Any:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    with torch.no_grad():
        model[0].weight[0] = NAN
    return model


def test_tied_weights_are_found_by_either_path(telemetry: Telemetry) -> None:
    """Also by that of the module which has them second."""
    model = _tied()
    assert [bad.name for bad in telemetry.instrument(model).check_weights("1").problematic] == ["1.weight"]


def test_tied_weights_count_once(telemetry: Telemetry) -> None:
    """Where both paths match."""
    model = _tied()
    assert telemetry.instrument(model).check_weights().tensors == 3


def test_a_second_path_of_tied_weights_is_no_mistake(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """So nothing is said of it."""
    model = _tied()
    telemetry.instrument(model).check_weights("1.weight")
    assert "matches" not in caplog.text
