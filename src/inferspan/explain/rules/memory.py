"""Memory: allocations that need the cache flushed, a card that is nearly full, and a host that is short of memory."""

from __future__ import annotations

from collections.abc import Iterator

from inferspan import semconv
from inferspan.text.numbers import counted
from inferspan.text.quantities import bytes_text

from ..cause import LIKELY, SURE, Cause, shown_by
from ..figures import Figures
from ..spans import whole
from ..tree import MACHINE
from ..wording import percent

__all__ = ["allocator_retries", "high_memory", "host_memory"]

_FULL, _VERY_FULL = 0.9, 0.97
_HOST_FULL = 0.95
_FAULTS = 100.0
"""Major page faults a second."""
_USED = {semconv.MEMORY_STATE: "used"}


def allocator_retries(figures: Figures) -> Iterator[Cause]:
    """Allocations that found no memory before the cache was flushed, which waits for the device."""
    retries, ooms = figures.metrics.last(semconv.M_TORCH_RETRIES) or 0, figures.metrics.last(semconv.M_TORCH_OOMS) or 0
    if not retries and not ooms:
        return
    reserved, allocated = figures.metrics.highest(semconv.M_TORCH_RESERVED), figures.metrics.highest(semconv.M_TORCH_ALLOCATED)
    apart = reserved - allocated if reserved is not None and allocated is not None else None
    held = {"reserved_bytes": reserved, "allocated_bytes": allocated, "unused_bytes": apart}
    yield Cause(
        rule="allocator_retries",
        title=f"{counted(round(retries), 'allocation')} had to flush the cache of the allocator first,"
        f" {ooms:,.0f} failed for lack of memory",
        place=MACHINE,
        seconds=None,
        level="high" if ooms or retries >= 10 else "medium",
        sure=SURE,
        figures={"retries": retries, "out_of_memory": ooms, **held},
        spans=shown_by(request.span for request in figures.requests if semconv.MEMORY_PEAK in request.span.attributes),
        advice="Leave more memory free: smaller batches or cache. If much is reserved and not allocated, let segments grow.",
        setting="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    )


def high_memory(figures: Figures) -> Iterator[Cause]:
    """A card whose memory is nearly full."""
    found = {
        str(series.attributes.get(semconv.HW_ID, "")): float(series.maximum)
        for series in figures.metrics.series(semconv.M_GPU_MEMORY_UTILIZATION) if series.maximum is not None
    }  # fmt: skip
    full = {gpu: share for gpu, share in found.items() if share > _FULL}
    if not full:
        return
    gpu, most = max(full.items(), key=lambda item: item[1])
    size = figures.metrics.highest(semconv.M_GPU_MEMORY_LIMIT, {semconv.HW_ID: gpu})
    peaks = [(whole(request.span, semconv.MEMORY_PEAK) or 0, request.span) for request in figures.requests]
    peak = max((size for size, _ in peaks), default=0)
    yield Cause(
        rule="high_memory",
        title=f"{percent(most)} of the memory of {gpu or 'a GPU'} is in use" + (f", of {bytes_text(size)}" if size else ""),
        place=MACHINE,
        seconds=None,
        level="high" if most > _VERY_FULL else "medium",
        sure=SURE,
        figures={"memory_share": most, "gpu": gpu or None, "memory_bytes": size, "peak_of_requests": peak or None, "full_gpus": len(full)},
        spans=shown_by(span for size, span in peaks if size == peak),
        advice="Longer prompts or larger batches may fail: use a smaller cache, quantized weights, or a second card.",
        setting="max_new_tokens, batch size, quantization_config",
    )


def host_memory(figures: Figures) -> Iterator[Cause]:
    """A host or container that is short of memory, so that pages are read again from disk."""
    limit, usage = figures.metrics.last(semconv.M_CGROUP_MEMORY_LIMIT), figures.metrics.highest(semconv.M_CGROUP_MEMORY_USAGE)
    used = figures.metrics.highest(semconv.M_SYSTEM_MEMORY_UTILIZATION, _USED)
    faults = (figures.metrics.last(semconv.M_PROCESS_FAULTS, {semconv.PAGING_FAULT_TYPE: "major"}) or 0.0) / max(figures.wall, 1.0)
    container = usage / limit if usage is not None and limit else None
    full = max(container or 0.0, used or 0.0)
    if faults < _FAULTS and full < _HOST_FULL:
        return
    where = "the container's limit" if container is not None and container >= (used or 0.0) else "the memory of the host"
    yield Cause(
        rule="host_memory",
        title=f"{percent(full)} of {where} is in use"
        + (f", and {faults:,.0f} pages a second are read from disk" if faults >= _FAULTS else ""),
        place=MACHINE,
        seconds=None,
        level="high" if faults >= _FAULTS else "medium",
        sure=SURE if faults >= _FAULTS else LIKELY,
        figures={"memory_share": full, "container_share": container, "host_share": used, "major_faults_per_second": faults},
        spans=shown_by(request.span for request in figures.requests),
        advice="Give the process more memory, load fewer models in it, or read weights once and share them.",
    )
