"""Everything that rules look at, made once for all of them: requests with phases, time of stages, modules, metrics, facts and settings.

In come spans and series as the report has read them, over as much memory as the reader keeps. Nothing raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferspan import semconv
from inferspan.analysis.levels import LOAD, PROFILED, REQUEST, USER_STAGE, level_of

from .metrics import Metrics
from .modules import Sampled
from .requests import Request, request_of
from .spans import SeriesLike, SpanLike

__all__ = ["Figures", "Stage", "figures_of"]


@dataclass(slots=True)
class Stage:
    """A stage of the program under its name: seconds in which nothing recorded ran inside."""

    name: str
    seconds: float = 0.0
    count: int = 0
    spans: list[SpanLike] = field(default_factory=list)


@dataclass(slots=True)
class Figures:
    """What rules look at.

    Attributes:
        requests: those that are not inside another one, by start.
        steady: those of them that rules about typical times use: without failures and first calls, if there are others.
        stages: time of stages of the program outside of requests, by name.
        sampled: steps with modules, by phase.
        batches: of continuous batching.
        metrics: of all processes.
        facts: of the machine of each process.
        settings: name -> value and source; empty where the file does not have them.
        total: seconds of requests and stages together.
        wall: seconds from the first start to the last end.
        busy: seconds of these in which a request ran.
        complete: whether no span was left out for lack of memory.
    """

    requests: list[Request]
    steady: list[Request]
    stages: dict[str, Stage]
    sampled: dict[str, Sampled]
    batches: Sequence[SpanLike]
    metrics: Metrics
    facts: Sequence[Mapping[str, Any]]
    settings: Mapping[str, tuple[Any, str]]
    total: float
    wall: float
    busy: float
    complete: bool = True

    def phase_seconds(self, name: str) -> float:
        """Seconds of a phase over all requests."""
        return sum(phase.seconds for request in self.requests for phase in request.phases if phase.name == name)

    @property
    def on_gpu(self) -> bool:
        """Whether a model ran on a device of its own."""
        return any(request.on_gpu for request in self.requests)

    def profiled(self) -> Iterable[tuple[SpanLike, SpanLike, SpanLike]]:
        """Each operation and kernel of profiler windows, with the innermost span of a module or step around it, and its step."""
        for request in self.requests:
            for phase in request.phases:
                for step in phase.steps:
                    waiting = [(child, step) for child in step.children]
                    while waiting:
                        span, around = waiting.pop()
                        if level_of(span) == PROFILED:
                            yield span, around, step
                            waiting.extend((child, around) for child in span.children)
                        else:
                            waiting.extend((child, span) for child in span.children)


def figures_of(
    *,
    requests: Iterable[tuple[SpanLike, bool]],
    stages: Iterable[SpanLike],
    batches: Sequence[SpanLike],
    series: Iterable[SeriesLike],
    systems: Iterable[Mapping[str, Any]],
    complete: bool = True,
    between: tuple[int, int] | None = None,
) -> Figures:
    """Make the figures.

    Args:
        requests: request spans by start, each with whether it is a ``generate()``.
        stages: spans of stages and sessions of the program.
        batches: spans of continuous batching.
        series: metric series.
        systems: facts and settings of each process, as session files have them.
        complete: whether no span was left out for lack of memory.
        between: nanoseconds since the epoch from which points of gauges are used, if there are any.
    """
    found, nested = [], []
    for span, generates in requests:
        if span.attributes.get(semconv.NESTED) is True:
            nested.append(span)
        else:
            found.append(request_of(span, generates=generates))
    by_trace: dict[str, list[Request]] = {}
    for request in found:
        by_trace.setdefault(request.span.trace_id, []).append(request)
    for span in nested:
        around = [one for one in by_trace.get(span.trace_id, ()) if one.span.start_ns <= span.start_ns <= one.span.end_ns]
        if around:
            around[-1].nested.append(span)
    own = _stages(stages)
    steady = [request for request in found if not request.warmup and not request.span.failed]
    wall, busy = _covered(found, own.values())
    systems = list(systems)
    return Figures(
        requests=found,
        steady=steady or [request for request in found if not request.span.failed],
        stages=own,
        sampled=_sampled(found, {id(request) for request in steady or found}),
        batches=batches,
        metrics=Metrics(series, between),
        facts=[{key: value for key, value in one.items() if key != "settings"} for one in systems],
        settings=_settings(systems),
        total=sum(request.seconds for request in found) + sum(stage.seconds for stage in own.values()),
        wall=wall,
        busy=busy,
        complete=complete,
    )


def _stages(spans: Iterable[SpanLike]) -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    for span in spans:
        if semconv.STAGE_NAME not in span.attributes:
            continue  # a session may stay open while nothing happens
        inside = sum(child.seconds for child in span.children if level_of(child) in (REQUEST, USER_STAGE, LOAD))
        stage = found.setdefault(span.name, Stage(span.name))
        stage.seconds += max(0.0, span.seconds - inside)
        stage.count += 1
        if len(stage.spans) < 1_000:
            stage.spans.append(span)
    return found


def _sampled(requests: Iterable[Request], typical: set[int]) -> dict[str, Sampled]:
    """Steps of all requests, and modules of those that ``typical`` has by their identity."""
    found: dict[str, Sampled] = {}
    for request in requests:
        for phase in request.phases:
            found.setdefault(phase.name, Sampled(phase.name)).add(phase, typical=id(request) in typical)
    return found


def _covered(requests: Iterable[Request], stages: Iterable[Stage]) -> tuple[float, float]:
    """Seconds from the first start to the last end, and those in which a request ran."""
    times = sorted((one.span.start_ns, one.span.end_ns) for one in requests if 0 < one.span.start_ns <= one.span.end_ns)
    if not times:
        return 0.0, 0.0
    others = [(span.start_ns, span.end_ns) for stage in stages for span in stage.spans if 0 < span.start_ns <= span.end_ns]
    first, last = min(start for start, _ in (*times, *others)), max(end for _, end in (*times, *others))
    busy, until = 0, 0
    for start, end in times:
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return (last - first) / 1e9, busy / 1e9


def _settings(systems: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for system in systems:
        try:
            rows = json.loads(str(system.get("settings", "[]")))
        except (ValueError, RecursionError):
            continue
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, list) and len(row) == 3 and isinstance(row[0], str):
                found.setdefault(row[0], (row[1], str(row[2])))
    return found
