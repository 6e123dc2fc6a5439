"""Replaying a graph through the cache of intermediates gives what the model gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from inferspan import graph
from tests.cases.telemetry import Telemetry
from tests.graph import models

pytestmark = pytest.mark.filterwarnings("ignore")


def called(model: nn.Module, sample: dict[str, Any]) -> Any:
    """The model's output without a cache."""
    caching = hasattr(getattr(model, "config", None), "use_cache") or hasattr(model, "language_model")
    with torch.no_grad():
        return model(**sample, use_cache=False) if caching else model(**sample)


def values(output: Any) -> list[torch.Tensor]:
    """The tensors of an output."""
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def equal(one: Any, other: Any) -> bool:
    """Whether two outputs have the same class, fields and values."""
    return type(one) is type(other) and all(torch.equal(a, b) for a, b in zip(values(one), values(other), strict=True))


@pytest.mark.parametrize("name", models.TEN)
def test_replay_of_each_architecture_equals_the_model(name: str) -> None:
    """Ten architectures give exactly their own output when replayed part by part."""
    torch.manual_seed(0)
    model, sample, ignore = models.TEN[name]()
    model.eval()
    traced = graph.trace(model, sample, None, ignore)
    with torch.no_grad():
        assert equal(traced.run(**sample), called(model, sample))


def test_sizes_may_differ_from_the_sample() -> None:
    """A graph of one row of 12 tokens runs three rows of 7."""
    model, _, _ = models.llama()
    model.eval()
    traced = graph.trace(model, models.ids(12, 1))
    other = models.ids(7, 3)
    with torch.no_grad():
        assert equal(traced.run(**other), called(model, other))


def test_batches_are_replayed_one_subgraph_at_a_time() -> None:
    """Each target sees all batches before the next target sees any."""
    model, sample, _ = models.llama()
    traced = graph.trace(model.eval(), sample)
    seen: list[str] = []
    for path in traced.selection.targets:
        model.get_submodule(path).register_forward_pre_hook(lambda *_, path=path: seen.append(path))
    with torch.no_grad():
        traced.replay([sample, models.ids(7, 3)])
    assert seen == [path for path in traced.selection.targets for _ in range(2)]


def test_a_graph_runs_again_and_reports_its_cache() -> None:
    """A second run gives the same output, and the report has the cache's largest size."""
    model, sample, _ = models.gpt2()
    traced = graph.trace(model.eval(), sample)
    with torch.no_grad():
        first, second = traced.run(**sample), traced.replay([sample], offload="cpu")[0]
    assert equal(first, second)
    assert traced.report.peak_bytes >= 2 * 12 * 32 * 4
    assert traced.report.moved_bytes == 0, "everything is on the host already"


class Fixed(nn.Module):
    """Adds a weight as long as the sequence must be."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.position


def test_a_dimension_that_the_model_fixes_is_named() -> None:
    """Input of another length than the model's weights is refused, with input and dimension."""
    traced = graph.trace(Fixed(), (torch.randn(2, 5),), [])
    with pytest.raises(graph.TraceError, match="dimension 1 of x is 6: the model fixes it to 5"):
        traced.run(x=torch.randn(2, 6))


def test_inputs_that_the_graph_does_not_know_are_named() -> None:
    """An unknown and a missing input are errors that name them."""
    traced = graph.trace(Fixed(), (torch.randn(2, 5),), [])
    with pytest.raises(graph.TraceError, match="y: not among"):
        traced.run(x=torch.randn(2, 5), y=1)
    with pytest.raises(graph.TraceError, match="the inputs x are missing"):
        traced.run()


def test_a_graph_without_weights_does_not_run() -> None:
    """A graph of a model on the meta device says that replay needs weights."""
    model = Fixed().to("meta")
    traced = graph.trace(model, (torch.randn(2, 5),), [])
    with pytest.raises(graph.TraceError, match="needs a model with weights"):
        traced.run(x=torch.randn(2, 5))


class Sums(nn.Module):
    """Adds each batch to a buffer in place."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum(0))
        return x + self.total


def test_a_buffer_that_is_changed_in_place_is_changed_on_replay() -> None:
    """Two replays change the buffer as two calls do; tracing does not."""
    traced, other, x = graph.trace(Sums(), {"x": torch.ones(2, 4)}, []), Sums(), torch.ones(2, 4)
    assert torch.equal(traced.model.get_buffer("total"), torch.zeros(4))
    for _ in range(2):
        assert torch.equal(traced.run(x=x), other(x))


def test_flags_of_forward_are_part_of_the_graph() -> None:
    """A flag that forward takes by ``**kwargs`` is kept, and another value of it is refused."""
    model, sample, _ = models.llama()
    model.eval()
    traced = graph.trace(model, {**sample, "output_hidden_states": True})
    with torch.no_grad():
        assert equal(traced.run(**sample, output_hidden_states=True), model(**sample, use_cache=False, output_hidden_states=True))
    with pytest.raises(graph.TraceError, match="traced with True, which is part of it"):
        traced.run(**sample, output_hidden_states=False)


def test_an_instrumented_model_is_traced_and_stays_instrumented(telemetry: Telemetry) -> None:
    """Tracing and replay neither end its instrumentation nor make telemetry."""
    model, sample, _ = models.llama()
    handle = telemetry.instrument(model.eval())
    with torch.no_grad():
        output = graph.trace(model, sample).run(**sample)
        assert [span.name for span in telemetry.spans()] == []
        assert equal(output, model(**sample, use_cache=False))
    handle.uninstrument()


@pytest.mark.parametrize("compiled", [lambda model: model.compile(backend="eager") or model, lambda model: torch.compile(model, backend="eager")])
def test_a_compiled_model_is_traced_as_itself(compiled: Callable[[nn.Module], nn.Module]) -> None:
    """What torch.compile wraps around a model is not part of the graph."""
    traced = graph.trace(compiled(models.llama()[0].eval()), models.ids(), ["LlamaDecoderLayer"])
    assert traced.selection.targets == ("model.layers.0", "model.layers.1")


def test_a_cache_is_state() -> None:
    """A model that keeps a cache between calls is refused, with the module that takes it."""
    model, sample, _ = models.llama()
    with pytest.raises(graph.TraceError, match=r"'model\.layers\.0' takes or gives a DynamicCache") as caught:
        graph.trace(model.eval(), {**sample, "use_cache": True})
    assert caught.value.reason == "state"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_values_wait_on_the_host_between_subgraphs() -> None:
    """On a GPU ``offload="cpu"`` gives the same output, and says what moved."""
    model, sample, _ = models.llama(4)
    model.eval().cuda()
    sample = {name: value.cuda() for name, value in sample.items()}
    traced = graph.trace(model, sample)
    with torch.no_grad():
        (output,) = traced.replay([sample], offload="cpu")
        torch.testing.assert_close(output.logits, model(**sample, use_cache=False).logits)
    assert output.logits.device.type == "cuda"
    assert traced.report.moved_bytes > 4 * 2 * 2 * 12 * 32 * 4


class TakesMore(nn.Module):
    """Takes a tensor and a flag by ``**kwargs``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) + (more["bias"] if more["add"] else 0)
        return result


def test_tensors_by_keywords_without_names() -> None:
    """Their sizes are as free as those of others."""
    model = TakesMore()
    traced = graph.trace(model, {"x": torch.ones(3, 4), "bias": torch.ones(3, 4), "add": True}, ["layer"])
    x, bias = torch.randn(5, 4), torch.randn(5, 4)
    assert torch.equal(traced.run(x=x, bias=bias, add=True), model(x, bias=bias, add=True))
