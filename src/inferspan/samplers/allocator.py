"""torch's CUDA allocator, and which GPUs the application's CUDA uses.

torch is only looked up, never imported, and CUDA is never initialised: without either there is no reading. Numbers are those
of ``torch.cuda.memory_stats``; its peaks belong to the application and are not reset. A device that fails is absent and costs no other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferspan import semconv as s
from inferspan.records import AttributeValue, Sample

from .attempt import attempt, number

__all__ = ["AllocatorSampler", "CudaDevices", "allocated_bytes", "cuda_devices", "device_memory"]

_STATISTICS = {
    s.M_TORCH_ALLOCATED: "allocated_bytes.all.current",
    s.M_TORCH_RESERVED: "reserved_bytes.all.current",
    s.M_TORCH_ACTIVE: "active_bytes.all.current",
    s.M_TORCH_REQUESTED: "requested_bytes.all.current",
    s.M_TORCH_ALLOCATED_PEAK: "allocated_bytes.all.peak",
    s.M_TORCH_RESERVED_PEAK: "reserved_bytes.all.peak",
    s.M_TORCH_RETRIES: "num_alloc_retries",
    s.M_TORCH_OOMS: "num_ooms",
}
_WHOLE_MIG_UUID = len("MIG-") + 36


def _initialized(library: Any) -> Any:
    """torch, if it is loaded and the application has initialised CUDA in this process; else ``None``."""
    torch = sys.modules.get("torch") if library is None else library
    # While torch is being imported, its parts are not there yet.
    initialized = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    return torch if initialized is not None and initialized() else None


def _used(torch: Any) -> Iterator[int]:
    """Numbers of the devices on which this process holds a context; under a launcher every rank sees all of them."""
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    for index in range(attempt(torch.cuda.device_count) or 0):
        if has_context is None or attempt(has_context, index):
            yield index


class CudaDevices:
    """Callable that maps the UUIDs of the GPUs in use to their CUDA names; each device is asked for its UUID once."""

    def __init__(self, *, library: Any = None, environ: Mapping[str, str] | None = None) -> None:
        self._library = library
        self._environ = environ
        self._uuids: dict[int, str] = {}

    def __call__(self) -> dict[str, str] | None:
        """``{"GPU-...": "cuda:0"}``; ``None`` while CUDA is not initialised, or if this torch has no UUIDs."""
        torch = _initialized(self._library)
        if torch is None or torch.version.cuda is None:  # ROCm's UUIDs are not NVML's
            return None
        devices: dict[str, str] = {}
        for index in _used(torch):
            if index not in self._uuids:
                properties = attempt(torch.cuda.get_device_properties, index)
                if properties is None:
                    continue
                uuid = getattr(properties, "uuid", None)
                if uuid is None:
                    return None
                self._uuids[index] = self._whole(str(uuid))
            devices[self._uuids[index]] = f"cuda:{index}"
        return devices

    def _whole(self, uuid: str) -> str:
        # A process has one MIG instance at most, and torch may name the card instead of it.
        visible = (os.environ if self._environ is None else self._environ).get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
        if visible.startswith("MIG-GPU-") or (visible.startswith("MIG-") and len(visible) == _WHOLE_MIG_UUID):
            return visible
        return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


cuda_devices = CudaDevices()
"""The map of this process."""


def device_memory(device: str, *, library: Any = None) -> tuple[int, int] | None:
    """Free and total bytes of a CUDA device as CUDA itself counts; ``None`` while CUDA is not initialised."""
    torch = _initialized(library)
    if torch is None:
        return None
    free, total = torch.cuda.mem_get_info(device)
    return int(free), int(total)


def allocated_bytes(*, library: Any = None) -> int | None:
    """Bytes that torch's allocator has given out on all CUDA devices of this process; ``None`` while CUDA is not initialised."""
    torch = _initialized(library)
    if torch is None:
        return None
    # The flat mapping of memory_stats sorts all figures of the allocator for each reading: half a millisecond.
    figures = (torch.cuda.memory_stats_as_nested_dict(index) for index in _used(torch))
    return sum(int(found["allocated_bytes"]["all"]["current"]) for found in figures if found)


class AllocatorSampler:
    """Readings of torch's caching allocator on every CUDA device that this process uses.

    Args:
        devices: the map of UUIDs to CUDA names.
        library: a module like ``torch``; default the loaded one.
    """

    def __init__(self, *, devices: CudaDevices = cuda_devices, library: Any = None) -> None:
        self._devices = devices
        self._library = library

    def collect(self) -> Sequence[Sample]:
        """Readings of one round; empty until the application has initialised CUDA."""
        torch = _initialized(self._library)
        if torch is None:
            return ()
        uuids = {device: uuid for uuid, device in (attempt(self._devices) or {}).items()}
        samples = []
        for index in _used(torch):
            device = f"cuda:{index}"
            attributes: dict[str, AttributeValue] = {s.DEVICE: device}
            if device in uuids:
                attributes[s.HW_ID] = uuids[device]
            statistics = attempt(torch.cuda.memory_stats, index) or {}
            for metric, key in _STATISTICS.items():
                value = number(statistics.get, key)
                if value is not None:
                    samples.append(Sample(metric, value, attributes))
        return samples

    def close(self) -> None:
        """Nothing is held open."""
