"""A graph keeps dropout and the like of its trace, and is not replayed in another mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from inferspan import graph
from tests.graph import models

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.rand(3, 4)


class Drops(nn.Module):
    """Drops values around its layer, as a module and as a function, and in it."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.norm(self.drop(x)), 0.5, self.training)
        result: torch.Tensor = self.layer(x)
        return result


def seeded(*calls: Callable[[], torch.Tensor]) -> bool:
    """Whether two calls give the same from the same random state."""
    results = []
    for call in calls:
        torch.manual_seed(0)
        results.append(call())
    return torch.equal(*results)


@pytest.mark.parametrize(
    ("training", "then", "now", "pipeline"),
    [(True, "training", "eval", "sequential"), (False, "eval", "training", "sequential"), (False, "eval", "training", "layer")],
)
def test_another_mode_is_refused(training: bool, then: str, now: str, pipeline: str) -> None:
    """The message has both modes, modules and what to do; restored, the graph runs again."""
    model = Drops().train(training)
    traced = graph.trace(model, (X,), ["layer"], pipeline=pipeline)
    model.train(not training)
    with pytest.raises(graph.TraceError, match=f"traced in {then} mode, and now in {now} mode: Drops, drop, norm.* trace again, or restore"):
        traced.run(x=X)
    model.train(training)
    assert traced.run(x=X).shape == (3, 4)


@pytest.mark.parametrize("name", ["drop", "norm"])
def test_a_single_module_in_another_mode_is_refused(name: str) -> None:
    """Frozen or thawed alone, it is named."""
    model = Drops().eval()
    traced = graph.trace(model, (X,), ["layer"])
    model.get_submodule(name).train()
    with pytest.raises(graph.TraceError, match=f"now in training mode: {name}. The graph keeps"):
        traced.run(x=X)


def test_targets_follow_their_own_mode() -> None:
    """They are called, so the graph holds in both modes."""
    model = Drops().eval()
    traced = graph.trace(model, (X,), ["layer"])
    model.layer.train()
    assert seeded(lambda: traced.run(x=X), lambda: model(X))


@pytest.mark.parametrize("trained", [True, False])
def test_the_whole_model_as_one_operation_follows_its_mode(trained: bool) -> None:
    """``basic`` calls the model."""
    model = Drops().train(not trained)
    traced = graph.trace(model, (X,), ["layer"], pipeline="basic")
    model.train(trained)
    assert seeded(lambda: traced.run(x=X), lambda: model(X))


def test_a_llama_traced_in_training_mode_does_not_run_in_eval_mode() -> None:
    """Blocks and head are called in eval mode, and what is around them is of the trace."""
    model, sample, ignore = models.llama()
    traced = graph.trace(model.train(), sample, None, ignore)
    model.eval()
    with pytest.raises(graph.TraceError, match="traced in training mode"):
        traced.run(**sample)
