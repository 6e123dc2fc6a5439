"""Models whose size or duration cannot be told as usual: what is not known is absent or said."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferspan import semconv
from tests.cases.telemetry import Telemetry


class Stream(nn.Module):
    """Yields its results one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, hidden: Tensor) -> Iterator[Tensor]:
        for _ in range(3):
            yield self.linear(hidden)


class Later(nn.Module):
    """Is awaited."""

    async def forward(self, hidden: Tensor) -> Tensor:
        return hidden


class Soon(nn.Module):
    """Yields its results one by one, asynchronously."""

    async def forward(self, hidden: Tensor) -> AsyncIterator[Tensor]:
        yield hidden


class Mapped(nn.Module):
    """Returns an iterator that is no generator."""

    def forward(self, hidden: Tensor) -> Iterator[Tensor]:
        return map(torch.neg, [hidden])


class Answer:
    """Is awaited, and no coroutine."""

    def __await__(self) -> Iterator[None]:
        yield None


class Asked(nn.Module):
    """Returns something of its own to wait for."""

    def forward(self, hidden: Tensor) -> Answer:
        return Answer()


@pytest.mark.parametrize(
    ("kind", "unobserved"),
    [
        (Stream, "forward: generator; modules: generator; context: generator"),
        (Later, "forward: coroutine; context: coroutine"),
        (Soon, "forward: async generator; context: async generator"),
        (Mapped, "forward: iterator; context: iterator"),
        (Asked, "forward: awaitable; context: awaitable"),
    ],
)
@pytest.mark.parametrize("method", [None, "forward_later"])
def test_pass_that_has_not_run_when_it_returns(telemetry: Telemetry, kind: type[nn.Module], unobserved: str, method: str | None) -> None:
    """The span says that the pass, its modules and its context were not seen, and the metric of durations has no value."""
    named = type(kind.__name__, (kind,), {} if method is None else {method: kind.forward})
    model = named()
    telemetry.instrument(model, modules="all", methods=None if method is None else [method])
    result: Any = model(torch.ones(1, 2)) if method is None else getattr(model, method)(torch.ones(1, 2))
    assert telemetry.only(telemetry.roots())[semconv.UNOBSERVED] == unobserved
    assert semconv.M_FORWARD_DURATION not in telemetry.metrics()
    if kind is Later:
        result.close()


def test_generator_is_the_programs_own(telemetry: Telemetry) -> None:
    """What the model has yielded arrives, and the object takes ``send`` and ``close`` as ever."""
    model = Stream()
    telemetry.instrument(model)
    results: Any = model(torch.ones(1, 2))
    assert torch.equal(next(results), model.linear(torch.ones(1, 2)))
    assert results.send(None).shape == (1, 2)
    results.close()
    assert list(results) == []


def test_ordinary_pass_is_timed(telemetry: Telemetry) -> None:
    """A pass that returns tensors is seen, and in the metric."""
    model = nn.Linear(2, 2)
    telemetry.instrument(model)
    model(torch.ones(1, 2))
    assert semconv.UNOBSERVED not in telemetry.only(telemetry.forwards())
    assert len(telemetry.metrics()[semconv.M_FORWARD_DURATION]) == 1


def _quantized(model: nn.Module, layers: set[type[nn.Module]]) -> nn.Module:
    if not torch.backends.quantized.supported_engines or "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch has no quantised kernels")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized: nn.Module = torch.ao.quantization.quantize_dynamic(model, layers, dtype=torch.qint8)
    return quantized


@pytest.mark.parametrize("kind", ["linear", "recurrent"])
def test_size_of_a_dynamically_quantised_model(telemetry: Telemetry, kind: str) -> None:
    """Its packed weights cannot be counted, so the number of parameters is absent, not that of the rest."""
    first: nn.Module = nn.Linear(4, 4) if kind == "linear" else nn.LSTM(4, 4)
    model = _quantized(nn.Sequential(nn.LayerNorm(4), first), {nn.Linear, nn.LSTM})
    telemetry.instrument(model)
    model(torch.ones(1, 2, 4))
    attributes = telemetry.only(telemetry.forwards())
    assert semconv.MODEL_PARAMETERS not in attributes
    assert attributes[semconv.MODEL_ARCHITECTURE] == "Sequential"


def test_size_of_packed_integers(telemetry: Telemetry) -> None:
    """Neither can weights that another library keeps packed in a buffer."""
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_buffer("qweight", torch.zeros(2, 2, dtype=torch.int32))
    telemetry.instrument(model)
    model(torch.ones(1, 2))
    assert semconv.MODEL_PARAMETERS not in telemetry.only(telemetry.forwards())


def test_size_of_an_ordinary_model(telemetry: Telemetry) -> None:
    """Parameters are counted, tied ones once."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    telemetry.instrument(model)
    model(torch.ones(1, 2))
    assert telemetry.only(telemetry.forwards())[semconv.MODEL_PARAMETERS] == 4
