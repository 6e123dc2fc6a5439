"""The machine: clocks that are held down, a GPU that idles, processors that others use, and more threads than processors."""

from __future__ import annotations

from collections.abc import Iterator

from inferspan import semconv

from ..cause import LIKELY, POSSIBLE, SURE, Cause, shown_by
from ..figures import Figures
from ..tree import MACHINE
from ..wording import percent

__all__ = ["cpu_contention", "low_gpu_use", "throttled", "too_many_threads"]

_REASONS = {
    "sw_power_cap": "power limit", "hw_power_brake": "power brake", "hw_slowdown": "hardware slow-down", "sw_thermal": "temperature",
    "hw_thermal": "temperature", "power": "power limit", "thermal": "temperature",
}  # fmt: skip
_HELD = 0.1
"""Share of the time."""
_LOW_USE = 0.5
_SM = {semconv.CLOCK_DOMAIN: "sm"}
_FULL = 0.9
_SWITCHES = 200.0
"""Involuntary context switches for each second of CPU time."""
_THREADS = 8
"""Threads for each CPU, from which many of them compute."""


def throttled(figures: Figures) -> Iterator[Cause]:
    """Clocks of a GPU that its power limit or temperature held down."""
    held: dict[str, float] = {}
    for reason in _REASONS:
        wanted = {semconv.THROTTLE_REASON: reason}
        active, seconds = figures.metrics.mean(semconv.M_THROTTLE_ACTIVE, wanted), figures.metrics.last(semconv.M_THROTTLE_TIME, wanted)
        gpus = max(1, len(figures.metrics.series(semconv.M_THROTTLE_TIME, wanted)))
        by_time = seconds / gpus / figures.wall if seconds is not None and figures.wall > 0 else 0.0
        held[reason] = min(1.0, max(active or 0.0, by_time))
    reason, share = max(held.items(), key=lambda item: item[1])
    if share < _HELD:
        return
    clock, limit = figures.metrics.mean(semconv.M_CLOCK, _SM), figures.metrics.highest(semconv.M_CLOCK_LIMIT, _SM)
    slower = 1 - clock / limit if clock is not None and limit else None
    told = _REASONS[reason]
    power = told in ("power limit", "power brake")
    seconds = figures.total * slower if slower is not None and slower > 0 else None
    yield Cause(
        rule="throttled",
        title=f"the GPU's {told} holds its clocks down {percent(share)} of the time"
        + (f", to {percent(1 - slower)} of the highest" if slower is not None and slower > 0 else ""),
        place=MACHINE,
        seconds=seconds,
        gain=seconds,
        basis="at most",
        sure=SURE,
        level="high" if share >= 0.5 else "medium",
        figures={
            "reason": reason, "held_share": share, "clock": clock, "clock_limit": limit, "power": figures.metrics.mean(semconv.M_POWER),
            "power_limit": figures.metrics.highest(semconv.M_POWER_LIMIT), "temperature": figures.metrics.highest(semconv.M_TEMPERATURE),
        },
        spans=shown_by(request.span for request in figures.requests),
        advice="Raise the power limit, or accept it: fewer watts for each token." if power
        else "Cool it better: fans, dust, neighbours, the temperature of the room.",
        setting="nvidia-smi --power-limit" if power else None,
    )  # fmt: skip


def low_gpu_use(figures: Figures) -> Iterator[Cause]:
    """A GPU that idles because the program gives it nothing to do; where steps wait for launches, that rule names it."""
    use = figures.metrics.mean(semconv.M_GPU_UTILIZATION, {semconv.HW_GPU_TASK: "general"})
    if use is None or use >= _LOW_USE or not figures.on_gpu or figures.wall <= 0:
        return
    in_steps = sum(phase.step_seconds or 0.0 for request in figures.requests for phase in request.phases)
    if in_steps >= 0.7 * figures.wall:
        return
    requests = figures.busy / figures.wall
    yield Cause(
        rule="low_gpu_use",
        title=f"the GPU is busy {percent(use)} of the time; requests run in {percent(requests)} of it",
        place=MACHINE,
        seconds=None,
        level="high" if use < 0.25 else "medium",
        sure=LIKELY,
        figures={"gpu_utilization": use, "request_share": requests, "seconds": figures.wall},
        spans=shown_by(span for stage in figures.stages.values() for span in stage.spans) or shown_by(one.span for one in figures.requests),
        advice="Give it work all the time: prepare the next request while one runs, several requests at once, larger batches."
        if requests < 0.8 else "Look at what requests do between passes of the model, and let several requests run at once.",
    )  # fmt: skip


def _used(figures: Figures, metric: str) -> float | None:
    """Mean share of the CPUs in use: modes that are not idle."""
    modes = {series.attributes.get(semconv.CPU_MODE) for series in figures.metrics.series(metric)} - {"idle", "iowait"}
    found = [figures.metrics.mean(metric, {semconv.CPU_MODE: mode}) for mode in modes]
    shares = [share for share in found if share is not None]
    return min(1.0, sum(shares)) if shares else None


def _switches(figures: Figures) -> float | None:
    """Involuntary context switches for each second of CPU time of the process."""
    switches = figures.metrics.last(semconv.M_PROCESS_SWITCHES, {semconv.CONTEXT_SWITCH_TYPE: "involuntary"})
    seconds = figures.metrics.last(semconv.M_PROCESS_CPU_TIME)
    return switches / seconds if switches is not None and seconds else None


def cpu_contention(figures: Figures) -> Iterator[Cause]:
    """Processors that other processes use while this one could."""
    host, own = _used(figures, semconv.M_SYSTEM_CPU_UTILIZATION), _used(figures, semconv.M_PROCESS_CPU_UTILIZATION)
    if host is None or own is None or host < _FULL or host - own < 0.4:
        return
    yield Cause(
        rule="cpu_contention",
        title=f"the CPUs are busy {percent(host)} of the time, {percent(max(0.0, host - own))} with other processes",
        place=MACHINE,
        seconds=None,
        level="high" if host - own >= 0.5 else "medium",
        sure=POSSIBLE if (_switches(figures) or 0.0) < _SWITCHES else LIKELY,
        figures={"host_utilization": host, "process_utilization": own, "involuntary_switches_per_cpu_second": _switches(figures)},
        spans=shown_by(request.span for request in figures.requests),
        advice="Move other work away, or reserve processors for this process.",
        setting="taskset, cpuset of the container, or requests of the pod",
    )


def too_many_threads(figures: Figures) -> Iterator[Cause]:
    """More threads that compute than processors: they take turns."""
    threads, switches = figures.metrics.highest(semconv.M_PROCESS_THREADS), _switches(figures)
    cores = [one.get("cores_available") or one.get("cores") for one in figures.facts]
    known = [core for core in cores if isinstance(core, int) and core > 0]
    own = _used(figures, semconv.M_PROCESS_CPU_UTILIZATION)
    if threads is None or switches is None or not known or own is None:
        return
    if threads < _THREADS * max(known) or switches < _SWITCHES or own < 0.7:
        return
    yield Cause(
        rule="too_many_threads",
        title=f"{threads:,.0f} threads share {max(known):,} CPUs and are interrupted {switches:,.0f} times in a second of CPU time",
        place=MACHINE,
        seconds=None,
        level="high",
        sure=LIKELY,
        figures={"threads": threads, "cpus": max(known), "involuntary_switches_per_cpu_second": switches, "process_utilization": own},
        spans=shown_by(request.span for request in figures.requests),
        advice="Let torch and its libraries use as many threads as there are CPUs, divided among the processes.",
        setting=f"OMP_NUM_THREADS={max(known)}, torch.set_num_threads({max(known)})",
    )
