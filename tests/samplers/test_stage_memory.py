"""Memory at the ends of a stage: which memory it is, and readings that cannot be compared."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from inferspan.samplers.allocator import allocated_bytes
from inferspan.samplers.stage_memory import MemoryReader, Reading


def _torch(*allocated: int, initialized: bool = True) -> Any:
    """A module like torch, with so many bytes in use on each device."""
    figures = [{"allocated_bytes": {"all": {"current": value}}} for value in allocated]
    cuda = SimpleNamespace(
        is_initialized=lambda: initialized, device_count=lambda: len(allocated), memory_stats_as_nested_dict=lambda index: figures[index]
    )
    return SimpleNamespace(cuda=cuda, _C=SimpleNamespace())


def test_the_allocator_counts_all_devices() -> None:
    """The figure is the sum over the devices of the process, and absent while CUDA is not initialised."""
    assert allocated_bytes(library=_torch(5, 7)) == 12
    assert allocated_bytes(library=_torch(5, initialized=False)) is None


def test_the_allocator_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CUDA is used its allocator is asked, else the process; what is switched off is not read."""
    monkeypatch.setitem(sys.modules, "torch", _torch(5))
    assert MemoryReader(allocator=True, host=True)() == Reading("cuda", 5)
    reading = MemoryReader(allocator=False, host=True)()
    assert reading is not None
    assert reading.of == "resident"
    assert reading.bytes > 1 << 20
    assert MemoryReader(allocator=False, host=False)() is None
    monkeypatch.setitem(sys.modules, "torch", _torch(5, initialized=False))
    assert MemoryReader(allocator=True, host=False)() is None


def test_a_reading_of_the_process_is_kept() -> None:
    """The process is read again after 5 ms; a stage that begins and ends with one reading has no difference."""
    times = iter((0, 4_999_999, 5_000_000))
    reader = MemoryReader(allocator=False, host=True, now=lambda: next(times))
    first, same, later = reader(), reader(), reader()
    assert first is same
    assert first is not later
    assert first is not None
    assert first.since(same) is None


def test_readings_of_different_memory() -> None:
    """A difference is of two readings of the same memory; where CUDA was initialised in between there is none."""
    assert Reading("cuda", 3).since(Reading("cuda", 5)) == -2
    assert Reading("cuda", 3).since(Reading("resident", 5)) is None
    assert Reading("cuda", 3).since(None) is None
