"""A graph is replayed on sizes for which it holds, and refuses all others."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import nn

from inferspan import graph

pytestmark = pytest.mark.filterwarnings("ignore")


class Branch(nn.Module):
    """The number of rows decides which layer is called."""

    def __init__(self) -> None:
        super().__init__()
        self.long = nn.Linear(4, 4)
        self.short = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.long(x) if x.shape[0] > 4 else self.short(x)
        return result


class Rule(nn.Module):
    """A rule on sizes decides what is computed."""

    def __init__(self, rule: Callable[[int, int], bool]) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.rule(x.shape[0], x.shape[1]) else x * 3


class Squeezes(nn.Module):
    """The number of dimensions that are left decides what is computed."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.squeeze(*self.dims)
        return y * 2 if y.dim() == 2 else y * 3


class Layered(nn.Module):
    """Its layer gives another number of dimensions for one row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Squeezes(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y + 1 if y.dim() == 2 else y - 1


MODELS: dict[str, Callable[[], nn.Module]] = {
    "branch": Branch,
    "one": lambda: Rule(lambda rows, _: rows == 1),
    "several": lambda: Rule(lambda rows, _: rows > 1),
    "not five": lambda: Rule(lambda rows, _: rows != 5),
    "empty": lambda: Rule(lambda rows, _: rows == 0),
    "even": lambda: Rule(lambda rows, _: rows % 2 == 0),
    "columns": lambda: Rule(lambda _, columns: columns >= 4),
    "as many": lambda: Rule(lambda rows, columns: rows == columns),
    "more": lambda: Rule(lambda rows, columns: rows > columns),
    "product": lambda: Rule(lambda rows, columns: rows * columns > 12),
    "squeeze": Squeezes,
    "squeeze one": lambda: Squeezes(0),
    "layer": Layered,
}
SHAPES = [(rows, columns) for rows in (0, 1, 2, 3, 5, 6) for columns in (1, 4, 5)]


def holds(traced: graph.Graph, model: nn.Module, shape: tuple[int, int]) -> bool:
    """Whether a graph takes this shape; what it gives then is what the model gives."""
    x = torch.rand(shape)
    try:
        result = traced.run(x=x)
    except graph.TraceError:
        return False
    with torch.no_grad():
        assert torch.equal(result, model(x))
    return True


@pytest.mark.parametrize("sample", [(3, 4), (6, 4), (5, 5), (1, 4)], ids=str)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "branch"])
def test_each_size_is_replayed_as_the_model_or_refused(name: str, sample: tuple[int, int]) -> None:
    """No size takes the branch of another. The sample's own is replayed, but where a layer hides what it does with one row."""
    model = MODELS[name]()
    traced = graph.trace(model, (torch.rand(sample),), ["re:layer"] if name == "layer" else [])
    taken = [shape for shape in SHAPES if holds(traced, model, shape)]
    assert (sample in taken) is ((name, sample) != ("layer", (1, 4)))


@pytest.mark.parametrize(("rows", "allowed", "others"), [(3, "0 to 4", (6, 5)), (6, "5 and more", (4, 3, 2, 1, 0))])
def test_a_size_of_another_branch_is_refused(rows: int, allowed: str, others: tuple[int, ...]) -> None:
    """The message has input, dimension, the sizes for which the graph holds, and what to do."""
    traced = graph.trace(Branch(), (torch.rand(rows, 4),), ["Linear"])
    for other in others:
        with pytest.raises(graph.TraceError, match=f"dimension 0 of x is {other}, and the graph holds for {allowed}: trace again with a sample of"):
            traced.run(x=torch.rand(other, 4))


@pytest.mark.parametrize(("rows", "others"), [(3, (0, 1, 2, 4)), (6, (5, 7))])
def test_sizes_of_the_same_branch_are_replayed(rows: int, others: tuple[int, ...]) -> None:
    """Up to the limit."""
    model = Branch()
    traced = graph.trace(model, (torch.rand(rows, 4),), ["Linear"])
    assert [other for other in others if holds(traced, model, (other, 4))] == list(others)


def test_sizes_and_their_ranges_are_listed() -> None:
    """As attribute and as JSON, with the dimensions that have them."""
    traced = graph.trace(Branch(), (torch.rand(6, 4),), [])
    (size,) = traced.sizes
    assert (size.minimum, size.maximum, size.places) == (5, None, ("x.0",))
    assert json.loads(traced.to_json())["sizes"] == [{"name": size.name, "minimum": 5, "maximum": None, "places": ["x.0"]}]


def test_a_sample_of_one_row_has_its_range() -> None:
    """torch.export itself takes one row for two."""
    traced = graph.trace(MODELS["one"](), (torch.rand(1, 4),), [])
    assert [(size.minimum, size.maximum) for size in traced.sizes] == [(1, 1), (0, None)]


def test_conditions_between_sizes_are_listed() -> None:
    """As text with the letters of sizes, and the message says what they are."""
    traced = graph.trace(MODELS["more"](), (torch.rand(6, 4),), [])
    rows, columns = (size.name for size in traced.sizes)
    assert traced.conditions == (f"{rows} > {columns}",)
    assert json.loads(traced.to_json())["conditions"] == [f"{rows} > {columns}"]
    with pytest.raises(graph.TraceError, match=rf"holds only for {rows} > {columns}, where .*{rows} is dimension 0 of x \(3\).*: trace again"):
        traced.run(x=torch.rand(3, 5))


class Doubled(nn.Module):
    """Its second input is twice as long as the first."""

    def forward(self, x: torch.Tensor, d: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([x, x]) + d["y"]


def test_a_size_that_follows_from_another_is_refused_by_name() -> None:
    """Before anything is computed, and not by an operation that fails."""
    model, (x, y) = Doubled(), (torch.rand(4, 4), torch.rand(8, 4))
    traced = graph.trace(model, {"x": torch.rand(3, 4), "d": {"y": torch.rand(6, 4)}}, [])
    assert torch.equal(traced.run(x=x, d={"y": y}), model(x, {"y": y}))
    with pytest.raises(graph.TraceError, match=r"dimension 0 of d\['y'\] is 7, and must be 8: it is 2\*\w+, where \w+ is dimension 0 of x \(4\)"):
        traced.run(x=x, d={"y": y[:7]})


def test_another_number_of_dimensions_inside_is_refused() -> None:
    """The operation that gives it is named with its line."""
    traced = graph.trace(Squeezes(0), (torch.rand(3, 4),), [])
    with pytest.raises(graph.TraceError, match=r"aten\.squeeze\.dim .*test_sizes\.py:\d+\) gives 1 dimensions, and 2 where the model was traced"):
        traced.run(x=torch.rand(1, 4))
