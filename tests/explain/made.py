"""Session files of models on a GPU, which this machine does not have.

Spans are made by a tracer of inferspan's scope, readings go through the instruments of the samplers, and both are written by the exporters
of session files. No answer is in them, only what such a run would have recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opentelemetry import trace

from inferspan import semconv
from inferspan.metrics.devices import DeviceMetrics
from inferspan.records import Sample
from tests.explain.recording import providers

__all__ = ["BOUND", "CARD", "MADE", "Kernel", "Run", "experts", "healthy", "make", "use"]

START = 1_700_000_000_000_000_000
"""Before any metric is collected, which happens at the time of the test."""
MS = 1_000_000
CARD = {semconv.HW_ID: "GPU-1", semconv.HW_NAME: "H200"}
GPU: Mapping[str, Any] = {
    semconv.DEVICE: "cuda:0", semconv.DEVICE_TYPE: "cuda", semconv.MODEL_PARAMETERS: 8_000_000_000, semconv.MODEL_DTYPE: "bfloat16",
    semconv.MODEL_COMPILE_MODE: "none", semconv.MODEL_CACHE: "dynamic", semconv.REQUEST_MODEL: "big/model", semconv.OPERATION_NAME: "chat",
}  # fmt: skip
BOUND = "inferspan.device.bound"


@dataclass(frozen=True)
class Kernel:
    """A span of a profiler window in the first layer of a profiled step: an operation, kernel or copy that takes some milliseconds."""

    kind: str
    name: str
    ms: float
    size: int | None = None


@dataclass(frozen=True)
class Run:
    """A service on a GPU: some requests one after the other, and the readings of the machine meanwhile.

    Attributes:
        step_ms, prefill_ms: duration of a step.
        launch_ms: the host's part of a decode step, after which it waits for the result outside of the model; ``None``: all of it.
        timed: whether the device's time of steps was measured.
        gap_ms: between two requests.
        request, step, prefill: further attributes.
        kernel_share: share of profiled steps that kernels take; ``None``: no step is profiled.
        kernels: spans in the profiled step.
        collective_share: share of profiled steps in which collectives run.
        router: attributes of the module that they are in.
        readings: of the machine: name, value, attributes.
        counters: metrics of inferspan itself: name, value, attributes.
        events: of each request: name and attributes.
    """

    requests: int = 10
    steps: int = 32
    step_ms: float = 10.0
    prefill_ms: float = 30.0
    gap_ms: float = 1.0
    launch_ms: float | None = None
    timed: bool = True
    request: Mapping[str, Any] = field(default_factory=dict)
    step: Mapping[str, Any] = field(default_factory=dict)
    prefill: Mapping[str, Any] = field(default_factory=dict)
    kernel_share: float | None = None
    kernels: Sequence[Kernel] = ()
    collective_share: float = 0.0
    readings: Sequence[tuple[str, float, Mapping[str, Any]]] = ()
    router: Mapping[str, Any] = field(default_factory=dict)
    counters: Sequence[tuple[str, float, Mapping[str, Any]]] = ()
    events: Sequence[tuple[str, Mapping[str, Any]]] = ()


def use(share: float) -> tuple[str, float, Mapping[str, Any]]:
    """A reading of GPU utilisation."""
    return semconv.M_GPU_UTILIZATION, share, {**CARD, semconv.HW_GPU_TASK: "general"}


def held(reason: str, active: float = 1.0) -> tuple[str, float, Mapping[str, Any]]:
    """A reading of a reason that holds clocks down."""
    return semconv.M_THROTTLE_ACTIVE, active, {**CARD, semconv.THROTTLE_REASON: reason}


def clocks(share: float) -> list[tuple[str, float, Mapping[str, Any]]]:
    """Readings of the clock of the multiprocessors and its limit."""
    return [(name, value, {**CARD, semconv.CLOCK_DOMAIN: "sm"}) for name, value in ((semconv.M_CLOCK, share * 2e9), (semconv.M_CLOCK_LIMIT, 2e9))]


def cpus(host: float, own: float, switches: float, threads: float = 20, seconds: float = 3.0) -> list[tuple[str, float, Mapping[str, Any]]]:
    """Readings of the host and the process."""
    return [
        (semconv.M_SYSTEM_CPU_UTILIZATION, host, {semconv.CPU_MODE: "user"}),
        (semconv.M_SYSTEM_CPU_UTILIZATION, 1 - host, {semconv.CPU_MODE: "idle"}),
        (semconv.M_PROCESS_CPU_UTILIZATION, own, {semconv.CPU_MODE: "user"}),
        (semconv.M_PROCESS_CPU_TIME, seconds, {semconv.CPU_MODE: "user"}),
        (semconv.M_PROCESS_SWITCHES, switches * seconds, {semconv.CONTEXT_SWITCH_TYPE: "involuntary"}),
        (semconv.M_PROCESS_THREADS, threads, {}),
    ]


HEALTHY = [use(0.97), held("sw_power_cap", 0.0), *clocks(0.98), *cpus(0.3, 0.2, 5), (semconv.M_GPU_MEMORY_UTILIZATION, 0.7, CARD)]


def healthy() -> Run:
    """A service that uses its card well: batches of 32 rows, all the time."""
    return Run(request={semconv.BATCH_SIZE: 32}, kernel_share=0.95, readings=HEALTHY, step={BOUND: "memory"})


def experts(imbalance: float) -> Run:
    """A healthy service whose routers have this imbalance."""
    return replace(healthy(), router={semconv.EXPERTS_IMBALANCE: imbalance})


def make(path: Path, run: Run, **settings: Any) -> None:
    """Write the session file of a run, recorded with these settings."""
    with providers(path, **settings) as (tracers, meters, reader):
        tracer = tracers.get_tracer(semconv.SCOPE)
        DeviceMetrics(meters, lambda: [Sample(*one) for one in run.readings])
        meter = meters.get_meter(semconv.SCOPE)
        for name, value, attributes in run.counters:
            meter.create_counter(name).add(value, attributes)
        at = START
        for _ in range(run.requests):
            at = _request(tracer, run, at) + round(run.gap_ms * MS)
        for _ in range(4):
            reader.collect()


def _request(tracer: trace.Tracer, run: Run, at: int) -> int:
    end = at + round((run.prefill_ms + run.steps * run.step_ms) * MS)
    attributes = {
        **GPU, semconv.DECODE_STEPS: run.steps, semconv.BATCH_SIZE: 1, semconv.INPUT_TOKENS: 100, semconv.OUTPUT_TOKENS: run.steps + 1, **run.request,
    }  # fmt: skip
    request = tracer.start_span("chat big/model", start_time=at, attributes=attributes)
    for name, told in run.events:
        request.add_event(name, told)
    context = trace.set_span_in_context(request)
    first = at + round(run.prefill_ms * MS)
    for name, start, stop, count, extra in (("prefill", at, first, 1, run.prefill), ("decode", first, end, run.steps, run.step)):
        phase = tracer.start_span(name, context, start_time=start, attributes={semconv.PHASE: name})
        inside, each = trace.set_span_in_context(phase), (stop - start) // count
        for number in range(count):
            profiled = run.kernel_share is not None and name == "decode" and number in (2, 3)
            told = {semconv.PHASE: name, semconv.STEP_INDEX: number, **extra}
            if run.timed:
                told.setdefault(semconv.DEVICE_TIME, each / 1e9)
            if profiled:
                told[semconv.PROFILER_KERNEL_TIME] = (run.kernel_share or 0.0) * each / 1e9
                told[semconv.PROFILER_PASS_TIME] = each / 1e9
                if run.collective_share:
                    told[semconv.PROFILER_COLLECTIVE_TIME] = run.collective_share * each / 1e9
            step = tracer.start_span(f"{name}_step", inside, start_time=start + number * each, attributes=told)
            if profiled and (run.kernels or run.router):
                _layer(tracer, step, start + number * each, each, run)
            launched = each if run.launch_ms is None or name == "prefill" else round(run.launch_ms * MS)
            step.end(start + number * each + launched)
        phase.end(stop)
    request.end(end)
    return end


def _layer(tracer: trace.Tracer, step: trace.Span, at: int, length: int, run: Run) -> None:
    told = {semconv.MODULE_NAME: "model.layers.0.router", semconv.MODULE_TYPE: "Router", semconv.MODULE_LAYER_INDEX: 0, **run.router}
    layer = tracer.start_span("layer 0 router", trace.set_span_in_context(step), start_time=at, attributes=told)
    inside = trace.set_span_in_context(layer)
    for kernel in run.kernels:
        names = {"op": semconv.OP_NAME}.get(kernel.kind, semconv.KERNEL_NAME)
        found: dict[str, Any] = {semconv.PROFILER_KIND: kernel.kind, names: kernel.name}
        if kernel.size is not None:
            found[semconv.KERNEL_BYTES] = kernel.size
        span = tracer.start_span(kernel.name, inside, start_time=at, attributes=found)
        at += round(kernel.ms * MS)
        span.end(at)
    layer.end(at)


WAITS = [Kernel("op", "aten::item", 2.0), Kernel("op", "aten::nonzero", 2.0), Kernel("op", "aten::mm", 0.2)]
COPIES = [Kernel("memcpy", "Memcpy DtoH (Device -> Pageable)", 0.01, 4)] * 3
RETRIES = [(semconv.M_TORCH_RETRIES, 14.0, CARD), (semconv.M_TORCH_RESERVED, 9e10, CARD), (semconv.M_TORCH_ALLOCATED, 6e10, CARD)]
WELL = {semconv.BATCH_SIZE: 32}
FULL = (semconv.M_GPU_MEMORY_UTILIZATION, 0.985, CARD)
REASON = {
    "inferspan.compile.reason": "size", "inferspan.compile.guard": "tensor 'ids' size mismatch at index 1. expected 17, actual 18",
    "code.function.name": "forward",
}  # fmt: skip

MADE: Mapping[str, tuple[Run, str]] = {
    "kernels take a third of a step": (Run(kernel_share=0.33, readings=[use(0.9)]), "launch_bound"),
    "a GPU that idles inside of steps": (Run(readings=[use(0.35)], gap_ms=0.1), "launch_bound"),
    "a roofline that says launch": (Run(step={BOUND: "launch"}, request=WELL), "launch_bound"),
    "a roofline that says memory, one row": (Run(step={BOUND: "memory", "inferspan.device.peak.share": 0.6}, readings=[use(0.98)]), "weights_bound"),
    "a compiled step that the host launches at once": (
        Run(step={BOUND: "memory", "inferspan.device.peak.share": 0.43}, launch_ms=1.0, readings=[use(0.98)]), "weights_bound"
    ),
    "a streamer beside compiled steps": (
        Run(step={BOUND: "memory", semconv.DEVICE_TIME: 0.004}, request=WELL, launch_ms=1.0, readings=[use(0.4)]), "outside_steps"
    ),
    "a busy memory bus, two rows": (
        Run(request={semconv.BATCH_SIZE: 2}, readings=[use(0.97), (semconv.M_MEMORY_ACTIVITY, 0.8, CARD)]), "weights_bound"
    ),
    "a roofline that says transfer": (Run(step={BOUND: "transfer"}, request=WELL), "transfer_bound"),
    "values that a router reads": (Run(kernel_share=0.9, kernels=WAITS, request=WELL, readings=[use(0.9)]), "host_sync"),
    "copies of single values": (Run(kernel_share=0.9, kernels=COPIES, request=WELL), "host_sync"),
    "a roofline that says sync": (Run(step={BOUND: "sync"}, request=WELL), "host_sync"),
    "a model over cards with a slow link": (Run(kernel_share=0.95, collective_share=0.6, request=WELL, readings=[use(0.99)]), "collectives"),
    "a power limit": (Run(request=WELL, readings=[use(0.99), held("sw_power_cap"), *clocks(0.7)]), "throttled"),
    "a hot card": (Run(request=WELL, readings=[use(0.99), held("hw_thermal"), *clocks(0.5)]), "throttled"),
    "a flushed cache": (Run(request=WELL, readings=[use(0.95), *RETRIES]), "allocator_retries"),
    "a full card": (Run(request=WELL, readings=[use(0.95), FULL]), "high_memory"),
    "pauses between requests": (Run(request=WELL, gap_ms=2_000, readings=[use(0.15)]), "low_gpu_use"),
    "busy neighbours": (Run(request=WELL, readings=[use(0.9), *cpus(1.0, 0.3, 900)]), "cpu_contention"),
    "hundreds of threads": (Run(request=WELL, readings=[use(0.9), *cpus(1.0, 0.95, 2_000, threads=4_000)]), "too_many_threads"),
    "samplers without a pause": (
        Run(request=WELL, readings=[use(0.95)], counters=[(semconv.M_SAMPLING_TIME, 1.2, {semconv.SAMPLER: "nvml"})]), "samplers"
    ),
    "pages that come from disk": (
        Run(request=WELL, readings=[use(0.95), (semconv.M_PROCESS_FAULTS, 9_000, {semconv.PAGING_FAULT_TYPE: "major"})]), "host_memory"
    ),
    "a cache that is too small": (Run(request={**WELL, semconv.PREEMPTIONS: 2}), "preemption"),
    "recompilations with their reasons": (
        Run(request={**WELL, "inferspan.compile.recompiles": 1, "inferspan.compile.time": 0.2}, events=[("inferspan.recompilation", REASON)]),
        "recompilation",
    ),
    "detail of much": (Run(request=WELL, counters=[(semconv.M_OVERHEAD, 0.9, {})]), "telemetry"),
}  # fmt: skip
"""Run -> what it is, and the rule that has to come first."""
