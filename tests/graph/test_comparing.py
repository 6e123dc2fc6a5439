"""What a choice of targets costs, and what ignoring costs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from inferspan import graph
from tests.graph import breaking, models

pytestmark = pytest.mark.filterwarnings("ignore")
CHOICES = [["LlamaDecoderLayer"], ["LlamaAttention", "LlamaMLP"], ["Linear"]]


@pytest.fixture(scope="module")
def llama() -> graph.Graph:
    """A Llama of two layers without weights, on 2 x 12 tokens."""
    with torch.device("meta"):
        model, _, ignore = models.llama()
    return graph.trace(model.eval(), models.ids(), None, ignore)


@pytest.fixture(scope="module")
def comparison(llama: graph.Graph) -> graph.Comparison:
    """Three choices side by side."""
    return llama.compare(CHOICES, show=False)


def test_finer_targets_have_more_subgraphs(comparison: graph.Comparison) -> None:
    """One more than there are targets."""
    assert [choice.subgraphs for choice in comparison.choices] == [3, 5, 15]


def test_finer_targets_hold_less_and_move_more(comparison: graph.Comparison) -> None:
    """Bytes of weights at once fall, moves and bytes moved rise."""
    weights, moves, moved = (
        [getattr(choice, name) for choice in comparison.choices] for name in ("largest_parameter_bytes", "moves", "moved_bytes")
    )
    assert weights == sorted(weights, reverse=True)
    assert moves == sorted(moves)
    assert moved == sorted(moved)


def test_figures_of_a_hand_made_model() -> None:
    """Intermediates of 3 x 4 values of four bytes: one at a time, two moves."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x * 2

    (choice,) = graph.trace(Chain(), breaking.X).compare([["Linear"]], show=False).choices
    assert (choice.subgraphs, choice.largest_parameter_bytes) == (3, 80)
    assert (choice.largest_bytes, choice.total_bytes, choice.moves, choice.moved_bytes) == (48, 96, 2, 96)
    assert choice.tokens is None


def test_figures_a_token(comparison: graph.Comparison) -> None:
    """The sample has 24 tokens."""
    choice = comparison.choices[0]
    assert choice.tokens == 24
    assert choice.per_token(choice.largest_bytes) == choice.largest_bytes / 24


def test_the_table_is_printed(llama: graph.Graph, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each choice, and what finer targets mean."""
    comparison = llama.compare([["LlamaDecoderLayer"]])
    lines = capsys.readouterr().out.splitlines()
    assert lines == str(comparison).splitlines()
    assert lines[1].split()[:2] == ["LlamaDecoderLayer", "3"]
    assert lines[2].startswith("Finer targets: fewer bytes at once, more moved")


def test_a_target_that_matches_nothing_is_an_error(llama: graph.Graph) -> None:
    """As in ``trace``."""
    with pytest.raises(ValueError, match="matches the target 'Conv2d'"):
        llama.compare([["Conv2d"]], show=False)


def test_costs_of_ignored_modules() -> None:
    """Weights, modules and lost targets of each, and whether tracing fails without it."""
    traced = graph.trace(breaking.Outer(breaking.Tower()), breaking.X, ["Linear"], ["before", "head"])
    before, head = traced.ignore_costs()
    assert (before.path, before.parameter_bytes, before.modules, before.needed) == ("before", 240, 7, True)
    assert before.lost_targets == ("before.blocks.0.linear", "before.blocks.1.linear", "before.blocks.2.linear")
    assert (head.path, head.parameter_bytes, head.modules, head.needed) == ("head", 40, 0, False)
    assert str(head) == (
        "head (Linear): 40 B of weights as one block, 0 modules inside that can no longer be targets, "
        "1 matches of the targets' names lost; not needed"
    )


def test_costs_without_an_attempt_do_not_say_whether_they_are_needed() -> None:
    """Nothing is traced, so that is not known."""
    traced = graph.trace(breaking.Outer(breaking.Tower()), breaking.X, ["re:layers"], ["before"])
    assert [cost.needed for cost in traced.ignore_costs(attempt=False)] == [None]
