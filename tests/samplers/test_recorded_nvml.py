"""The samplers over the recording of a real H200."""

from __future__ import annotations

from inferspan import semconv as s
from inferspan.samplers.allocator import AllocatorSampler, CudaDevices
from inferspan.samplers.nvml import NvmlSampler
from tests.samplers.recorded_nvml import FIRST_UUID, RecordedNvml, recorded_torch, rounds


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_loaded_h200_reads_as_recorded() -> None:
    """In a round under load the sampler's values are the recorded ones in base units, and counters count from the first reading."""
    clock = Clock()
    sampler = NvmlSampler(
        library=RecordedNvml(clock=clock, pid=lambda: 7), cuda_devices=lambda: {FIRST_UUID: "cuda:0"}, pid=lambda: 7, clock=clock
    )
    sampler.collect()
    clock.now += 12.5
    values = {(sample.metric, *sorted(str(v) for k, v in sample.attributes.items() if k in (s.HW_GPU_TASK, s.HW_SENSOR_LOCATION, s.NETWORK_IO_DIRECTION))): sample.value for sample in sampler.collect()}  # fmt: skip
    nvml, fields, first = rounds()[12]["nvml"], rounds()[12]["fields"], rounds()[0]
    energy = '["nvmlDeviceGetTotalEnergyConsumption"]'
    assert {
        s.M_GPU_UTILIZATION: values[s.M_GPU_UTILIZATION, "general"],
        s.M_POWER: values[s.M_POWER,],
        s.M_TEMPERATURE: values[s.M_TEMPERATURE, "gpu"],
        s.M_GPU_MEMORY_USAGE: values[s.M_GPU_MEMORY_USAGE,],
        s.M_GPU_PROCESS_MEMORY: values[s.M_GPU_PROCESS_MEMORY,],
        s.M_ENERGY: values[s.M_ENERGY,],
        s.M_GPU_IO: values[s.M_GPU_IO, "transmit"],
    } == {
        s.M_GPU_UTILIZATION: 0.99,
        s.M_POWER: 565.684,
        s.M_TEMPERATURE: 55,
        s.M_GPU_MEMORY_USAGE: 9_612_099_584,
        s.M_GPU_PROCESS_MEMORY: 9_602_859_008,
        s.M_ENERGY: (nvml[energy]["answer"] - first["nvml"][energy]["answer"]) / 1000,
        s.M_GPU_IO: fields["197"] - first["fields"]["197"],
    }


def test_counters_go_on_when_the_recording_starts_again() -> None:
    """Energy and traffic are always there and never fall, over three turns of the recording."""
    clock = Clock()
    sampler = NvmlSampler(library=RecordedNvml(clock=clock), cuda_devices=lambda: {FIRST_UUID: "cuda:0"}, clock=clock)
    energy, received = [], []
    for _ in range(3 * len(rounds())):
        for sample in sampler.collect():
            if sample.metric == s.M_ENERGY:
                energy.append(sample.value)
            elif sample.metric == s.M_GPU_IO and sample.attributes[s.NETWORK_IO_DIRECTION] == "receive":
                received.append(sample.value)
        clock.now += 1.0
    for read in (energy, received):
        assert len(read) == 3 * len(rounds()) and read == sorted(read) and read[-1] > 20_000


def test_the_recorded_allocator() -> None:
    """Two devices report the statistics of their own rounds under their own ids."""
    library = recorded_torch("GPU-a", "GPU-b", clock=Clock())
    samples = AllocatorSampler(devices=CudaDevices(library=library, environ={}), library=library).collect()
    found = {(sample.attributes[s.HW_ID], sample.value) for sample in samples if sample.metric == s.M_TORCH_ALLOCATED}
    assert found == {(uuid, rounds()[place]["torch"]["allocated_bytes.all.current"]) for uuid, place in (("GPU-a", 0), ("GPU-b", 7))}
