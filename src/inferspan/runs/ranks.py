"""A session of several processes -> a row of figures for each of its ranks.

In comes a ``Session`` of ``report``; out come ``Rank``s. A process without a rank, as one that is started by hand, counts as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from inferspan import semconv
from inferspan.analysis.collectives import PassTime, profiled_pass, share_of
from inferspan.analysis.levels import PHASE, level_of
from inferspan.metrics.summary import percentile
from inferspan.report.figures.system import process_labels
from inferspan.report.metric_series import Series
from inferspan.report.session import Request, Session, Span

__all__ = ["METRICS", "Figure", "Rank", "ranks_of"]

METRICS: Mapping[str, tuple[str, str]] = {
    "gpu_memory": (semconv.M_GPU_MEMORY_USAGE, "By"),
    "gpu_utilization": (semconv.M_GPU_UTILIZATION, "1"),
    "gpu_power": (semconv.M_POWER, "W"),
    "gpu_temperature": (semconv.M_TEMPERATURE, "Cel"),
    "torch_memory_allocated": (semconv.M_TORCH_ALLOCATED, "By"),
    "torch_memory_reserved": (semconv.M_TORCH_RESERVED, "By"),
    "process_memory": (semconv.M_PROCESS_MEMORY, "By"),
}
"""Readings that are compared, by name: the metric and its unit."""
_GENERAL = {semconv.HW_GPU_TASK: "general", semconv.HW_SENSOR_LOCATION: "gpu"}
"""Attributes that tell the figure of the whole device from those of its parts."""


@dataclass(slots=True)
class Figure:
    """Smallest, largest and mean value of something, and how many values there were."""

    minimum: float
    maximum: float
    average: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure | None:
        """``None`` of nothing."""
        known = list(values)
        return cls(min(known), max(known), sum(known) / len(known), len(known)) if known else None

    def joined(self, other: Figure) -> Figure:
        """The figures of both together."""
        count = self.count + other.count
        average = (self.average * self.count + other.average * other.count) / count
        return Figure(min(self.minimum, other.minimum), max(self.maximum, other.maximum), average, count)

    def as_dict(self) -> dict[str, float | int]:
        """For JSON."""
        return {"min": self.minimum, "max": self.maximum, "average": self.average, "count": self.count}


@dataclass(slots=True)
class Rank:
    """What one rank did; times in seconds, of its own clock.

    Attributes:
        number: its rank; processes that no launcher has numbered come after those that it has.
        label: ``rank 3``, or the name of a process without a rank.
        size: number of ranks that it was told of, if a launcher did.
        host: where it ran.
        requests, failed: its requests.
        ends: of its requests, in order of their starts, in nanoseconds since the epoch.
        first_ns, last_ns: start of the first span and end of the last one, 0 if there is none.
        busy: seconds in which at least one request ran; on the device where all of them have a device time.
        device: whether ``busy`` is device time.
        output_tokens: of all requests.
        phases: by name the durations of its phases.
        steps: durations of its decode steps.
        durations: of its requests.
        profiled: passes in profiler windows.
        readings: by name of ``METRICS``.
    """

    number: int
    label: str = ""
    size: int | None = None
    host: str = ""
    resources: list[int] = field(default_factory=list)
    requests: int = 0
    failed: int = 0
    ends: list[int] = field(default_factory=list)
    first_ns: int = 0
    last_ns: int = 0
    busy: float = 0.0
    device: bool = False
    output_tokens: int | None = None
    generating: float = 0.0
    phases: dict[str, list[float]] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    profiled: list[PassTime] = field(default_factory=list)
    readings: dict[str, Figure] = field(default_factory=dict)

    @property
    def collectives(self) -> float | None:
        """Share of profiled passes in collectives, 0 to 1; ``None`` where no collective was seen."""
        return share_of(self.profiled)

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens / seconds of the requests that made them."""
        return self.output_tokens / self.generating if self.output_tokens and self.generating > 0 else None

    @property
    def request(self) -> float | None:
        """Median duration of a request."""
        return percentile(self.durations, 0.5)

    @property
    def step(self) -> float | None:
        """Median duration of a decode step."""
        return percentile(self.steps, 0.5)

    def phase(self, name: str) -> float | None:
        """Median duration of a phase."""
        return percentile(self.phases.get(name, ()), 0.5)


def ranks_of(session: Session) -> list[Rank]:
    """The ranks in order of their number."""
    labels = process_labels(session)
    numbers = [_whole(resource.get(semconv.RANK)) for resource in session.resources]
    free = max((number for number in numbers if number is not None), default=-1) + 1
    found: dict[int, Rank] = {}
    by_resource: list[Rank] = []
    for index, (resource, number) in enumerate(zip(session.resources, numbers, strict=True)):
        if number is None:
            number, free = free, free + 1
            label = labels[index]
        else:
            label = f"rank {number}"
        rank = found.setdefault(number, Rank(number, label))
        rank.size = _whole(resource.get(semconv.WORLD_SIZE)) or rank.size
        rank.host = rank.host or str(resource.get(semconv.HOST_NAME, ""))
        rank.resources.append(index)
        by_resource.append(rank)
    requests: dict[int, list[Request]] = {}
    for request in session.requests:
        rank = by_resource[request.span.resource]
        requests.setdefault(rank.number, []).append(request)
    for number, own in requests.items():
        _add_requests(found[number], own)
    for rank in found.values():
        rank.readings = dict(_readings(series for series in session.series if series.resource in rank.resources))
    return [found[number] for number in sorted(found)]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _add_requests(rank: Rank, requests: Sequence[Request]) -> None:
    top = [request for request in requests if not request.flag(semconv.NESTED)]
    timed = [request.span for request in top if request.span.timed]
    rank.requests, rank.failed = len(top), sum(request.span.failed for request in top)
    rank.durations = [span.measured_seconds for span in timed]
    rank.ends = [span.end_ns for span in timed]
    if timed:
        rank.first_ns, rank.last_ns = min(span.start_ns for span in timed), max(span.end_ns for span in timed)
    rank.device = bool(timed) and all(semconv.DEVICE_TIME in span.attributes for span in timed)
    rank.busy = sum(span.measured_seconds for span in timed) if rank.device else _union(timed)
    for request in top:
        rank.profiled += [found for span in (request.span, *request.steps) if (found := profiled_pass(span)) is not None]
        tokens = request.number(semconv.OUTPUT_TOKENS)
        if tokens is not None:
            rank.output_tokens = (rank.output_tokens or 0) + int(tokens)
            rank.generating += request.span.seconds
        for phase in request.phases:
            if phase.timed and level_of(phase) == PHASE:
                rank.phases.setdefault(phase.name, []).append(phase.measured_seconds)
        rank.steps += [step.measured_seconds for step in request.steps if step.timed and step.name == semconv.SPAN_DECODE_STEP]


def _union(spans: Sequence[Span]) -> float:
    """Seconds covered by at least one of the spans."""
    total = until = 0
    for start, end in sorted((span.start_ns, span.end_ns) for span in spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total / 1e9


def _readings(series: Iterable[Series]) -> Iterable[tuple[str, Figure]]:
    found: dict[str, Figure] = {}
    names = {metric: name for name, (metric, _) in METRICS.items()}
    for one in series:
        name = names.get(one.name)
        whole = all(one.attributes.get(key, general) == general for key, general in _GENERAL.items())
        if name is None or not whole or one.minimum is None or one.maximum is None or one.average is None:
            continue
        figure = Figure(one.minimum, one.maximum, one.average, one.count)
        found[name] = found[name].joined(figure) if name in found else figure
    yield from sorted(found.items())
