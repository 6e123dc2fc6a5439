"""The allocator's readings and the map of UUIDs, over a torch that a test describes; no CUDA is needed, and none is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from inferspan import semconv
from inferspan.records import Sample
from inferspan.samplers.allocator import AllocatorSampler, CudaDevices, device_memory

UUIDS = ("00cb6b6e-a504-ebd9-6345-b27dd00fbaa1", "11cb6b6e-a504-ebd9-6345-b27dd00fbaa1")
STATISTICS = {
    "allocated_bytes.all.current": 100,
    "allocated_bytes.all.peak": 150,
    "reserved_bytes.all.current": 200,
    "reserved_bytes.all.peak": 250,
    "active_bytes.all.current": 120,
    "requested_bytes.all.current": 90,
    "num_alloc_retries": 1,
    "num_ooms": 2,
    "segment.all.current": 3,
}


def fake_torch(*, initialized: bool = True, contexts: tuple[int, ...] = (1,), cuda: str | None = "13.0", uuids: Any = UUIDS) -> Any:
    """As much of torch as is used, with one device per UUID."""
    asked: list[int] = []

    def properties(number: int) -> Any:
        asked.append(number)
        return SimpleNamespace() if uuids[number] is None else SimpleNamespace(uuid=uuids[number])

    return SimpleNamespace(
        asked=asked,
        version=SimpleNamespace(cuda=cuda),
        _C=SimpleNamespace(_cuda_hasPrimaryContext=lambda number: number in contexts),
        cuda=SimpleNamespace(
            is_initialized=lambda: initialized,
            device_count=lambda: len(uuids),
            get_device_properties=properties,
            memory_stats=lambda number: {key: value + 1000 * number for key, value in STATISTICS.items()},
            mem_get_info=lambda device: (60, 80),
        ),
    )


class TestDevices:
    """Which GPUs the application's CUDA uses."""

    def test_devices_with_a_context(self) -> None:
        """Devices that the process computes on are ours, those that it merely sees are not; UUIDs are asked for once."""
        torch = fake_torch()
        devices = CudaDevices(library=torch, environ={})
        assert [devices(), devices()] == [{f"GPU-{UUIDS[1]}": "cuda:1"}] * 2
        assert torch.asked == [1]

    @pytest.mark.parametrize(
        ("visible", "uuid", "expected"),
        [
            ("", "GPU-1", "GPU-1"),
            ("", "1", "GPU-1"),
            ("GPU-1", "1", "GPU-1"),
            (f"MIG-{UUIDS[0]}", "1", f"MIG-{UUIDS[0]}"),
            ("MIG-GPU-1/2/0", "1", "MIG-GPU-1/2/0"),
            ("MIG-00cb", "1", "GPU-1"),
        ],
    )
    def test_prefix(self, visible: str, uuid: str, expected: str) -> None:
        """UUIDs are written as NVML writes them; a MIG instance that the environment names in full is that instance."""
        torch = fake_torch(contexts=(0,), uuids=(uuid,))
        assert CudaDevices(library=torch, environ={"CUDA_VISIBLE_DEVICES": visible})() == {expected: "cuda:0"}

    @pytest.mark.parametrize(
        "torch",
        [
            pytest.param(fake_torch(initialized=False), id="CUDA not initialised"),
            pytest.param(fake_torch(cuda=None), id="ROCm"),
            pytest.param(fake_torch(uuids=(None, None)), id="no UUIDs"),
            pytest.param(SimpleNamespace(), id="torch half imported"),
        ],
    )
    def test_unknown(self, torch: Any) -> None:
        """Before CUDA is up, or where torch cannot say, nothing is known, which is not the same as no device."""
        assert CudaDevices(library=torch, environ={})() is None

    def test_nothing_used(self) -> None:
        """CUDA that is up but has no context anywhere uses no device."""
        assert CudaDevices(library=fake_torch(contexts=()), environ={})() == {}


class TestAllocator:
    """Readings of torch's caching allocator."""

    def test_readings(self) -> None:
        """Each device in use has the allocator's numbers, with the id that NVML readings carry as well."""
        torch = fake_torch()
        attributes = {"inferspan.device.id": "cuda:1", "hw.id": f"GPU-{UUIDS[1]}"}
        expected = {
            semconv.M_TORCH_ALLOCATED: 1100,
            semconv.M_TORCH_RESERVED: 1200,
            semconv.M_TORCH_ACTIVE: 1120,
            semconv.M_TORCH_REQUESTED: 1090,
            semconv.M_TORCH_ALLOCATED_PEAK: 1150,
            semconv.M_TORCH_RESERVED_PEAK: 1250,
            semconv.M_TORCH_RETRIES: 1001,
            semconv.M_TORCH_OOMS: 1002,
        }
        sampler = AllocatorSampler(devices=CudaDevices(library=torch, environ={}), library=torch)
        assert sampler.collect() == [Sample(metric, value, attributes) for metric, value in expected.items()]
        sampler.close()

    def test_missing_statistic(self) -> None:
        """A number that this allocator does not keep is absent; without NVML's UUIDs readings carry the device only."""
        torch = fake_torch(cuda=None)
        torch.cuda.memory_stats = lambda number: {"num_ooms": 0}
        sampler = AllocatorSampler(devices=CudaDevices(library=torch, environ={}), library=torch)
        assert sampler.collect() == [Sample(semconv.M_TORCH_OOMS, 0, {"inferspan.device.id": "cuda:1"})]

    @pytest.mark.parametrize("error", [RuntimeError("invalid device ordinal"), ValueError("no"), KeyError("stats")], ids=repr)
    @pytest.mark.parametrize("name", ["memory_stats", "get_device_properties", "has_context"])
    def test_one_device_fails(self, name: str, error: Exception) -> None:
        """A device that cannot be read takes no other with it; one that has no UUID only lacks its id."""
        torch = fake_torch(contexts=(0, 1))
        owner, attribute = (torch._C, "_cuda_hasPrimaryContext") if name == "has_context" else (torch.cuda, name)
        usual = getattr(owner, attribute)

        def failing(index: int) -> Any:
            if index == 0:
                raise error
            return usual(index)

        setattr(owner, attribute, failing)
        samples = AllocatorSampler(devices=CudaDevices(library=torch, environ={}), library=torch).collect()
        devices = {sample.attributes[semconv.DEVICE]: sample.attributes.get("hw.id") for sample in samples}
        assert devices["cuda:1"] == f"GPU-{UUIDS[1]}"
        assert devices.get("cuda:0", "absent") == (None if name == "get_device_properties" else "absent")

    def test_one_statistic_is_no_number(self) -> None:
        """A statistic that is no number is absent by itself."""
        torch = fake_torch()
        torch.cuda.memory_stats = lambda number: {**STATISTICS, "num_ooms": None}
        samples = AllocatorSampler(devices=CudaDevices(library=torch, environ={}), library=torch).collect()
        assert semconv.M_TORCH_OOMS not in {sample.metric for sample in samples}
        assert len(samples) == 7

    def test_before_cuda(self) -> None:
        """Before the application has initialised CUDA there is no reading."""
        torch = fake_torch(initialized=False)
        assert AllocatorSampler(library=torch).collect() == ()
        assert device_memory("cuda:0", library=torch) is None

    def test_device_memory(self) -> None:
        """CUDA's own count of memory is there once CUDA is."""
        assert device_memory("cuda:0", library=fake_torch()) == (60, 80)


@pytest.mark.parametrize("module", ["allocator", "nvml", "host", "loop"])
def test_nothing_is_imported(module: str) -> None:
    """Importing a sampler loads no library that it reads, nor OpenTelemetry's SDK; the allocator's never loads torch."""
    program = (
        f"import sys, inferspan.samplers.{module} as m\n"
        "if hasattr(m, 'AllocatorSampler'): assert m.AllocatorSampler().collect() == () and m.cuda_devices() is None\n"
        "print([n for n in ('torch', 'transformers', 'pynvml', 'psutil', 'opentelemetry.sdk') if n in sys.modules])"
    )
    environ: Mapping[str, str] = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
