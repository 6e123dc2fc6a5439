"""Requests that are profiled, and spans of kernels and operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from inferspan import semconv
from tests.cases.telemetry import Telemetry

__all__ = ["PROMPT", "Blocks", "attributes_of", "autograd", "generate", "profiled", "steps_of"]



# As Any, because torch does not declare the names that are needed here.
autograd: Any = torch.autograd
PROMPT = torch.tensor([[1, 5, 6, 7]])


def attributes_of(span: Any) -> dict[str, Any]:
    """The attributes of a span."""
    return dict(span.attributes or {})


def generate(model: Any, tokens: int = 6) -> Any:
    """A generation of so many tokens."""
    return model.generate(PROMPT, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)


def profiled(telemetry: Telemetry) -> list[Any]:
    """Spans of kernels and operations."""
    return [span for span in telemetry.spans() if semconv.PROFILER_KIND in attributes_of(span)]


def steps_of(found: list[Any]) -> Counter[int]:
    """How many spans each step has."""
    return Counter(attributes_of(span)[semconv.STEP_INDEX] for span in found)


class Blocks(nn.Module):
    """Two linear layers and an operation between them."""

    def __init__(self, action: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.action = [action]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        self.action[0]()
        return self.second(x)
