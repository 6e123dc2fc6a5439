"""Samplers of AMD, Apple and Intel against modules shaped by the vendors' documentation: units, what is refused, what is not ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inferspan import semconv as s
from inferspan.records import Sample
from inferspan.samplers.vendors.amd import AmdSampler
from inferspan.samplers.vendors.torch_memory import MpsSampler, XpuSampler

PID = 4711


class AmdSmi:
    """``amdsmi`` with two cards; the second one is another process's.

    Args:
        millidegrees: whether temperatures are in thousandths, as documented.
        refused: functions that raise, as where a card does not support them.
    """

    AmdSmiTemperatureType = SimpleNamespace(EDGE=0, HOTSPOT=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)

    def __init__(self, *, millidegrees: bool = True, refused: tuple[str, ...] = ()) -> None:
        self.scale = 1000 if millidegrees else 1
        self.refused = refused
        self.energy = 1_000_000
        self.opened = 0

    def __getattribute__(self, name: str) -> Any:
        if name in object.__getattribute__(self, "refused"):
            raise OSError("AMDSMI_STATUS_NOT_SUPPORTED")
        return object.__getattribute__(self, name)

    def amdsmi_init(self) -> None:
        self.opened += 1

    def amdsmi_shut_down(self) -> None:
        self.opened -= 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0, 1]

    def amdsmi_get_gpu_device_uuid(self, handle: int) -> str:
        return f"uuid-{handle}"

    def amdsmi_get_gpu_process_list(self, handle: int) -> list[dict[str, Any]]:
        return [{"name": "python", "pid": PID if handle == 0 else 1}]

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, Any]:
        return {"market_name": "AMD Instinct MI300X"}

    def amdsmi_get_gpu_activity(self, handle: int) -> dict[str, Any]:
        return {"gfx_activity": 87, "umc_activity": 12, "mm_activity": "N/A"}

    def amdsmi_get_gpu_vram_usage(self, handle: int) -> dict[str, int]:
        return {"vram_total": 196_592, "vram_used": 49_148}

    def amdsmi_get_power_info(self, handle: int) -> dict[str, Any]:
        return {"socket_power": "N/A", "current_socket_power": 512, "average_socket_power": "N/A"}

    def amdsmi_get_temp_metric(self, handle: int, sensor: int, metric: int) -> int:
        if sensor == 0:
            raise OSError("AMDSMI_STATUS_NOT_SUPPORTED")
        return 61 * self.scale

    def amdsmi_get_energy_count(self, handle: int) -> dict[str, Any]:
        return {"energy_accumulator": self.energy, "counter_resolution": 15.3, "timestamp": 1}


def values(samples: Any) -> dict[str, float]:
    """The value of each metric, of which there is one."""
    found: dict[str, float] = {}
    for sample in samples:
        assert isinstance(sample, Sample)
        assert sample.metric not in found
        found[sample.metric] = sample.value
    return found


def test_amd_readings_are_in_the_units_of_the_conventions() -> None:
    """Shares from percent, bytes from MiB, degrees, watts and joules since the first reading, of the card that we use."""
    library = AmdSmi()
    sampler = AmdSampler(library=library, pid=lambda: PID)
    first = sampler.collect()
    assert {sample.attributes[s.HW_ID] for sample in first} == {"uuid-0"}
    assert {sample.attributes[s.HW_VENDOR] for sample in first} == {"AMD"}
    assert {sample.attributes[s.HW_NAME] for sample in first} == {"AMD Instinct MI300X"}
    library.energy += 1_000_000
    found = values(sampler.collect())
    assert found == pytest.approx({
        s.M_GPU_UTILIZATION: 0.87, s.M_MEMORY_ACTIVITY: 0.12, s.M_GPU_MEMORY_USAGE: 49_148 * 2**20, s.M_GPU_MEMORY_LIMIT: 196_592 * 2**20,
        s.M_GPU_MEMORY_UTILIZATION: 0.25, s.M_POWER: 512.0, s.M_TEMPERATURE: 61.0, s.M_ENERGY: 15.3,
    })  # fmt: skip
    sampler.close()
    assert library.opened == 0


def test_amd_degrees_are_taken_as_they_come() -> None:
    """A release that returns degrees is read like one that returns thousandths."""
    found = values(AmdSampler(library=AmdSmi(millidegrees=False), pid=lambda: PID).collect())
    assert found[s.M_TEMPERATURE] == 61.0


@pytest.mark.parametrize(
    ("function", "gone"),
    [
        ("amdsmi_get_gpu_activity", {s.M_GPU_UTILIZATION, s.M_MEMORY_ACTIVITY}),
        ("amdsmi_get_gpu_vram_usage", {s.M_GPU_MEMORY_USAGE, s.M_GPU_MEMORY_LIMIT, s.M_GPU_MEMORY_UTILIZATION}),
        ("amdsmi_get_power_info", {s.M_POWER}),
        ("amdsmi_get_temp_metric", {s.M_TEMPERATURE}),
        ("amdsmi_get_energy_count", {s.M_ENERGY}),
    ],
)
def test_amd_readings_that_are_refused_are_absent(function: str, gone: set[str]) -> None:
    """Absent, never zero, and the others are there."""
    whole = values(AmdSampler(library=AmdSmi(), pid=lambda: PID).collect())
    found = values(AmdSampler(library=AmdSmi(refused=(function,)), pid=lambda: PID).collect())
    assert set(whole) - set(found) == gone


def test_amd_without_a_driver_reads_nothing() -> None:
    """Initialisation fails, and so nothing is asked."""
    assert AmdSampler(library=AmdSmi(refused=("amdsmi_init",)), pid=lambda: PID).collect() == ()


def test_amd_all_gpus() -> None:
    """On demand every card of the host."""
    samples = AmdSampler(library=AmdSmi(), all_gpus=True, pid=lambda: PID, metrics={s.M_POWER}).collect()
    assert [sample.attributes[s.HW_ID] for sample in samples] == ["uuid-0", "uuid-1"]


def _mps(driver: int, *, available: bool = True) -> Any:
    functions = SimpleNamespace(
        current_allocated_memory=lambda: 300, driver_allocated_memory=lambda: driver, recommended_max_memory=lambda: 16_000
    )
    return SimpleNamespace(mps=functions, backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: available)))


def test_apple_memory() -> None:
    """What torch has allocated and reserved, and the share of the memory that the system recommends."""
    found = values(MpsSampler(library=_mps(400)).collect())
    assert found == {s.M_TORCH_ALLOCATED: 300, s.M_TORCH_RESERVED: 400, s.M_GPU_PROCESS_MEMORY: 400, s.M_GPU_MEMORY_LIMIT: 16_000}


@pytest.mark.parametrize("library", [_mps(0), _mps(400, available=False), SimpleNamespace()], ids=["unused", "not available", "old torch"])
def test_apple_memory_that_is_not_used_is_absent(library: Any) -> None:
    """Never zero."""
    assert MpsSampler(library=library).collect() == ()


def _xpu(*, initialized: bool = True) -> Any:
    def of(value: int) -> Any:
        return lambda index: value + index

    return SimpleNamespace(
        xpu=SimpleNamespace(
            is_initialized=lambda: initialized, device_count=lambda: 2, get_device_name=lambda index: "Intel Arc", memory_allocated=of(10),
            memory_reserved=of(20), max_memory_allocated=of(30), max_memory_reserved=of(40), mem_get_info=lambda index: (600, 1000),
        )
    )  # fmt: skip


def test_intel_memory() -> None:
    """Of each device: torch's allocator, and the memory of the device."""
    samples = XpuSampler(library=_xpu()).collect()
    second = [sample for sample in samples if sample.attributes[s.DEVICE] == "xpu:1"]
    assert values(second) == {
        s.M_TORCH_ALLOCATED: 11, s.M_TORCH_RESERVED: 21, s.M_TORCH_ALLOCATED_PEAK: 31, s.M_TORCH_RESERVED_PEAK: 41,
        s.M_GPU_MEMORY_USAGE: 400, s.M_GPU_MEMORY_LIMIT: 1000, s.M_GPU_MEMORY_UTILIZATION: 0.4,
    }  # fmt: skip


def test_intel_is_never_initialised_by_us() -> None:
    """Without the application there is no reading."""
    assert XpuSampler(library=_xpu(initialized=False)).collect() == ()
