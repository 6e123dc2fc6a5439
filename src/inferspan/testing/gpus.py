"""GPUs that a test describes, in place of the NVML binding: what inferspan reads of them, and when it cannot.

In come ``FakeGpu``s, whose figures a test may change at any time. While ``fake_gpus`` is open, ``import pynvml`` gives a module with them;
each lists this process as a user of it, so that inferspan takes it for one of its own. Figures that are ``None`` are not supported.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

__all__ = ["FakeGpu", "fake_gpus"]

_NOT_SUPPORTED, _NOT_FOUND, _UNINITIALIZED, _LOST = 3, 6, 1, 15


class NVMLError(Exception):
    """As in the binding: the code is in ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass(eq=False)
class FakeGpu:
    """One GPU.

    Attributes:
        uuid: by which inferspan knows it.
        name: its model.
        memory_used, memory_total: bytes.
        utilization: share of the time in which something ran, 0 to 1.
        power, power_limit: watts.
        temperature: degrees Celsius.
        energy: joules since some time.
        sm_clock: Hz.
        lost: as if it had fallen off the bus: every reading fails.
    """

    uuid: str = "GPU-00000000-0000-0000-0000-000000000001"
    name: str = "NVIDIA Fake"
    memory_used: int | None = 8 << 30
    memory_total: int = 80 << 30
    utilization: float | None = 0.5
    power: float | None = 300.0
    power_limit: float | None = 700.0
    temperature: float | None = 50.0
    energy: float | None = 1_000.0
    sm_clock: float | None = 1.98e9
    lost: bool = False

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """What NVML answers to a question about the device; ``None`` is not supported."""
        used = self.memory_used
        answers = {
            ("Name",): self.name,
            ("MemoryInfo",): None if used is None else SimpleNamespace(total=self.memory_total, used=used, free=self.memory_total - used),
            ("UtilizationRates",): None if self.utilization is None else SimpleNamespace(gpu=round(100 * self.utilization), memory=0),
            ("PowerUsage",): _whole(self.power, 1e3),
            ("EnforcedPowerLimit",): _whole(self.power_limit, 1e3),
            ("TotalEnergyConsumption",): _whole(self.energy, 1e3),
            ("Temperature", 0): _whole(self.temperature, 1),
            ("ClockInfo", 1): _whole(self.sm_clock, 1e-6),
        }
        return answers.get((name, *arguments), answers.get((name,)))


def _whole(value: float | None, factor: float) -> int | None:
    return None if value is None else round(value * factor)


class _Nvml(ModuleType):
    """The part of ``pynvml`` that inferspan asks."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2

    def __init__(self, gpus: tuple[FakeGpu, ...], driver: str) -> None:
        super().__init__("pynvml")
        self._gpus, self._driver, self._open = gpus, driver, 0

    def nvmlInit(self) -> None:
        self._open += 1

    def nvmlShutdown(self) -> None:
        self._check()
        self._open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._check()
        return self._driver

    def nvmlDeviceGetCount(self) -> int:
        self._check()
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self._check()
        return self._gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        self._check()
        for gpu in self._gpus:
            if gpu.uuid == uuid:
                return gpu
        raise NVMLError(_NOT_FOUND)

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        self._check()
        return gpu.uuid

    def nvmlDeviceGetIndex(self, gpu: FakeGpu) -> int:
        self._check()
        return self._gpus.index(gpu)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        self._check(gpu)
        return (0, 0)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        self._check(gpu)
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=gpu.memory_used)]

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, wanted: list[Any]) -> list[SimpleNamespace]:
        self._check(gpu)
        numbers = [item[0] if isinstance(item, tuple) else item for item in wanted]
        return [SimpleNamespace(fieldId=number, nvmlReturn=_NOT_SUPPORTED, valueType=1, value=None) for number in numbers]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def call(gpu: FakeGpu, *arguments: Any, **options: Any) -> Any:
            self._check(gpu)
            answer = gpu._answer(name.removeprefix("nvmlDeviceGet"), arguments)
            if answer is None:
                raise NVMLError(_NOT_SUPPORTED)
            return answer

        return call

    def _check(self, gpu: FakeGpu | None = None) -> None:
        if not self._open:
            raise NVMLError(_UNINITIALIZED)
        if gpu is not None and gpu.lost:
            raise NVMLError(_LOST)


@contextmanager
def fake_gpus(*gpus: FakeGpu, driver: str = "580.00") -> Iterator[tuple[FakeGpu, ...]]:
    """Let ``import pynvml`` give these GPUs inside a block; open it before a model is instrumented.

    Args:
        *gpus: default: one ``FakeGpu()``.
        driver: its version.

    Yields:
        The GPUs, whose figures may be changed: the next reading has them.

    Raises:
        RuntimeError: GPUs are read already, for an instrumented model or a generation that runs.
    """
    from inferspan.samplers.process import samplers

    _stop_unused()
    if samplers.running:
        raise RuntimeError(
            "GPUs are read already, for an instrumented model or an open generation(): open fake_gpus() before it, or use nvml=False there"
        )
    chosen = gpus or (FakeGpu(),)
    before = sys.modules.get("pynvml")
    sys.modules["pynvml"] = _Nvml(chosen, driver)
    try:
        yield chosen
    finally:
        # Readings that go on would be those of the fake GPUs.
        _stop_unused()
        if before is None:
            sys.modules.pop("pynvml", None)
        else:
            sys.modules["pynvml"] = before


def _stop_unused() -> None:
    """Stop readings for models that are collected, and for generations that have ended."""
    from inferspan.instrument import release_collected
    from inferspan.program.blocks import rest
    from inferspan.samplers.process import samplers

    rest()
    if samplers.running:
        gc.collect()
    release_collected()
