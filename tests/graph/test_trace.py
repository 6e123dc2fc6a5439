"""What a trace records, and that it leaves the model as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from inferspan import graph
from tests.graph import models

pytestmark = pytest.mark.filterwarnings("ignore")


class Residual(nn.Module):
    """Two layers with a skip connection around the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.calls = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return torch.relu(y + self.second(y))


class Branch(nn.Module):
    """A value decides control flow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


def test_edges_of_a_hand_made_model() -> None:
    """A value with two consumers and the skip over a target are edges."""
    traced = graph.trace(Residual(), (torch.randn(3, 4),), ["Linear"])
    first, second = (node.name for node in traced.nodes if node.op == "call_module")
    add, relu = (node.name for node in traced.nodes if node.op == "call_function")
    assert [(edge.producer, edge.consumer) for edge in traced.edges] == [
        ("x", first), (first, second), (first, add), (second, add), (add, relu), (relu, "output"),
    ]
    assert [edge.bytes for edge in traced.edges] == [48] * 6
    assert [(edge.producer, edge.consumer) for edge in traced.skips()] == [(first, add)]


def test_nodes_say_what_they_give_and_where_they_are_written() -> None:
    """Shape, dtype, module and line of an operation."""
    traced = graph.trace(Residual(), (torch.randn(3, 4),), ["first"])
    relu = next(node for node in traced.nodes if "relu" in node.target)
    assert (relu.shape, relu.dtype, relu.bytes) == ((3, 4), "float32", 48)
    assert (relu.module, relu.module_class) == ("", "Residual")
    assert relu.file == __file__
    assert relu.line is not None
    assert "relu" in Path(__file__).read_text(encoding="utf-8").splitlines()[relu.line - 1]
    assert traced.modules() == {"first": "Linear", "second": "Linear", "": "Residual"}


def test_graph_is_json() -> None:
    """The JSON of a graph has all nodes, edges and subgraphs."""
    traced = graph.trace(Residual(), (torch.randn(3, 4),), ["first"])
    read = json.loads(traced.to_json())
    assert (len(read["nodes"]), len(read["edges"]), len(read["subgraphs"])) == (len(traced.nodes), len(traced.edges), 2)


def test_a_model_without_weights_has_the_same_graph() -> None:
    """On the meta device the graph is the same as with weights."""
    model, sample, _ = models.llama()
    with torch.device("meta"):
        empty, _, _ = models.llama()
    assert graph.trace(empty.eval(), sample).as_dict() == graph.trace(model.eval(), sample).as_dict()


@pytest.mark.parametrize("model", [Residual(), Branch()], ids=["traced", "failing"])
def test_tracing_leaves_everything_as_it_was(model: nn.Module) -> None:
    """Weights, hooks, training mode, random state and grad mode are unchanged, also after a failure."""
    handle = model.register_forward_hook(lambda *_: None)
    hooks, forward = dict(model._forward_hooks), model.forward
    weights = {name: (id(value), value.clone()) for name, value in model.named_parameters()}
    state = torch.get_rng_state()
    try:
        graph.trace(model, (torch.randn(3, 4, generator=torch.Generator().manual_seed(1)),), [])
        failed = False
    except Exception:
        failed = True
    assert failed is isinstance(model, Branch)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert dict(model._forward_hooks) == hooks
    assert model.forward == forward
    assert model.training
    assert all(id(value) == weights[name][0] and torch.equal(value, weights[name][1]) for name, value in model.named_parameters())
    handle.remove()


def test_importing_inferspan_does_not_load_torch() -> None:
    """``inferspan.graph`` is loaded when it is used."""
    code = "import sys, inferspan; assert 'torch' not in sys.modules; inferspan.graph.trace; assert 'torch' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
