"""Inputs of a replay reach the graph by their names and keys, and what the graph does not hold for is refused."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from inferspan import graph
from tests.graph import models

pytestmark = pytest.mark.filterwarnings("ignore")
PIPELINES = ["sequential", "layer", "basic"]
A, B = torch.rand(3, 4), torch.rand(3, 4)


class Nested(nn.Module):
    """Takes its tensors in a dictionary, where each has another part in the result, or in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, d: Any) -> torch.Tensor:
        x, y = (d["x"], d["y"]) if isinstance(d, dict) else d
        result: torch.Tensor = self.layer(x - 2 * y)
        return result


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_entries_of_a_dictionary_go_by_key(pipeline: str) -> None:
    """Their order does not matter."""
    model = Nested()
    traced = graph.trace(model, {"d": {"x": A, "y": B}}, ["layer"], pipeline=pipeline)
    with torch.no_grad():
        assert torch.equal(traced.run(d={"y": B, "x": A}), model({"x": A, "y": B}))


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"z": A, "w": B}, "d has the keys 'z', 'w', and 'x', 'y' in the sample"),
        ({"x": A}, "d has the keys 'x', and 'x', 'y' in the sample"),
        ([A, B], "d is a list, and was a dict in the sample"),
        (OrderedDict(x=A, y=B), "d is a OrderedDict, and was a dict in the sample"),
        (A, "d is a Tensor, and was a dict in the sample"),
        ({"x": A, "y": [B]}, r"d\['y'\] is a list, and was a tensor in the sample"),
        ({"x": A, "y": B[:, 0]}, r"d\['y'\] has 1 dimensions, and 2 in the sample"),
    ],
)
def test_another_structure_is_refused(given: Any, message: str, pipeline: str) -> None:
    """Other keys, other containers and other values in them are named with their place."""
    traced = graph.trace(Nested(), {"d": {"x": A, "y": B}}, ["layer"], pipeline=pipeline)
    with pytest.raises(graph.TraceError, match=message):
        traced.run(d=given)


@pytest.mark.parametrize(
    ("given", "message"),
    [((A, B), "d is a tuple, and was a list"), ([A], "d has 1 entries, and 2 in the sample"), ({"x": A, "y": B}, "is a dict")],
)
def test_sequences_keep_their_class_and_length(given: Any, message: str) -> None:
    """A tuple is no list."""
    traced = graph.trace(Nested(), {"d": [A, B]}, ["layer"])
    with pytest.raises(graph.TraceError, match=message):
        traced.run(d=given)


class Scaled(nn.Module):
    """Takes a number and a mask that may be missing."""

    def forward(self, x: torch.Tensor, scale: Any = 2, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x * scale
        return x if mask is None else x * mask


@pytest.mark.parametrize(("scale", "other"), [(1, True), (1, 1.0), (2, 3), (2, None), (2, [2]), (2, torch.ones(3, 4))])
def test_another_value_that_is_no_tensor_is_refused(scale: Any, other: Any) -> None:
    """A number of another type is another value, for a model can tell them apart."""
    traced = graph.trace(Scaled(), {"x": A, "scale": scale}, [])
    with pytest.raises(graph.TraceError, match="scale"):
        traced.run(x=A, scale=other)


def test_a_tensor_in_place_of_none_is_refused() -> None:
    """The message has its shape, not its values."""
    traced = graph.trace(Scaled(), {"x": A, "mask": None}, [])
    with pytest.raises(graph.TraceError, match=r"mask=a tensor of shape \(3, 4\): the graph was traced with None"):
        traced.run(x=A, mask=B)


class Named(nn.Module):
    """Its inputs have the names that nodes of graphs have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, output: torch.Tensor, model: torch.Tensor, before: torch.Tensor, target_0: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(output)
        return result


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_inputs_may_have_the_names_of_nodes(pipeline: str) -> None:
    """The node of an input stays beside the node of the graph itself."""
    model = Named()
    given = {name: torch.rand(3, 4) for name in ("output", "model", "before", "target_0")}
    traced = graph.trace(model, given, ["layer"], pipeline=pipeline)
    with torch.no_grad():
        assert torch.equal(traced.run(**given), model(**given))


class Twice(nn.Module):
    """Takes ``d_x`` and ``d["x"]``."""

    def forward(self, d: dict[str, torch.Tensor], d_x: torch.Tensor) -> torch.Tensor:
        return d["x"] - 2 * d_x


@pytest.mark.parametrize("pipeline", ["sequential", "basic"])
def test_joined_names_of_entries_may_be_names_of_inputs(pipeline: str) -> None:
    """Both keep their values."""
    traced = graph.trace(Twice(), {"d": {"x": A}, "d_x": B}, [], pipeline=pipeline)
    assert torch.equal(traced.run(d={"x": A}, d_x=B), A - 2 * B)


@pytest.mark.parametrize("pipeline", ["sequential", "basic"])
@pytest.mark.parametrize("scale", [3, 2.0])
def test_a_value_of_the_sample_does_not_stand_for_the_default(scale: float, pipeline: str) -> None:
    """Left out on replay, a value is refused where the model would take another one."""
    traced = graph.trace(Scaled(), {"x": A, "scale": scale}, [], pipeline=pipeline)
    with pytest.raises(graph.TraceError, match=f"scale is missing: the graph was traced with scale={scale}.*forward's default is 2; give it"):
        traced.run(x=A)


@pytest.mark.parametrize("pipeline", ["sequential", "basic"])
def test_a_value_that_is_the_default_may_be_left_out(pipeline: str) -> None:
    """The graph is that of the model then."""
    traced = graph.trace(Scaled(), {"x": A, "scale": 2, "mask": None}, [], pipeline=pipeline)
    assert torch.equal(traced.run(x=A), A * 2)


class Flagged(nn.Module):
    """Takes a flag by ``**kwargs``."""

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        return x * 2 if more.get("flag") else x * 3


def test_a_flag_without_a_name_in_the_signature_may_not_be_left_out() -> None:
    """What forward takes without it is not known."""
    traced = graph.trace(Flagged(), {"x": A, "flag": True}, [])
    with pytest.raises(graph.TraceError, match=r"flag is missing: the graph was traced with flag=True.*; give it, or trace again"):
        traced.run(x=A)


def test_the_rows_of_logits_to_keep_do_not_come_from_the_sample() -> None:
    """``logits_to_keep`` of a sample is refused on a replay without it; ``use_cache``, which tracing has turned off, is not asked for."""
    model, sample, _ = models.llama()
    one = graph.trace(model.eval(), {**sample, "logits_to_keep": 1})
    with pytest.raises(graph.TraceError, match=r"logits_to_keep is missing: .* forward's default is 0"):
        one.run(**sample)
    with torch.no_grad():
        assert one.run(**sample, logits_to_keep=1).logits.shape[1] == 1


def test_a_cache_that_the_sample_asks_for_may_not_be_left_out() -> None:
    """Without ``use_cache`` replay means a call without a cache, as tracing does."""
    model, sample, _ = models.llama()
    traced = graph.trace(model.eval(), {**sample, "use_cache": True}, pipeline="basic")
    with pytest.raises(graph.TraceError, match=r"use_cache is missing: .* forward's default is False"):
        traced.run(**sample)
