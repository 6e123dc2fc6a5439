"""Samples that forward takes by position are traced and replayed as all others."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import nn

from inferspan import graph

pytestmark = pytest.mark.filterwarnings("ignore")
PIPELINES = ["sequential", "layer", "basic", "auto"]
A, B, C = torch.rand(3, 4), torch.rand(3, 4), torch.rand(3, 4)


class _Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)


class Many(_Base):
    """Takes any number of tensors."""

    def forward(self, *xs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(xs[0] - sum(2 * x for x in xs[1:]))
        return result


class Before(_Base):
    """Takes any number of tensors after one with a default, and one by keyword."""

    def forward(self, x: torch.Tensor, scale: float = 2.0, *xs: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        result: torch.Tensor = self.layer(x * scale - sum(2 * y for y in xs) + (0 if bias is None else bias))
        return result


class Positional(_Base):
    """Takes two tensors by position alone."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, /, scale: float = 2.0) -> torch.Tensor:
        result: torch.Tensor = self.layer(x - y * scale)
        return result


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_any_number_of_tensors_is_one_tuple(pipeline: str) -> None:
    """``*xs`` is the input ``xs``, of which the number is the sample's and sizes are free."""
    model = Many()
    traced = graph.trace(model, (A, B, C), ["layer"], pipeline=pipeline)
    assert traced.pipeline == (pipeline if pipeline != "auto" else "sequential")
    others = tuple(torch.rand(5, 4) for _ in range(3))
    with torch.no_grad():
        assert torch.equal(traced.run(xs=others), model(*others))
    with pytest.raises(graph.TraceError, match="xs has 2 entries, and 3 in the sample"):
        traced.run(xs=(A, B))


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_parameters_before_and_after_any_number_of_tensors(pipeline: str) -> None:
    """Those before go by position as well, with their default where the sample lacks them."""
    model = Before()
    traced = graph.trace(model, {"x": A, "xs": (B, C), "bias": B}, ["layer"], pipeline=pipeline)
    with torch.no_grad():
        assert torch.equal(traced.run(x=C, xs=(A, B), bias=A), model(C, 2.0, A, B, bias=A))


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("sample", [(A, B), {"x": A, "y": B}, (A, B, 3.0)], ids=["tuple", "mapping", "with a number"])
def test_parameters_by_position_alone(sample: Any, pipeline: str) -> None:
    """They are inputs by name for trace and replay."""
    model = Positional()
    traced = graph.trace(model, sample, ["layer"], pipeline=pipeline)
    scale = {"scale": 3.0} if len(sample) == 3 else {}
    with torch.no_grad():
        assert torch.equal(traced.run(x=C, y=A, **scale), model(C, A, **scale))


@pytest.mark.parametrize("pipeline", ["layer", "basic", "auto"])
def test_a_parameter_by_position_that_is_missing_is_named(pipeline: str) -> None:
    """The message names it and not Python's call."""
    with pytest.raises(graph.TraceError, match="x is missing: y goes by position and comes after it"):
        graph.trace(Positional(), {"y": A}, ["layer"], pipeline=pipeline)


@pytest.mark.parametrize("pipeline", ["basic", "auto"])
@pytest.mark.parametrize(("sample", "message"), [({"x": A}, "missing a required argument: 'y'"), ({"x": A, "y": B, "z": C}, "unexpected keyword")])
def test_a_sample_that_forward_does_not_take_is_no_graph(sample: dict[str, torch.Tensor], message: str, pipeline: str) -> None:
    """It is refused by the last pipeline as well, before it runs the model."""
    with pytest.raises(graph.TraceError, match=message):
        graph.trace(Positional(), sample, ["layer"], pipeline=pipeline)


def test_any_number_of_tensors_is_no_single_tensor() -> None:
    """A mapping has all that goes to ``*xs`` as a tuple."""
    with pytest.raises(TypeError, match=r"xs is a tuple of all that forward takes by \*xs, not Tensor"):
        graph.trace(Many(), {"xs": A}, ["layer"])


def opaque(x: torch.Tensor) -> torch.Tensor:
    """A function that no tracer looks into."""
    return torch.from_numpy(numpy.sin(x.detach().numpy()))


torch.fx.wrap("opaque")


class OpaquePositional(nn.Module):
    """Takes its tensor by position alone, and calls a wrapped function."""

    def forward(self, x: torch.Tensor, scale: float = 2.0, /) -> torch.Tensor:
        return opaque(x) * scale


def test_torch_fx_traces_parameters_by_position_alone() -> None:
    """By name, as torch.export."""
    traced = graph.trace(OpaquePositional(), (A,), [])
    assert traced.tracer == "torch.fx"
    assert torch.equal(traced.run(x=B), OpaquePositional()(B))
