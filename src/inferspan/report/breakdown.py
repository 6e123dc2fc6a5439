"""A request's sampled steps -> where the time went: by module type and by layer, for each phase.

In comes a ``Request``; out comes one ``Breakdown`` for each phase that has module spans. Times are self times, so that the parts of a
phase add up to it: a module's own time excludes the recorded modules below it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from inferspan import semconv
from inferspan.report.session import MODULE, Request, Span, level_of

__all__ = ["Breakdown", "TimeShare", "breakdowns"]


class TimeShare(NamedTuple):
    """One module type of a phase: number of calls and seconds spent in it outside recorded modules below."""

    type: str
    calls: int
    seconds: float


class Breakdown(NamedTuple):
    """Time of the sampled steps of a phase by module; ``outside`` is the time that no recorded module covers."""

    phase: str
    steps: int
    seconds: float
    outside: float
    clock: str
    parts: tuple[TimeShare, ...]
    layers: tuple[tuple[int, float], ...]


def breakdowns(request: Request) -> list[Breakdown]:
    """One entry for each phase with module spans, in order of time; a plain forward is one phase ``forward``."""
    found = []
    if request.kind == "forward":
        groups = [(semconv.PHASE_FORWARD, [request.span])]
    else:
        groups = [(phase.name, [step for step in request.steps if step.name.startswith(phase.name)]) for phase in request.phases]
    for name, spans in groups:
        sampled = [span for span in spans if any(level_of(child) == MODULE for child in span.children)]
        if sampled:
            found.append(_break_down(name, sampled))
    return found


def _break_down(name: str, sampled: list[Span]) -> Breakdown:
    modules = [module for span in sampled for module in _modules_below(span)]
    device = all(semconv.DEVICE_TIME in span.attributes for span in (*sampled, *modules))
    total = sum(_seconds(span, device=device) for span in sampled)
    calls: dict[str, int] = defaultdict(int)
    own: dict[str, float] = defaultdict(float)
    layers: dict[int, float] = defaultdict(float)
    for span in sampled:
        for module in _children(span):
            _add_layers(module, layers, device=device)
    for module in modules:
        kind = str(module.attributes.get(semconv.MODULE_TYPE, module.name))
        calls[kind] += 1
        own[kind] += max(0.0, _seconds(module, device=device) - sum(_seconds(child, device=device) for child in _children(module)))
    parts = tuple(TimeShare(kind, calls[kind], seconds) for kind, seconds in sorted(own.items(), key=lambda item: -item[1]))
    outside = max(0.0, total - sum(_seconds(child, device=device) for span in sampled for child in _children(span)))
    clock = "device" if device else "host"
    return Breakdown(name, len(sampled), total, outside, clock, parts, tuple(sorted(layers.items())))


def _add_layers(top: Span, layers: dict[int, float], *, device: bool) -> None:
    """Add the outermost module of each layer at or below ``top``."""
    waiting = [top]
    while waiting:
        module = waiting.pop()
        index = module.attributes.get(semconv.MODULE_LAYER_INDEX)
        if isinstance(index, int):
            layers[index] += _seconds(module, device=device)
        else:
            waiting.extend(_children(module))


def _modules_below(span: Span) -> Iterable[Span]:
    waiting = list(_children(span))
    while waiting:
        module = waiting.pop()
        yield module
        waiting.extend(_children(module))


def _children(span: Span) -> list[Span]:
    return [child for child in span.children if level_of(child) == MODULE]


def _seconds(span: Span, *, device: bool) -> float:
    return span.measured_seconds if device else span.seconds
