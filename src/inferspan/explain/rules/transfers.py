"""Transfers and waits: weights that are moved in for each call, copies, and points at which the host waits for the device."""

from __future__ import annotations

from collections.abc import Iterator

from inferspan import semconv
from inferspan.text.quantities import bytes_text

from ..cause import LIKELY, SURE, Cause, Part, shown_by
from ..figures import Figures
from ..spans import SpanLike, number, text, whole
from ..wording import percent

__all__ = ["host_syncs", "offload_stall", "transfer_bound"]

_PART = 0.1
_MUCH = 0.3
_SYNC_OPS = frozenset((
    "aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::masked_select", "aten::_unique2",
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize",
))  # fmt: skip
"""Operations that make the host wait for the device."""
_BACK = "DtoH"
_SMALL = 4096
"""Bytes of a copy to the host up to which it is a value that the host waits for, rather than a result."""


def offload_stall(figures: Figures) -> Iterator[Cause]:
    """Weights that accelerate moves in for each call."""
    found = [(request, seconds) for request in figures.requests if (seconds := number(request.span, semconv.OFFLOAD_TIME))]
    seconds = sum(cost for _, cost in found)
    if not found or seconds < _PART * figures.total:
        return
    yield Cause(
        rule="offload_stall",
        title=f"moving offloaded weights in takes {percent(seconds / figures.total)} of the time",
        place=_longest(figures),
        seconds=seconds,
        gain=seconds,
        sure=SURE,
        figures={"offload_seconds": seconds, "requests": len(found)},
        spans=shown_by(request.span for request, _ in found),
        advice="Make the model fit on the device, so that nothing has to be offloaded: quantized weights, a second card, a smaller cache."
        " Where that cannot be, more rows in a batch share each move.",
        setting="from_pretrained(..., device_map=..., max_memory=..., quantization_config=...)",
    )


def _longest(figures: Figures) -> str:
    names = {phase.name for request in figures.requests for phase in request.phases}
    return max(names, key=figures.phase_seconds, default=semconv.PHASE_FORWARD)


def transfer_bound(figures: Figures) -> Iterator[Cause]:
    """Phases of which copies take the larger part."""
    for name in sorted({phase.name for request in figures.requests for phase in request.phases}):
        phases = [phase for request in figures.requests for phase in request.phases if phase.name == name]
        seconds = sum(phase.seconds for phase in phases)
        bounds = [found for phase in phases for span in (phase.span, *phase.steps) if (found := text(span, semconv.DEVICE_BOUND))]
        if seconds < _MUCH * figures.total or bounds.count("transfer") * 2 <= len(bounds) or not bounds:
            continue
        copies = [span for span, _, _ in figures.profiled() if text(span, semconv.PROFILER_KIND) == "memcpy"]
        moved = sum(whole(span, semconv.KERNEL_BYTES) or 0 for span in copies)
        yield Cause(
            rule="transfer_bound",
            title=f"{name} is spent on copies for the larger part" + (f": {bytes_text(moved)} in profiled steps" if moved else ""),
            place=name,
            seconds=seconds,
            sure=SURE,
            figures={"phase_seconds": seconds, "bound_by_transfer": bounds.count("transfer"), "copied_bytes": moved or None},
            spans=shown_by(copies or (phase.span for phase in phases)),
            advice="Keep inputs, weights and cache on the device; use pinned memory and non-blocking copies for what has to move.",
            setting="tensor.to(device, non_blocking=True), DataLoader(pin_memory=True)",
        )


def host_syncs(figures: Figures) -> Iterator[Cause]:
    """Points inside of modules at which the host waits for a value of the device, found in profiler windows."""
    places: dict[str, list[SpanLike]] = {}
    steps: dict[int, SpanLike] = {}
    for span, around, step in figures.profiled():
        steps[id(step)] = step
        module = text(around, semconv.MODULE_NAME)
        if module is not None and figures.on_gpu and _waits(span):
            places.setdefault(module, []).append(span)
    bound = [
        phase for request in figures.requests for phase in request.phases
        if any(text(one, semconv.DEVICE_BOUND) == "sync" for one in (phase.span, *phase.steps))
    ]  # fmt: skip
    count = sum(map(len, places.values()))
    if not bound and (not steps or count < len(steps)):
        return
    waited = sum(span.seconds for found in places.values() for span in found if text(span, semconv.PROFILER_KIND) == "op")
    profiled = sum(step.seconds for step in steps.values())
    share = waited / profiled if profiled else 0.0
    names = {phase.name for phase in bound} or {_longest(figures)}
    seconds = figures.total * share if waited else sum(phase.seconds for phase in bound) or None
    ordered = sorted(places.items(), key=lambda item: -len(item[1]))
    where = f", most of all in {ordered[0][0]}" if ordered else "; a profiler window tells where"
    often = f"the host waits for the device {count / max(1, len(steps)):.3g} times in each pass"
    yield Cause(
        rule="host_sync",
        title=(often if count else "passes wait for the device") + where,
        place=max(names, key=figures.phase_seconds),
        seconds=seconds,
        gain=seconds if waited else None,
        basis="at most",
        sure=SURE if waited or bound else LIKELY,
        level="high" if seconds is None else None,
        figures={
            "waits": count or None, "profiled_steps": len(steps) or None, "wait_seconds": waited or None,
            "phases_bound_by_sync": len(bound) or None,
        },
        spans=shown_by(span for _, found in ordered for span in found) or shown_by(phase.span for phase in bound),
        parts=[Part(module, None, _kinds(found)) for module, found in ordered[:5]],
        advice="Keep the decision on the device there: torch.where instead of if, no .item(), .tolist() or .cpu() inside of a module.",
        setting=None if places else "profile_steps=3, profile_cpu_ops=True",
    )  # fmt: skip


def _kinds(found: list[SpanLike]) -> str:
    return f"{len(found):,} waits: {', '.join(sorted({one.name for one in found})[:3])}"


def _waits(span: SpanLike) -> bool:
    if text(span, semconv.OP_NAME) in _SYNC_OPS:
        return True
    # A copy below such an operation is the same wait.
    name = text(span, semconv.KERNEL_NAME) or span.name
    size = whole(span, semconv.KERNEL_BYTES)
    return text(span, semconv.PROFILER_KIND) == "memcpy" and _BACK in name and (size is None or size <= _SMALL)
