"""Figures of gradients whose squares are no numbers of their dtype, against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferspan import semconv
from inferspan.capture.gradients.figures import GradientFigures
from inferspan.capture.gradients.statistics import GradientRows
from tests.cases.telemetry import Telemetry

MIXED = torch.tensor([1.0, -2.0, 3.0, 0.5, -0.25, 8.0])


class _Same(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * 1.0


def _backward(telemetry: Telemetry, *gradients: Tensor) -> Any:
    """The handle of a model whose only module got these gradients of its output, one after the other."""
    model = nn.Sequential(_Same())
    handle = telemetry.instrument(model, gradients="all")
    for gradient in gradients:
        model(torch.zeros_like(gradient, requires_grad=True)).backward(gradient)
    telemetry.check()
    return handle


def _outputs(handle: Any) -> GradientFigures:
    found = next(row for row in handle.gradients() if row.module == "0").outputs
    assert found is not None
    return found


def _exact(values: Tensor) -> dict[str, float]:
    """Mean, deviation and norm; scaled, because those of float64 values may be too large for float64 too."""
    scale = float(values.abs().amax())
    scaled = values.double() / scale
    root = scaled.pow(2).mean().sqrt().item() * math.sqrt(scaled.numel())
    return {"mean": scaled.mean().item() * scale, "std": scaled.std(correction=0).item() * scale, "norm": root * scale}


@pytest.mark.parametrize(
    "gradient",
    [
        MIXED * 1e30, MIXED * 1e37, MIXED * 1e-30, (MIXED * 1e36).bfloat16(), (MIXED * 1e-37).bfloat16(), MIXED.double() * 1e200,
        MIXED.double() * 1e307, MIXED.double() * 1e-200, torch.cat([MIXED * 1e30, torch.tensor([3e38, -3e38])]), MIXED * 1e-3 + 1000,
    ],
    ids=["large", "largest", "small", "bfloat16", "small bfloat16", "float64", "largest float64", "small float64", "opposite", "far"],
)  # fmt: skip
@pytest.mark.parametrize("figure", ["mean", "std", "norm"])
def test_figures_of_any_size(telemetry: Telemetry, gradient: Tensor, figure: str) -> None:
    """Squares of float32 values over 1e19, or under 1e-22, are none."""
    found = _outputs(_backward(telemetry, gradient))
    assert getattr(found, figure) == pytest.approx(_exact(gradient)[figure], rel=1e-5)


@pytest.mark.parametrize("value", [1e19, 1e30, 3.4e38, 0.1, 1e-30, 0.0])
def test_equal_gradients_do_not_deviate(telemetry: Telemetry, value: float) -> None:
    """Not by what the mean is rounded."""
    assert _outputs(_backward(telemetry, torch.full((37, 41), value))).std == 0.0


def test_figures_of_any_size_are_attributes(telemetry: Telemetry) -> None:
    """All of them are on the span of the backward call."""
    _backward(telemetry, torch.full((3, 4), 1e30))
    (span,) = [span for span in telemetry.modules() if (span.attributes or {})[semconv.PHASE] == semconv.SPAN_BACKWARD]
    assert set(semconv.GRAD_OUTPUTS.values()) <= set(span.attributes or {})


def test_figures_of_any_size_are_printed(telemetry: Telemetry) -> None:
    """Finite values are not none."""
    assert "outputs norm 3.46e+30, std 0.00e+00" in str(_backward(telemetry, torch.full((3, 4), 1e30)).gradients())


def test_calls_of_very_different_size(telemetry: Telemetry) -> None:
    """Their common deviation is finite."""
    found = _outputs(_backward(telemetry, torch.full((5,), 3e38), torch.full((5,), 1e25)))
    assert found.std == pytest.approx(1.5e38, rel=1e-5)


def test_a_norm_that_is_no_number_leaves_the_others(telemetry: Telemetry) -> None:
    """The norm of many values near the largest float64 is larger than that; the rest of both calls stands."""
    found = _outputs(_backward(telemetry, torch.full((9,), 1.5e308, dtype=torch.float64), torch.ones(9, dtype=torch.float64)))
    assert found.norm is None
    assert found.std == pytest.approx(0.75e308)


def test_an_unknown_norm_is_not_printed(telemetry: Telemetry) -> None:
    """The deviation is."""
    text = str(_backward(telemetry, torch.full((9,), 1.5e308, dtype=torch.float64)).gradients())
    assert "0 (_Same): outputs std 0.00e+00;" in text


@pytest.mark.parametrize("kind", ["finite", "with NaN"])
@pytest.mark.parametrize("size", [1e30, 1e-30, 1.0])
def test_rows_as_on_a_device(monkeypatch: pytest.MonkeyPatch, size: float, kind: str) -> None:
    """What launches only finds the same as what the host computes."""
    gradient = torch.randn(40, 30, generator=torch.Generator().manual_seed(0)) * size + size
    finite = gradient.flatten()
    if kind == "with NaN":
        gradient[0, 0], gradient[0, 1] = math.nan, math.inf
        finite = finite[2:].clone()
    rows = GradientRows()
    monkeypatch.setattr("inferspan.capture.gradients.statistics._on_cpu", lambda piece: _launched(piece))
    spot = rows.add(gradient)
    assert spot is not None
    rows.send()
    rows.read()
    found = rows.figures([spot])
    assert found is not None
    assert {name: getattr(found, name) for name in ("mean", "std", "norm")} == pytest.approx(_exact(finite), rel=1e-5)


def _launched(piece: Tensor) -> list[float]:
    from inferspan.capture.gradients.statistics import _reduced

    return _reduced(piece).tolist()
