"""What rules could not look at, because it was not recorded, and the setting that records it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from inferspan import semconv
from inferspan.analysis.collectives import profiled_pass
from inferspan.text.numbers import counted
from inferspan.text.quantities import seconds_text

from .figures import Figures
from .spans import number, text

__all__ = ["Missing", "missing_of"]

_FEWEST_REQUESTS = 8
_FEWEST_POINTS = 3
_OUTSIDE = 0.25
"""Share of the time from the first request to the last in which neither a request nor a stage ran."""


@dataclass(frozen=True, slots=True)
class Missing:
    """What is not told for lack of data; ``setting`` records it, ``None`` if no setting does."""

    what: str
    why: str
    setting: str | None

    def as_dict(self) -> dict[str, Any]:
        """The fields under their names."""
        return asdict(self)


def missing_of(figures: Figures) -> list[Missing]:
    """One entry for each kind of data that is not there; nothing about devices that the models do not use."""
    if not figures.requests:
        return [Missing("everything", "no request of an instrumented model is in the recording", "inferspan.instrument(model)")]
    return [*_detail(figures), *_between(figures), *_machine(figures), *_ranks(figures), *_inside(figures)]


def _detail(figures: Figures) -> Iterator[Missing]:
    if not figures.complete:
        yield Missing("some steps and modules", "they did not fit into memory, so rules looked at a part of them", None)
    discarded = sum(request.span.attributes.get(semconv.DETAIL_KEPT) is False for request in figures.requests)
    generates = [request for request in figures.requests if request.generates]
    if discarded:
        yield Missing("phases, steps and modules", f"the detail of {counted(discarded, 'request')} was not kept", 'keep="always"')
    elif generates and not figures.batches and not any(phase.steps for request in generates for phase in request.phases):
        yield Missing("prefill, decode and the time between steps", "no step has a span", 'steps="all"')
    if not discarded and not any(sampled.steps for sampled in figures.sampled.values()) and not figures.batches:
        yield Missing("slow modules", "no step has spans of modules", 'modules="layers" or "all"')
    if len(figures.steady) < _FEWEST_REQUESTS:
        few = f"{len(figures.steady)} of {_FEWEST_REQUESTS} requests that this needs"
        yield Missing("requests that take longer than others", few, None)


def _between(figures: Figures) -> Iterator[Missing]:
    """What the program does outside of the model, such as loading data; between two programs there is nothing to know."""
    outside = figures.wall - figures.busy - sum(stage.seconds for stage in figures.stages.values())
    if len({request.span.resource for request in figures.requests}) == 1 and outside >= _OUTSIDE * figures.wall > 0:
        why = f"no request or stage ran for {seconds_text(outside)} of {seconds_text(figures.wall)}: a pause, or work of the program"
        yield Missing("time between requests", why, 'with inferspan.stage("load data")')


def _machine(figures: Figures) -> Iterator[Missing]:
    metrics = figures.metrics
    if figures.on_gpu:
        points = metrics.points(semconv.M_GPU_UTILIZATION)
        if not points:
            yield Missing("use, memory and clocks of the GPU", "no reading of it", "nvml=True")
        elif points < _FEWEST_POINTS:
            few = f"{counted(points, 'reading')} in {figures.wall:.3g} s"
            yield Missing("use and clocks of the GPU while requests ran", few, "gpu_interval=0.5")
        if not metrics.points(semconv.M_TORCH_RETRIES):
            yield Missing("allocations that had to flush the cache", "no reading of the allocator", "allocator=True")
        spans = [span for request in figures.requests for phase in request.phases for span in (request.span, phase.span, *phase.steps[:4])]
        if not any(number(span, semconv.DEVICE_TIME) is not None for span in spans):
            yield Missing("time of the device", "no span has it", "device_time=True")
    if not metrics.points(semconv.M_PROCESS_CPU_TIME):
        yield Missing("use of the CPUs, threads and memory of the host", "no reading of them", "host=True")


def _ranks(figures: Figures) -> Iterator[Missing]:
    spans = [span for request in figures.requests for phase in request.phases for span in phase.steps]
    joined = any(request.span.attributes.get(semconv.RANKS_JOINED) is True for request in figures.requests)
    if joined and not any(map(profiled_pass, spans)):
        yield Missing("time in collectives between ranks", "no pass was profiled", "profile_steps=3")


def _inside(figures: Figures) -> Iterator[Missing]:
    if not figures.on_gpu:
        return
    steps = [step for request in figures.requests for phase in request.phases for step in phase.steps]
    if not any(number(step, semconv.PROFILER_KERNELS) or number(step, semconv.PROFILER_KERNEL_TIME) for step in steps):
        setting = "profile_steps=3, profile_cpu_ops=True"
        yield Missing("where the host waits for the device, and the share of kernels", "no pass was profiled", setting)
    spans = [span for request in figures.requests for phase in request.phases for span in (phase.span, *phase.steps[:4])]
    if not any(text(span, semconv.DEVICE_BOUND) for span in spans):
        yield Missing(
            "what limits phases and modules", "no span has a bound of the roofline", 'roofline="all"; `peaks` for a card that is not listed'
        )
