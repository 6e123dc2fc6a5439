"""GPU readings: what a card says becomes exact samples, and what it does not say becomes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from inferspan import semconv
from inferspan.records import AttributeValue, Sample
from inferspan.samplers.nvml import NvmlSampler
from tests.samplers import fake_nvml as fake
from tests.samplers.fake_nvml import FakeNvml, NVMLError, hopper_card, split_card

UUID = "GPU-00cb6b6e-a504-ebd9-6345-b27dd00fbaa1"
OURS = 413

Readings = dict[tuple[str, ...], float]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def sampler(library: FakeNvml, **options: Any) -> NvmlSampler:
    """A sampler whose process is ``OURS``, in an empty environment."""
    return NvmlSampler(**{"library": library, "environ": {}, "pid": lambda: OURS, "clock": Clock(), **options})


def readings(samples: Any) -> Readings:
    """Values by metric and by the attributes that tell the readings of one device apart."""
    keys = (
        semconv.HW_GPU_TASK,
        semconv.NETWORK_IO_DIRECTION,
        semconv.HW_SENSOR_LOCATION,
        semconv.HW_LIMIT_TYPE,
        semconv.CLOCK_DOMAIN,
        semconv.THROTTLE_REASON,
        semconv.MEMORY_LOCATION,
        semconv.ERROR_TYPE,
        semconv.HW_STATE,
    )
    return {(sample.metric, *(str(sample.attributes[key]) for key in keys if key in sample.attributes)): sample.value for sample in samples}


def reported(samples: Any) -> set[Any]:
    """Ids of the devices that have readings."""
    return {sample.attributes[semconv.HW_ID] for sample in samples}


def states(samples: Any) -> list[Any]:
    """Current state of each device that says one."""
    found = [sample for sample in samples if sample.metric == semconv.M_HW_STATUS and sample.value == 1]
    return [sample.attributes[semconv.HW_STATE] for sample in found]


EXPECTED: Readings = {
    ("hw.energy",): 0,
    ("hw.gpu.utilization", "general"): 0.57,
    ("hw.gpu.utilization", "encoder"): 0,
    ("hw.gpu.utilization", "decoder"): 0.03,
    ("hw.gpu.utilization", "jpeg"): 0,
    ("hw.gpu.utilization", "ofa"): 0,
    ("inferspan.gpu.memory.activity",): 0.05,
    ("hw.gpu.memory.usage",): 858587136,
    ("hw.gpu.memory.limit",): 85520809984,
    ("hw.gpu.memory.utilization",): 858587136 / 85520809984,
    ("inferspan.gpu.process.memory.usage",): 849_346_560,
    ("hw.gpu.io", "transmit"): 0,
    ("hw.gpu.io", "receive"): 0,
    ("inferspan.gpu.throttle.time", "sw_power_cap"): 0,
    ("inferspan.gpu.throttle.time", "thermal"): 0,
    ("inferspan.gpu.throttle.time", "sync_boost"): 0,
    ("hw.power",): 650.585,
    ("inferspan.gpu.power.limit",): 700,
    ("hw.temperature", "gpu"): 54,
    ("hw.temperature", "memory"): 43,
    ("hw.temperature.limit", "high.critical"): 95,
    ("hw.temperature.limit", "high.degraded"): 89,
    ("hw.temperature.limit", "max"): 87,
    **{
        (metric, domain): hertz
        for metric in ("inferspan.gpu.clock.frequency", "inferspan.gpu.clock.limit")
        for domain, hertz in (("graphics", 1.98e9), ("sm", 1.98e9), ("memory", 2.619e9), ("video", 1.545e9))
    },
    **{
        ("inferspan.gpu.throttle.active", reason): int(reason == "sw_power_cap")
        for reason in (
            "idle", "app_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake", "display_clock",
        )
    },
    ("hw.errors", "corrected"): 0,
    ("hw.errors", "uncorrected"): 0,
    ("inferspan.gpu.ecc.errors", "dram", "corrected"): 0,
    ("inferspan.gpu.ecc.errors", "dram", "uncorrected"): 0,
    ("inferspan.gpu.remapped_rows", "corrected"): 1,
    ("inferspan.gpu.remapped_rows", "uncorrected"): 0,
    ("inferspan.gpu.pcie.replays",): 0,
    ("inferspan.gpu.pcie.link.generation",): 5,
    ("inferspan.gpu.pcie.link.width",): 16,
    ("inferspan.gpu.performance_state",): 0,
    **{("hw.status", state): int(state == "ok") for state in ("ok", "degraded", "failed", "predicted_failure")},
}  # fmt: skip


class TestReadings:
    """What a healthy card has to say."""

    @pytest.mark.parametrize("text", [str, bytes])
    def test_recorded_card(self, text: type) -> None:
        """A recorded card gives exactly its supported readings, in base units, whichever kind of string the binding returns."""
        samples = sampler(FakeNvml(hopper_card(), text=text), cuda_devices=lambda: {UUID: "cuda:0"}).collect()
        assert readings(samples) == EXPECTED
        assert len(samples) == len(EXPECTED)
        power = next(sample for sample in samples if sample.metric == semconv.M_POWER)
        assert power == Sample(
            "hw.power",
            650.585,
            {
                "hw.id": UUID,
                "hw.vendor": "NVIDIA",
                "hw.name": "nvidia0",
                "hw.model": "NVIDIA H100 80GB HBM3",
                "hw.driver_version": "580.159.04",
                "hw.firmware_version": "96.00.DA.00.0C",
                "inferspan.device.id": "cuda:0",
                "hw.type": "gpu",
            },
        )

    def test_only_known_names(self) -> None:
        """Every metric and attribute of a sample stands in the metric table."""
        for sample in sampler(FakeNvml(hopper_card())).collect():
            metric = semconv.METRICS[sample.metric]
            assert set(sample.attributes) <= set(metric.attributes), sample

    def test_counters(self) -> None:
        """Counters start at zero with us, rise with the hardware's, and survive a reset of the hardware's."""
        card = hopper_card()
        nvml = sampler(FakeNvml(card))
        seen = []
        for millijoules, nanoseconds in ((2_000_000, 10**9), (2_500_000, 3 * 10**9), (100, 4 * 10**9), (1_100, 4 * 10**9)):
            card.answers["TotalEnergyConsumption"] = millijoules
            card.fields[74] = nanoseconds
            found = readings(nvml.collect())
            seen.append((found[("hw.energy",)], found[("inferspan.gpu.throttle.time", "sw_power_cap")]))
        assert seen == [(0, 0), (500, 2), (500, 3), (501, 3)]

    def test_a_total_of_32_bits_is_no_reading(self) -> None:
        """PCIe bytes in 32 bits wrap faster than they are read: they are absent, while readings that fit in 32 bits stay."""
        card = hopper_card()
        card.narrow = frozenset({82, 197, 198})
        nvml = sampler(FakeNvml(card))
        for _ in range(2):
            found = readings(nvml.collect())
            assert not [key for key in found if key[0] == "hw.gpu.io"]
            assert found["hw.temperature", "memory"] == 43

    def test_unsupported_is_asked_once(self) -> None:
        """What a card does not support is asked for once, and never again; nor is a field left in the batch."""
        library = FakeNvml(hopper_card())
        nvml = sampler(library)
        nvml.collect()
        first = dict(library.calls)
        nvml.collect()
        again = {name: count - first.get(name, 0) for name, count in library.calls.items()}
        assert first["nvmlDeviceGetFanSpeed_v2"] == 1
        assert again["nvmlDeviceGetFanSpeed_v2"] == 0
        assert first["fields"] == 11
        assert again["fields"] == 6

    @pytest.mark.parametrize("value", [fake.SENTINEL, 0xFFFFFFFF, -1, None, math.nan])
    def test_sentinels(self, value: Any) -> None:
        """NVML's ways to say "not available" are no reading; the reading comes back when NVML has it."""
        card = hopper_card()
        card.answers["PowerUsage"] = value
        card.answers["TotalEnergyConsumption"] = value
        card.processes = [(OURS, value), (1, fake.SENTINEL)]
        nvml = sampler(FakeNvml(card))
        missing = {("hw.power",), ("hw.energy",), ("inferspan.gpu.process.memory.usage",)}
        assert EXPECTED.keys() - readings(nvml.collect()).keys() == missing
        card.answers["PowerUsage"] = 90_000
        assert readings(nvml.collect())[("hw.power",)] == 90

    def test_isolated_failures(self) -> None:
        """A reading that fails, for whichever reason, costs itself only."""
        card = hopper_card()
        card.answers["PowerUsage"] = NVMLError(fake.NO_PERMISSION)
        card.answers["UtilizationRates"] = NVMLError(fake.UNKNOWN)
        card.answers["PerformanceState"] = AttributeError("the binding is older")
        card.answers["PcieReplayCounter"] = RuntimeError("the binding is broken")
        card.processes = fake.NO_PERMISSION
        missing = {
            ("hw.power",),
            ("hw.gpu.utilization", "general"),
            ("inferspan.gpu.memory.activity",),
            ("inferspan.gpu.performance_state",),
            ("inferspan.gpu.pcie.replays",),
            ("inferspan.gpu.process.memory.usage",),
        }
        nvml = sampler(FakeNvml(card), cuda_devices=lambda: {UUID: "cuda:0"})
        assert EXPECTED.keys() - readings(nvml.collect()).keys() == missing
        card.answers["UtilizationRates"] = SimpleNamespace(gpu=57, memory=5)
        assert EXPECTED.keys() - readings(nvml.collect()).keys() == {
            key for key in missing if "tiliz" not in key[0] and "activity" not in key[0]
        }

    def test_older_names(self) -> None:
        """Functions that were renamed are found under their old names as well."""
        card = hopper_card()
        card.answers["CurrentClocksThrottleReasons"] = card.answers.pop("CurrentClocksEventReasons")
        card.answers["TemperatureV", 0] = card.answers.pop(("Temperature", 0))
        assert readings(sampler(FakeNvml(card)).collect()) == EXPECTED

    def test_unified_memory(self) -> None:
        """A card that shares the host's memory has CUDA's readings of it, or none before CUDA is up, and all its others."""
        card = hopper_card()
        del card.answers["MemoryInfo"]
        cuda: list[Mapping[str, str] | None] = [None, {UUID: "cuda:1"}]
        nvml = sampler(FakeNvml(card), cuda_devices=lambda: cuda.pop(0), cuda_memory={"cuda:1": (60, 80)}.get)
        usage, limit, ratio = ("hw.gpu.memory.usage",), ("hw.gpu.memory.limit",), ("hw.gpu.memory.utilization",)
        assert EXPECTED.keys() - readings(nvml.collect()).keys() == {usage, limit, ratio}
        assert readings(nvml.collect()) == {**EXPECTED, usage: 20, limit: 80, ratio: 0.25}

    @pytest.mark.parametrize(
        ("answers", "state"),
        [
            ({"CurrentClocksEventReasons": 0x40}, "degraded"),
            ({"CurrentClocksEventReasons": 0x80}, "degraded"),
            ({"CurrentClocksEventReasons": 0x20}, "ok"),
            ({"RemappedRows": (0, 1, 1, 0)}, "predicted_failure"),
            ({"RemappedRows": (0, 1, 0, 1), "CurrentClocksEventReasons": 0x40}, "predicted_failure"),
        ],
    )
    def test_status(self, answers: Mapping[str, Any], state: str) -> None:
        """Rows waiting to be remapped foretell a failure; clocks held down by the hardware's heat or power are a degradation."""
        card = hopper_card()
        card.answers.update(answers)
        assert states(sampler(FakeNvml(card)).collect()) == [state]


class TestMig:
    """Instances of a split card."""

    def test_instance(self) -> None:
        """An instance has its own memory and its parent's id, and neither utilisation nor power, even if NVML says 0."""
        nvml = sampler(FakeNvml(hopper_card(), split_card()), cuda_devices=lambda: {"GPU-1111": "cuda:0"})
        attributes: dict[str, AttributeValue] = {
            "hw.id": "MIG-1111",
            "hw.vendor": "NVIDIA",
            "hw.name": "nvidia1",
            "hw.model": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
            "hw.driver_version": "580.159.04",
            "hw.parent": "GPU-cccc",
            "inferspan.gpu.mig.gpu_instance_id": 2,
            "inferspan.gpu.mig.compute_instance_id": 0,
            "inferspan.device.id": "cuda:0",
        }
        assert nvml.collect() == [
            Sample("hw.gpu.memory.usage", 10 << 30, attributes),
            Sample("hw.gpu.memory.limit", 40 << 30, attributes),
            Sample("hw.gpu.memory.utilization", 0.25, attributes),
            Sample("inferspan.gpu.process.memory.usage", 5 << 30, attributes),
        ]

    def test_split_card_has_no_utilisation(self) -> None:
        """A split card does not report the 0 that some drivers give for its utilisation."""
        samples = sampler(FakeNvml(split_card()), all_gpus=True).collect()
        assert reported(samples) == {"GPU-cccc", "MIG-0000", "MIG-1111"}
        assert semconv.M_GPU_UTILIZATION not in {sample.metric for sample in samples}

    def test_layout_changes(self) -> None:
        """An instance that was removed disappears; the one made after it under the same name is found again."""
        clock, card = Clock(), split_card()
        library = FakeNvml(card)
        nvml = sampler(library, environ={"CUDA_VISIBLE_DEVICES": "MIG-1111"}, clock=clock)
        assert len(nvml.collect()) == 4
        old = card.instances.pop()
        old.error = fake.INVALID_ARGUMENT
        assert nvml.collect() == []
        card.instances.append(split_card().instances[1])
        card.instances[-1].parent = card
        clock.now += 120
        assert len(nvml.collect()) == 4


@pytest.mark.gpu
def test_real_card() -> None:
    """A real card that this process computes on has its core readings in plausible ranges, and NVML is left as it was found."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    from inferspan.samplers.allocator import AllocatorSampler, CudaDevices

    devices = CudaDevices()
    nvml = NvmlSampler(cuda_devices=devices)
    x = torch.randn(4096, 4096, device="cuda")
    (uuid,) = devices() or {}
    nvml.collect()
    first = nvml.energy()
    for _ in range(500):
        x @ x
    torch.cuda.synchronize()
    samples = nvml.collect()
    assert reported(samples) == {uuid}
    assert {sample.attributes[semconv.DEVICE] for sample in samples} == {"cuda:0"}
    found = readings(samples)
    assert found[("hw.status", "failed")] == 0
    assert 0 < found[("hw.gpu.memory.usage",)] < found[("hw.gpu.memory.limit",)]
    assert 10 < found[("hw.temperature", "gpu")] < 110
    assert 10 < found[("hw.power",)] < 2_000
    joules = nvml.energy()[uuid][0] - first[uuid][0]
    assert 1 < joules < 10_000
    allocated = {sample.metric: sample for sample in AllocatorSampler(devices=devices).collect()}
    assert allocated[semconv.M_TORCH_ALLOCATED].value >= x.nbytes
    assert allocated[semconv.M_TORCH_ALLOCATED].attributes == {"hw.id": uuid, "inferspan.device.id": "cuda:0"}
    nvml.close()
