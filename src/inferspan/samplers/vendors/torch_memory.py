"""Memory of Apple and Intel GPUs, as torch counts it: the allocators of MPS and XPU.

torch is only looked up, never imported, and a device that the application does not use is not initialised. Written by torch's
documentation; never run on such a device. Neither has power, clocks or utilisation here: those need rights or tools of the system.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from inferspan import semconv as s
from inferspan.records import AttributeValue, Sample
from inferspan.samplers.attempt import attempt, number

__all__ = ["MpsSampler", "XpuSampler"]


class MpsSampler:
    """Readings of the MPS allocator, once a tensor has been put there.

    Args:
        library: a module like ``torch``; default the loaded one.
    """

    def __init__(self, *, library: Any = None) -> None:
        self._library = library

    def collect(self) -> Sequence[Sample]:
        """Readings of one round; empty where MPS is not available, and until something has been allocated."""
        torch: Any = sys.modules.get("torch") if self._library is None else self._library
        mps = getattr(torch, "mps", None)
        if mps is None or not attempt(lambda: torch.backends.mps.is_available()):
            return ()
        driver = number(lambda: mps.driver_allocated_memory())
        if not driver:
            return ()
        device: dict[str, AttributeValue] = {s.DEVICE: "mps:0"}
        gpu: dict[str, AttributeValue] = {**device, s.HW_ID: "mps:0", s.HW_VENDOR: "Apple"}
        rows = (
            (s.M_TORCH_ALLOCATED, number(lambda: mps.current_allocated_memory()), device),
            (s.M_TORCH_RESERVED, driver, device),
            (s.M_GPU_PROCESS_MEMORY, driver, gpu),
            # The memory is the host's; this is the share that the system recommends for the GPU.
            (s.M_GPU_MEMORY_LIMIT, number(lambda: mps.recommended_max_memory()), gpu),
        )
        return [Sample(metric, value, attributes) for metric, value, attributes in rows if value is not None]

    def close(self) -> None:
        """Nothing is held open."""


class XpuSampler:
    """Readings of the XPU allocator and of the devices' memory, once the application has initialised XPU.

    Args:
        library: a module like ``torch``; default the loaded one.
    """

    def __init__(self, *, library: Any = None) -> None:
        self._library = library

    def collect(self) -> Sequence[Sample]:
        """Readings of one round; empty until the application has initialised XPU."""
        torch: Any = sys.modules.get("torch") if self._library is None else self._library
        xpu = getattr(torch, "xpu", None)
        if xpu is None or not attempt(lambda: xpu.is_initialized()):
            return ()
        found: list[Sample] = []
        for index in range(attempt(xpu.device_count) or 0):
            found += self._read(xpu, index)
        return found

    def close(self) -> None:
        """Nothing is held open."""

    @staticmethod
    def _read(xpu: Any, index: int) -> list[Sample]:
        name = attempt(xpu.get_device_name, index)
        device: dict[str, AttributeValue] = {s.DEVICE: f"xpu:{index}"}
        gpu: dict[str, AttributeValue] = {**device, s.HW_ID: f"xpu:{index}", s.HW_VENDOR: "Intel"}
        if isinstance(name, str):
            gpu[s.HW_NAME] = name
        rows = [
            (metric, number(lambda function=function: getattr(xpu, function)(index)), device)
            for metric, function in (
                (s.M_TORCH_ALLOCATED, "memory_allocated"), (s.M_TORCH_RESERVED, "memory_reserved"),
                (s.M_TORCH_ALLOCATED_PEAK, "max_memory_allocated"), (s.M_TORCH_RESERVED_PEAK, "max_memory_reserved"),
            )
        ]  # fmt: skip
        memory = attempt(lambda: tuple(map(int, xpu.mem_get_info(index))))
        if memory is not None and len(memory) == 2 and memory[1] > 0:
            free, total = memory
            rows += [
                (s.M_GPU_MEMORY_USAGE, total - free, gpu), (s.M_GPU_MEMORY_LIMIT, total, gpu),
                (s.M_GPU_MEMORY_UTILIZATION, (total - free) / total, gpu),
            ]  # fmt: skip
        return [Sample(metric, value, attributes) for metric, value, attributes in rows if value is not None]
