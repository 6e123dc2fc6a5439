"""``handle.pause()`` of a compiled model."""

from __future__ import annotations

import torch
from torch import nn

from tests.cases.telemetry import Telemetry


def test_a_compiled_model_pauses(telemetry: Telemetry) -> None:
    """Its compiled call keeps its wrapper, which records nothing."""
    model = nn.Linear(4, 4)
    model.compile(backend="eager")
    handle = telemetry.instrument(model)
    handle.pause()
    model(torch.zeros(1, 4))
    assert telemetry.spans() == []
    handle.resume()
    model(torch.zeros(1, 4))
    assert len(telemetry.forwards()) == 1
