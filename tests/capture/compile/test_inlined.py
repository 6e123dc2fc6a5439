"""Calls of a model from functions that are compiled: Dynamo inlines them, which is said once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

from tests.cases.telemetry import Telemetry

pytestmark = pytest.mark.filterwarnings("ignore")
WORDS = "from a function that is compiled may not be seen"
HIDDEN = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def clean_dynamo() -> Iterator[None]:
    """Each test compiles from nothing."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Both providers in memory."""
    found = Telemetry()
    yield found
    found.close()


class Around(nn.Module):
    """A module of the program's around the one that is instrumented."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.inner(hidden)
        return inner + 1


def _call(model: nn.Module, hidden: torch.Tensor) -> Any:
    return model(hidden)


def _closure(model: nn.Module) -> Callable[[torch.Tensor], Any]:
    def run(hidden: torch.Tensor) -> Any:
        return model(hidden)

    return run


FORMS: dict[str, Callable[[nn.Module], Callable[[torch.Tensor], Any]]] = {
    "a function": lambda model: partial(_call, model),
    "a closure": lambda model: _closure(model),
    "a bound method": lambda model: Around(model).forward,
    "a module around it": Around,
}


@pytest.mark.parametrize("form", FORMS)
def test_calls_from_compiled_code_are_seen_or_told(telemetry: Telemetry, caplog: pytest.LogCaptureFixture, form: str) -> None:
    """Each call is a request, or one warning says that such calls may not be seen; results stay."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    want = FORMS[form](model)(HIDDEN)
    telemetry.instrument(model)
    compiled: Any = torch.compile(FORMS[form](model), backend="eager")
    with caplog.at_level(logging.WARNING, "inferspan"):
        for _ in range(3):
            assert torch.equal(compiled(HIDDEN), want)
    told = [record for record in caplog.records if WORDS in record.getMessage()]
    assert len(told) == 1 or len(telemetry.forwards()) == 3
    assert len(told) <= 1


def test_nothing_is_said_of_a_model_that_is_compiled_itself(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    """Calls of what ``torch.compile(model)`` returns are requests, and other functions have nothing to do with the model."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    telemetry.instrument(model)
    compiled: Any = torch.compile(model, backend="eager")
    other: Any = torch.compile(torch.neg, backend="eager")
    with caplog.at_level(logging.WARNING, "inferspan"):
        compiled(HIDDEN)
        other(HIDDEN)
    assert not [record for record in caplog.records if WORDS in record.getMessage()]
    assert len(telemetry.forwards()) == 1
