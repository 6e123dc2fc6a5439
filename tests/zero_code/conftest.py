"""Zero code for the time of a test, with the listener's providers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from inferspan import zero_code
from tests.cases.telemetry import Telemetry

QUIET = {"nvml": False, "host": False, "allocator": False}
"""Settings without the samplers."""


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Everything that inferspan emits during the test."""
    torch.manual_seed(0)
    listener = Telemetry()
    yield listener
    listener.close()


@pytest.fixture
def observe(telemetry: Telemetry) -> Iterator[Callable[..., Any]]:
    """Switches zero code on with some settings; it is switched off after the test."""

    def switch_on(**options: Any) -> Any:
        return zero_code.activate(
            {**QUIET, **options}, tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider
        )

    yield switch_on
    zero_code.deactivate()
