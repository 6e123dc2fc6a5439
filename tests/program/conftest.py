"""What the tests of decorators and events share: telemetry, an instrumented model, and each kind of function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.cases.telemetry import Telemetry
from tests.program.kinds import KINDS, Kind


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that is emitted during the test."""
    listener = Telemetry()
    yield listener
    listener.close()


@pytest.fixture
def model(telemetry: Telemetry) -> Any:
    """An instrumented module."""
    module = torch.nn.Linear(2, 2)
    telemetry.instrument(module, modules="none", model_name="small")
    return module


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of function."""
    found: Kind = request.param
    return found
