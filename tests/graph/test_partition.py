"""Subgraphs: their number, what they take and give, and when values are released; targets and ignored modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from inferspan import graph
from tests.graph import models


class Twice(nn.Module):
    """Calls the same layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.relu(self.layer(x))) + x


@pytest.fixture(scope="module")
def llama() -> graph.Graph:
    """A Llama of two layers."""
    model, sample, ignore = models.llama()
    return graph.trace(model.eval(), sample, None, ignore)


def test_a_decoder_of_28_layers_has_29_subgraphs() -> None:
    """N calls of targets give N + 1 subgraphs."""
    with torch.device("meta"):
        model, sample, ignore = models.llama(28)
    assert len(graph.trace(model.eval(), models.ids(), ["LlamaDecoderLayer"], ignore).subgraphs) == 29
    assert sample.keys() == models.ids().keys()


def test_linear_layers_as_targets() -> None:
    """Seven linear layers a block, and one subgraph more."""
    model, sample, ignore = models.llama()
    assert len(graph.trace(model.eval(), sample, ["Linear"], ignore).subgraphs) == 7 * 2 + 1


def test_a_module_called_twice_ends_two_subgraphs() -> None:
    """Each call of a target lies in a subgraph of its own."""
    traced = graph.trace(Twice(), (torch.randn(2, 4),), ["layer"])
    assert [subgraph.target for subgraph in traced.subgraphs] == ["layer", "layer", None]
    assert [subgraph.parameter_bytes for subgraph in traced.subgraphs] == [80, 0, 0]


def test_every_node_lies_in_one_subgraph_and_depends_on_earlier_ones(llama: graph.Graph) -> None:
    """Placeholders belong to none; everything else to exactly one."""
    home = {name: subgraph.index for subgraph in llama.subgraphs for name in subgraph.nodes}
    assert sorted(name for subgraph in llama.subgraphs for name in subgraph.nodes) == sorted(
        node.name for node in llama.nodes if node.op != "placeholder"
    )
    assert all(home.get(edge.producer, -1) <= home[edge.consumer] for edge in llama.edges)


def test_consumed_produced_and_released_follow_from_the_edges(llama: graph.Graph) -> None:
    """Derived again from the edges, they are the same; every name is released once, at its last use."""
    home = {name: subgraph.index for subgraph in llama.subgraphs for name in subgraph.nodes}
    crossing = [edge for edge in llama.edges if home.get(edge.producer, -1) != home[edge.consumer]]
    for subgraph in llama.subgraphs:
        assert {value.name for value in subgraph.consumed} == {edge.name for edge in crossing if home[edge.consumer] == subgraph.index}
        assert {value.name for value in subgraph.produced} == {edge.name for edge in crossing if home.get(edge.producer) == subgraph.index}
    released = {name: subgraph.index for subgraph in llama.subgraphs for name in subgraph.released}
    assert sum(len(subgraph.released) for subgraph in llama.subgraphs) == len(released)
    assert released == {
        name: max(home[edge.consumer] for edge in crossing if edge.name == name) for name in {edge.name for edge in crossing}
    }


def test_own_blocks_are_taken_if_no_target_is_given(llama: graph.Graph) -> None:
    """Without targets the model's own block classes are taken, and the source is said."""
    assert llama.selection.source == "_no_split_modules"
    assert llama.selection.targets == ("model.layers.0", "model.layers.1")


def test_numbered_layers_are_taken_if_the_model_names_no_blocks() -> None:
    """A plain model's numbered layers are its blocks."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Twice(), Twice()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    traced = graph.trace(Plain(), {"x": torch.randn(2, 4)})
    assert traced.selection.source == "numbered layers"
    assert traced.selection.targets == ("layers.0", "layers.1")


def test_of_nested_targets_the_outer_one_counts() -> None:
    """Matches inside another match are reported, not cut at."""
    model, sample, ignore = models.llama()
    traced = graph.trace(model.eval(), sample, ["LlamaDecoderLayer", "LlamaMLP"], ignore)
    assert traced.selection.targets == ("model.layers.0", "model.layers.1")
    assert traced.selection.nested == ("model.layers.0.mlp", "model.layers.1.mlp")


def test_a_target_that_matches_nothing_names_the_closest_classes() -> None:
    """A misspelt class is an error with the right one in it."""
    model, sample, _ = models.llama()
    with pytest.raises(ValueError, match="the closest class names are LlamaDecoderLayer"):
        graph.trace(model, sample, ["LlamaDecoderlayers"])


def test_a_base_class_is_a_target_too() -> None:
    """Names are compared with the classes that a module inherits."""

    class Own(nn.Linear):
        pass

    traced = graph.trace(nn.Sequential(Own(4, 4), nn.ReLU()), (torch.randn(2, 4),), ["Linear"])
    assert traced.selection.targets == ("0",)


def test_ignored_modules_win_over_targets_and_are_called_whole(llama: graph.Graph) -> None:
    """An ignored module is one node, and targets inside it do not count."""
    model, sample, _ = models.llama()
    traced = graph.trace(model.eval(), sample, ["Linear"], ["re:model.layers.0$", "lm_head"])
    assert next(node.target for node in traced.nodes if node.op == "call_module") == "model.layers.0"
    assert all(path.startswith("model.layers.1.") for path in traced.selection.targets)
    assert len(traced.selection.covered) == 8


def test_a_pattern_that_matches_nothing_names_the_one_that_would() -> None:
    """Patterns are matched from the start of the path; the warning has the pattern that is meant."""
    model, sample, _ = models.qwen2_vl()
    with pytest.warns(UserWarning, match=r"'re:visual\.\*' matches no module; 're:\.\*visual\.\*' matches model\.visual"):
        graph.trace(model.eval(), sample, None, ["re:visual.*"])
