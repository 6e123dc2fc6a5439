"""Memory of a request on a machine without CUDA: resident bytes, and a peak that says whether it is exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferspan import semconv
from inferspan.capture.device import memory
from inferspan.capture.device.memory import MemoryMeter


def test_resident_memory() -> None:
    """Start, end and peak are bytes of this process, and the peak is no less than what was held."""
    meter = MemoryMeter(torch.device("cpu"))
    held = torch.ones(8 << 20)
    meter.look()
    found = meter.attributes()
    start, end, peak = (found[key] for key in (semconv.MEMORY_START, semconv.MEMORY_END, semconv.MEMORY_PEAK))
    assert isinstance(start, int) and isinstance(end, int) and isinstance(peak, int)
    assert start > 1 << 20 and peak >= max(start, end)
    assert isinstance(found[semconv.MEMORY_PEAK_EXACT], bool) and held.numel()


@pytest.mark.parametrize(
    ("peaks", "peak", "exact"),
    [((90, 200), 200, True), ((200, 200), 120, False), ((None, None), 120, False), ((90, 95), 120, False)],
)
def test_peak(monkeypatch: pytest.MonkeyPatch, peaks: tuple[int | None, int | None], peak: int, exact: bool) -> None:
    """The system's peak counts if it rose during the request and is no lower than what was seen, else the highest value seen."""
    now, high = iter([80, 120, 100]), iter(peaks)
    monkeypatch.setattr(memory, "_resident", lambda: next(now))
    monkeypatch.setattr(memory, "_resident_peak", lambda: next(high))
    meter = MemoryMeter(None)
    meter.look()
    assert meter.attributes() == {
        semconv.MEMORY_START: 80,
        semconv.MEMORY_END: 100,
        semconv.MEMORY_PEAK: peak,
        semconv.MEMORY_PEAK_EXACT: exact,
    }


def _allocator(monkeypatch: pytest.MonkeyPatch, *readings: tuple[int, int]) -> list[torch.device]:
    """Let CUDA's allocator have these figures, now and at most; returns the devices that it is asked for."""
    asked: list[torch.device] = []
    left = iter(readings)

    def statistics(device: torch.device) -> dict[str, Any]:
        asked.append(device)
        current, peak = next(left)
        return {"allocated_bytes": {"all": {"current": current, "peak": peak}}}

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", statistics)
    return asked


def test_memory_on_cuda_is_that_of_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start, end and an exact peak come from torch's statistics."""
    _allocator(monkeypatch, (80, 90), (120, 200), (100, 200))
    meter = MemoryMeter(torch.device("cuda:1"))
    meter.look()
    assert meter.attributes() == {
        semconv.MEMORY_START: 80,
        semconv.MEMORY_END: 100,
        semconv.MEMORY_PEAK: 200,
        semconv.MEMORY_PEAK_EXACT: True,
    }


def test_each_reading_asks_the_allocator_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statistics are some hundred figures, so that asking costs more than everything else in a reading."""
    asked = _allocator(monkeypatch, (80, 90), (120, 200), (100, 200))
    meter = MemoryMeter(torch.device("cuda:1"))
    meter.look()
    meter.attributes()
    assert asked == [torch.device("cuda:1")] * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_agrees_with_torch() -> None:
    """The figures are those that torch gives."""
    held = torch.ones(1 << 20, device="cuda")
    found = MemoryMeter(held.device).attributes()
    assert found[semconv.MEMORY_END] == torch.cuda.memory_allocated(held.device)


def test_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read is left out, not 0."""
    monkeypatch.setattr(memory, "_resident", lambda: None)
    assert MemoryMeter(None).attributes() == {}
