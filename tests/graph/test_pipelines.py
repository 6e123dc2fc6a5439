"""Which pipeline is taken when a model cannot be traced, and that each gives the model's own output."""

from __future__ import annotations

import logging

import numpy
import pytest
import torch
from torch import nn

from inferspan import graph
from tests.graph import breaking, models

pytestmark = pytest.mark.filterwarnings("ignore")
OTHER = {"x": torch.rand(5, 4)}


def opaque(x: torch.Tensor) -> torch.Tensor:
    """A function that no tracer looks into."""
    return torch.from_numpy(numpy.sin(x.detach().numpy()))


torch.fx.wrap("opaque")


class Wrapped(nn.Module):
    """Calls a wrapped function after its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor, scale: float = 2.0, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = layer(x)
        return {"out": opaque(x).relu() * scale if mask is None else x}


def test_a_model_that_can_be_traced_is_sequential() -> None:
    """The first pipeline that works is taken."""
    traced = graph.trace(breaking.Outer(nn.Identity()), breaking.X, ["re:layers"], pipeline="auto")
    assert (traced.pipeline, traced.tracer, traced.pipeline_reason) == ("sequential", "torch.export", "")


def test_torch_fx_traces_what_torch_export_cannot() -> None:
    """A wrapped function is one opaque operation, of unknown shape; replay calls it."""
    model = Wrapped()
    traced = graph.trace(model, breaking.X)
    assert traced.tracer == "torch.fx"
    assert len(traced.subgraphs) == 3
    node = next(node for node in traced.nodes if node.target.endswith(".opaque"))
    assert node.shape is None
    assert node.file == __file__
    with torch.no_grad():
        assert torch.equal(traced.run(**OTHER)["out"], model(**OTHER)["out"])


def test_a_plain_chain_falls_back_to_layer(caplog: pytest.LogCaptureFixture) -> None:
    """Targets run as a chain, also on other sizes than the sample's; the reason is logged in one line."""
    model = breaking.BreaksItself(nn.Linear(4, 4))
    with caplog.at_level(logging.INFO, "inferspan.graph"):
        traced = graph.trace(model, breaking.X, ["re:layers"], pipeline="auto")
    assert traced.pipeline == "layer"
    assert traced.pipeline_reason.startswith("sequential: GuardOnDataDependentSymNode")
    assert [record.message.partition(",")[0] for record in caplog.records] == ["BreaksItself: pipeline layer"]
    assert [subgraph.target for subgraph in traced.subgraphs] == ["layers.0", "layers.1", "layers.2", None]
    assert [subgraph.parameter_bytes for subgraph in traced.subgraphs] == [160, 80, 80, 40]
    with torch.no_grad():
        for batch, output in zip((breaking.X, OTHER), traced.replay([breaking.X, OTHER]), strict=True):
            assert torch.equal(output, model(**batch))


def test_a_value_that_skips_over_the_targets_refuses_the_chain() -> None:
    """``layer`` is refused, and the whole model is one subgraph."""
    model = breaking.Skipping(nn.Identity())
    traced = graph.trace(model, breaking.X, ["re:layers"], pipeline="auto")
    assert traced.pipeline == "basic"
    assert "a value skips over a target" in traced.pipeline_reason
    assert len(traced.subgraphs) == 1
    assert traced.subgraphs[0].parameter_bytes == 280
    with torch.no_grad():
        assert torch.equal(traced.run(**OTHER), model(**OTHER))


class Residuals(breaking.BreaksItself):
    """Adds the input of each layer to its output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) + x
        return x


def test_residuals_between_targets_refuse_the_chain() -> None:
    """A target that does not take the output of the one before is named."""
    with pytest.raises(graph.TraceError, match=r"layers\.1 does not take the output of layers\.0"):
        graph.trace(Residuals(nn.Identity()), breaking.X, ["re:layers"], pipeline="layer")


def test_qwen2_vl_with_an_image_falls_back_to_layer() -> None:
    """Where the model's own forward cannot be traced, its decoder layers are a plain chain."""
    model, sample, ignore = models.qwen2_vl_image()
    sample["use_cache"] = False
    traced = graph.trace(model.eval(), sample, ["Qwen2VLDecoderLayer"], ignore, pipeline="auto")
    assert traced.pipeline == "layer"
    with torch.no_grad():
        assert torch.equal(traced.run(**sample).logits, model(**sample).logits)


def test_a_pipeline_given_by_name_does_not_fall_back() -> None:
    """It raises with the reason."""
    with pytest.raises(graph.TraceError, match="data-dependent"):
        graph.trace(breaking.Branch(), breaking.X, [], pipeline="sequential")


@pytest.mark.parametrize("pipeline", ["layer", "basic"])
def test_layer_and_basic_need_weights(pipeline: str) -> None:
    """On the meta device they say so."""
    with pytest.raises(graph.TraceError, match="needs its weights"):
        graph.trace(breaking.Outer(nn.Identity()).to("meta"), breaking.X, ["re:layers"], pipeline=pipeline)


def test_an_unknown_pipeline_is_an_error() -> None:
    """The message has the known ones."""
    with pytest.raises(ValueError, match="sequential, layer, basic or auto"):
        graph.trace(breaking.Branch(), breaking.X, pipeline="chain")


def test_the_model_is_as_it_was_after_layer() -> None:
    """Neither forward nor random state of the model changes."""
    model = breaking.BreaksItself(nn.Dropout(0.5))
    state = torch.get_rng_state()
    own = [dict(module.__dict__) for module in model.modules()]
    graph.trace(model.eval(), breaking.X, ["re:layers"], pipeline="layer")
    assert torch.equal(torch.get_rng_state(), state)
    assert [list(module.__dict__) for module in model.modules()] == [list(entry) for entry in own]


class Told(nn.Module):
    """Takes a number and perhaps a mask beside its tensor."""

    def forward(self, x: torch.Tensor, rows: int, mask: torch.Tensor | None) -> torch.Tensor:
        return x * rows if mask is None else x * rows * mask


class Tells(breaking.BreaksItself):
    """Tells its layers the number of rows, and hands on a mask where there are many."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())
        self.layers = nn.ModuleList([Told(), Told()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 1e6:
            return x
        rows, mask = min(x.shape[0], 4), torch.ones(4) if x.shape[0] > 4 else None
        for layer in self.layers:
            x = layer(x, rows, mask)
        return x


@pytest.mark.parametrize("rows", [2, 5])
def test_a_chain_refuses_other_arguments_than_the_samples(rows: int) -> None:
    """A number or a missing mask that comes from sizes is part of the graph."""
    traced = graph.trace(Tells(), (torch.rand(4, 4),), ["re:layers"], pipeline="layer")
    with pytest.raises(graph.TraceError, match=r"^layers\.0 takes other arguments than with the sample, .* trace again"):
        traced.run(x=torch.rand(rows, 4))
