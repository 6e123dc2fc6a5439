"""A CUDA allocator made of Python: what torch says of memory, moved by the modules of a test.

It stands where torch is asked, and models are taken to be on ``cuda:0``; sizes are bytes that a test knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inferspan.capture.device import memory
from inferspan.capture.inside import hooks
from inferspan.capture.inside import memory as readings
from inferspan.capture.target import Target

__all__ = ["FakeAllocator", "Holds", "allocator_of"]

DEVICE = torch.device("cuda", 0)


class FakeAllocator:
    """Counts bytes.

    Attributes:
        asked: how often its figures were read.
    """

    def __init__(self) -> None:
        self.allocated = 1000
        self.peak = 5000
        self.reserved = 8000
        self.asked = 0

    def take(self, size: int) -> None:
        """Allocate."""
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, self.allocated)

    def figures(self, device: Any = None) -> dict[str, Any]:
        """As ``torch.cuda.memory_stats_as_nested_dict``."""
        self.asked += 1
        return {
            "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved, "peak": self.reserved}},
        }


class Holds(nn.Module):
    """Passes its input on: takes ``inside`` bytes and gives them back, and keeps ``after``."""

    def __init__(self, allocator: FakeAllocator, inside: int, after: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.allocator, self.inside, self.after = allocator, inside, after

    def forward(self, hidden: Tensor) -> Tensor:
        self.allocator.take(self.inside)
        self.allocator.take(self.after - self.inside)
        return hidden


def allocator_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAllocator]:
    """Let torch have this allocator, and models be on its device."""
    fake = FakeAllocator()
    if torch.cuda.is_available():
        torch.cuda.init()  # or what torch sets up lazily would be missing once it is taken to be initialized

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("readings wait for nothing and reset nothing")

    for name in ("synchronize", "reset_peak_memory_stats", "reset_max_memory_allocated", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, refused)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", fake.figures)
    monkeypatch.setattr(torch.cuda, "memory_summary", lambda device, abbreviated: f"summary of {device}" + "." * 10_000)
    for module in (memory, hooks, readings):
        monkeypatch.setattr(module, "device_of", lambda module: DEVICE)
    monkeypatch.setattr(Target, "device", DEVICE)
    yield fake
