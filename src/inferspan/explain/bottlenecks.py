"""Phases, stages and modules by share of the time, with what limits each and how sure that is.

What limits a part is what the roofline says of its spans. Without that it follows from kernels of profiled steps and from readings of the
GPU where these belong to the phase, and else it is not known. The reason then says what would tell it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inferspan import semconv

from .bounds import bound_of, peak_share_of
from .cause import LIKELY, SURE
from .figures import Figures
from .modules import Sampled, in_a_row, kind_of
from .requests import Phase, median
from .spans import SpanLike, number, submodules, taken, text
from .wording import percent

__all__ = ["Bottleneck", "bottlenecks_of"]

_LEAST = 0.05
_MOST_MODULES = 8
_CLEAR = 0.8
"""Share of the time with the same bound from which that is sure."""
_MOSTLY = 0.7
_LAUNCH = 0.6
_MEMORY = 0.5


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A part of the time.

    Attributes:
        kind: ``phase``, ``stage`` or ``module``; a module stands for those of its class whose path differs in indices only,
            members of a sequence for those of the same shapes.
        name: of the part.
        seconds: of all its calls; of a module without recorded ones inside, scaled from sampled steps to all.
        share: of the time of requests and stages.
        bound: ``compute``, ``memory``, ``launch``, ``transfer`` or ``sync``; ``None`` where it is not known.
        sure: ``sure`` or ``likely``; ``None`` without a bound.
        reason: where the bound comes from, or why it is not known.
    """

    kind: str
    name: str
    seconds: float
    share: float
    bound: str | None
    sure: str | None
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """The fields under their names."""
        return asdict(self)


def bottlenecks_of(figures: Figures) -> list[Bottleneck]:
    """Parts with 5 % of the time or more: phases and stages, the longest first, then modules."""
    if figures.total <= 0:
        return []
    found = [*_phases(figures), *_stages(figures)]
    found.sort(key=lambda one: -one.seconds)
    modules = sorted(_modules(figures), key=lambda one: -one.seconds)
    return [one for one in (*found, *modules[:_MOST_MODULES]) if one.share >= _LEAST]


def _phases(figures: Figures) -> Iterable[Bottleneck]:
    groups: dict[str, list[Phase]] = defaultdict(list)
    for request in figures.requests:
        for phase in request.phases:
            groups[phase.name].append(phase)
    for name, phases in groups.items():
        seconds = sum(phase.seconds for phase in phases)
        spans = [span for phase in phases for span in _bounded(phase)]
        stage = any(text(phase.span, semconv.STAGE_NAME) == name for phase in phases)
        yield _made("stage" if stage else "phase", name, seconds, figures, _told(spans) or _inferred(figures, phases))


def _bounded(phase: Phase) -> list[SpanLike]:
    """The steps of a phase if one of them has a bound, else the phase."""
    return phase.steps if any(text(step, semconv.DEVICE_BOUND) for step in phase.steps) else [phase.span]


def _stages(figures: Figures) -> Iterable[Bottleneck]:
    for stage in figures.stages.values():
        yield _made("stage", stage.name, stage.seconds, figures, (None, None, "a stage of the program, outside of the model"))


def _modules(figures: Figures) -> Iterable[Bottleneck]:
    seconds: dict[str, float] = defaultdict(float)
    names = _names(figures)
    for sampled in figures.sampled.values():
        ratio = _host_ratio(sampled)
        for module in sampled.modules.values():
            seconds[names[module.path]] += module.own * sampled.scale * ratio
    spans = _module_spans(figures, names)
    for name, total in seconds.items():
        yield _made("module", name, total, figures, _told(found := spans.get(name, ())) or _not_known(figures, found, needs="all"))


def _names(figures: Figures) -> dict[str, str]:
    """By the path of a module, the name of those that it is counted with: equal ones are one row.

    A layer with something else in it, and members of a sequence, are not like others of their place: the row says which.
    """
    modules = {path: module for sampled in figures.sampled.values() for path, module in sampled.modules.items()}
    places: dict[str, dict[tuple[object, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, module in modules.items():
        places[kind_of(path)][module.type, module.shapes if in_a_row(path) else None].append(path)
    found = {}
    for kind, equals in places.items():
        for (type_name, _), paths in equals.items():
            name = kind if len(paths) > 1 or len(equals) == 1 else paths[0]
            found.update(dict.fromkeys(paths, f"{name} ({type_name or 'module'})" if len(equals) > 1 else name))
    return found


def _host_ratio(sampled: Sampled) -> float:
    """The host's seconds of a phase over its modules' clock: shares are of the host's time."""
    scaled = sampled.seconds * sampled.scale
    return min(1.0, sampled.ran_seconds / scaled) if scaled > 0 else 1.0


def _module_spans(figures: Figures, names: Mapping[str, str]) -> dict[str, list[SpanLike]]:
    """Spans of modules that the roofline has counted, by name."""
    found: dict[str, list[SpanLike]] = defaultdict(list)
    for request in figures.requests:
        waiting = [span for phase in request.phases for step in phase.steps for span in submodules(step)]
        while waiting:
            span = waiting.pop()
            waiting.extend(submodules(span))
            if text(span, semconv.DEVICE_BOUND) is not None or number(span, semconv.DEVICE_FLOPS) is not None:
                path = text(span, semconv.MODULE_NAME) or span.name
                found[names.get(path, kind_of(path))].append(span)
    return found


Limit = tuple[str | None, str | None, str]


def _told(spans: Iterable[SpanLike]) -> Limit | None:
    """What most of the time of these spans is bound by, as their attributes say."""
    found = bound_of(spans)
    if found is None:
        return None
    share = found.share_of_told
    return found.name, SURE if share >= _CLEAR else LIKELY, f"roofline, {share * 100:.0f} % of its spans by time"


def _inferred(figures: Figures, phases: list[Phase]) -> Limit:
    shares = [
        time / taken(step)
        for phase in phases for step in phase.steps
        if (time := number(step, semconv.PROFILER_KERNEL_TIME)) is not None and step.seconds > 0
    ]  # fmt: skip
    if shares and median(shares) < _LAUNCH and figures.on_gpu:
        return "launch", LIKELY, f"kernels take {median(shares) * 100:.0f} % of profiled steps"
    # A reading of the machine is that of a phase only where the phase is most of the time.
    if figures.on_gpu and figures.wall > 0 and sum(phase.seconds for phase in phases) >= _MOSTLY * figures.wall:
        use = figures.metrics.mean(semconv.M_GPU_UTILIZATION, {semconv.HW_GPU_TASK: "general"})
        memory = figures.metrics.mean(semconv.M_MEMORY_ACTIVITY)
        if use is not None and use < _LAUNCH:
            return "launch", LIKELY, f"the GPU is busy {use * 100:.0f} % of the time"
        if memory is not None and memory >= _MEMORY:
            return "memory", LIKELY, f"the GPU's memory is busy {memory * 100:.0f} % of the time"
    return _not_known(figures, [phase.span for phase in phases], needs="phases")


def _not_known(figures: Figures, spans: Sequence[SpanLike], needs: str) -> Limit:
    """Why the roofline says nothing about these spans; ``needs``: the value of its setting with which they have figures."""
    share = peak_share_of(spans)
    if share is not None:
        return None, None, f"not the device: {percent(share)} of its ceilings"
    if any(number(span, semconv.DEVICE_FLOPS) is not None for span in spans):
        how = "set peaks" if figures.on_gpu else "run 'inferspan peaks --measure' and record again"
        return None, None, f"not known: no ceilings; {how}"
    recorded = figures.settings.get("roofline", ("", ""))[0]
    if recorded == "none" or (recorded == "phases" and needs == "all"):
        return None, None, f'not known: roofline="{needs}" records it'
    return None, None, "not known: no roofline on its spans"


def _made(kind: str, name: str, seconds: float, figures: Figures, limit: Limit) -> Bottleneck:
    return Bottleneck(kind, name, seconds, min(1.0, seconds / figures.total), *limit)
