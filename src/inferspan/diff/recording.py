"""A session -> the requests that can be compared, each with its figures, and how many were left aside and why.

First requests of a process, requests with a compilation inside (``inferspan.warmup``), failed ones, nested ones and those without times
do not count. Modules are recorded in some steps only: of each, the mean of its calls in a request counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from inferspan import semconv
from inferspan.analysis.levels import MODULE, TOPS, level_of, module_operation
from inferspan.report.session import Request, Session, Span
from inferspan.text.numbers import counted

__all__ = ["DURATION", "ENERGY", "MEMORY", "PER_TOKEN", "REQUEST", "Recording", "Sample", "recording"]

DURATION = "duration"
"""Of a stage of the program."""
REQUEST, PER_TOKEN, FIRST_TOKEN = "request", "time per token", "time to first token"
MEMORY, ENERGY = "peak memory", "energy"
LOGITS = (semconv.LOGITS_MEAN, semconv.LOGITS_STD, semconv.LOGITS_ENTROPY, semconv.LOGITS_MAX)


@dataclass(slots=True)
class Sample:
    """One request, or one run of a stage of the program.

    Attributes:
        operation: such as ``text_completion`` or ``stage tokenize``.
        model: its name, if known.
        size: batch and prompt, or shapes of the input.
        run: number of the run of the program; processes that ran at the same time are one.
        start_ns: its start.
        seconds: by name of a figure: the whole, phases, time to first token and per token.
        amounts: bytes and joules by name of a figure.
        modules: mean seconds of a call, by phase and module.
        output_tokens: their number, if known.
        exact_memory: whether the peak is the allocator's own.
        logits: figures of the logits of the first step, ``LOGITS``; empty if not recorded.
    """

    operation: str
    model: str
    size: str
    run: int
    start_ns: int
    seconds: dict[str, float] = field(default_factory=dict)
    amounts: dict[str, float] = field(default_factory=dict)
    modules: dict[tuple[str, str], float] = field(default_factory=dict)
    output_tokens: float | None = None
    exact_memory: bool = False
    logits: tuple[float, ...] = ()


@dataclass(slots=True)
class Recording:
    """What one side of a comparison is.

    Attributes:
        session: as it was read.
        samples: requests and stages that count, by start.
        left: numbers of requests that do not, by reason.
        name: of the file, with folders where both sides have the same.
    """

    session: Session
    samples: list[Sample]
    left: Counter[str]
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or self.session.name

    def tell_apart(self, other: Recording) -> None:
        """Put folders before the name until it is another one than that of the other side."""
        mine, others = self.session.path.absolute().parts, other.session.path.absolute().parts
        count = next((count for count in range(1, len(mine) + 1) if mine[-count:] != others[-count:]), 1)
        self.name = "/".join((*mine[-count:-1], self.session.name))

    @property
    def requests(self) -> int:
        """Requests that count."""
        return sum(bool(sample.model) for sample in self.samples)

    @property
    def models(self) -> list[str]:
        """Names of models, sorted."""
        return sorted({sample.model for sample in self.samples if sample.model})

    @property
    def ids(self) -> set[tuple[str, str]]:
        """Trace and span ids of all requests."""
        return {(request.span.trace_id, request.span.span_id) for request in self.session.requests}

    def __str__(self) -> str:
        told = f"{self.name}: {counted(self.requests, 'request')}"
        left = ", ".join(f"{number} {reason}" for reason, number in self.left.items())
        return f"{told} of {', '.join(self.models)}" + (f"; left out: {left}" if left else "")


def recording(session: Session) -> Recording:
    """The requests of a session that can be compared."""
    samples, left = [], Counter[str]()
    for request in session.requests:
        reason = _unfit(request)
        if reason:
            left[reason] += 1
        else:
            samples.append(_request(request))
    for stage in session.stages:
        if stage.timed and not stage.failed and semconv.STAGE_NAME in stage.attributes:
            seconds = {DURATION: stage.seconds}
            samples.append(Sample(f"stage {stage.name}", "", "", stage.resource, stage.start_ns, seconds))
    samples.sort(key=lambda sample: sample.start_ns)
    _number_runs(samples)
    return Recording(session, samples, left)


def _number_runs(samples: Sequence[Sample]) -> None:
    """Give the processes of a run, which overlap in time, one number: workers and ranks are no runs of their own."""
    ends: dict[int, int] = {}
    for sample in samples:
        ends[sample.run] = max(ends.get(sample.run, 0), sample.start_ns)
    numbers: dict[int, int] = {}
    until = -1
    for sample in samples:
        if sample.run not in numbers:
            numbers[sample.run] = len(set(numbers.values())) - (sample.start_ns <= until)
            until = max(until, ends[sample.run])
    for sample in samples:
        sample.run = numbers[sample.run]


def _unfit(request: Request) -> str:
    for unfit, reason in (
        (request.flag(semconv.NESTED), "inside another request"),
        (request.span.failed, "failed"),
        (request.flag(semconv.WARMUP), "warm-up"),
        (not request.span.timed or request.span.seconds <= 0, "without a duration"),
    ):
        if unfit:
            return reason
    return ""


def _request(request: Request) -> Sample:
    plain = request.kind == "forward"
    # A pass on a GPU returns before the device has done its work; generate() waits for its tokens.
    seconds = {REQUEST: request.span.measured_seconds if plain else request.span.seconds}
    for phase in request.phases:
        if phase.timed:
            seconds[phase.name] = seconds.get(phase.name, 0.0) + (phase.measured_seconds if plain else phase.seconds)
    for name, key in ((FIRST_TOKEN, semconv.TTFT), (PER_TOKEN, semconv.TPOT)):
        seconds |= _known(name, request.number(key))
    per_token = request.number(semconv.ENERGY_PER_OUTPUT_TOKEN)
    energy = _known(f"{ENERGY} per token", per_token) or _known(ENERGY, request.number(semconv.ENERGY))
    return Sample(
        operation=request.text(semconv.METHOD) or request.span.name.partition(" ")[0],
        model=request.model or "a model without a name",
        size=_size(request, plain),
        run=request.span.resource,
        start_ns=request.span.start_ns,
        seconds={name: value for name, value in seconds.items() if 0 < value < math.inf},
        amounts=_known(MEMORY, request.number(semconv.MEMORY_PEAK)) | energy,
        modules=_modules(request.span),
        output_tokens=request.number(semconv.OUTPUT_TOKENS),
        exact_memory=request.flag(semconv.MEMORY_PEAK_EXACT),
        logits=_logits(request.steps[0].attributes if request.steps else request.span.attributes),
    )


def _known(name: str, value: float | None) -> dict[str, float]:
    return {} if value is None or not 0 < value < math.inf else {name: float(value)}


def _size(request: Request, plain: bool) -> str:
    shapes = request.texts(semconv.INPUT_SHAPES)
    if plain and shapes:
        return ", ".join(shapes)
    batch, tokens = request.number(semconv.BATCH_SIZE), request.number(semconv.INPUT_TOKENS)
    parts = [] if batch is None else [f"batch {batch:g}"]
    return ", ".join([*parts, *([] if tokens is None else [f"{tokens:g} input tokens"])])


def _logits(attributes: Mapping[str, object]) -> tuple[float, ...]:
    values = [attributes.get(key) for key in LOGITS]
    numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return tuple(numbers) if len(numbers) == len(LOGITS) else ()


def _modules(top: Span) -> dict[tuple[str, str], float]:
    """Mean seconds of a call of each module, by the phase it was called in; time inside other modules included."""
    found: dict[tuple[str, str], list[float]] = {}
    for phase, span in _inside(top):
        seconds = span.measured_seconds
        if 0 < seconds < math.inf:
            name = span.attributes.get(semconv.MODULE_NAME)
            path = module_operation(name if isinstance(name, str) and name else span.name, span.attributes.get(semconv.PHASE))
            found.setdefault((phase, path), []).append(seconds)
    return {key: value for key, values in found.items() if (value := sum(values) / len(values)) < math.inf}


def _inside(top: Span) -> Iterator[tuple[str, Span]]:
    """The calls of modules below a request, each with its phase; requests inside count for themselves."""
    waiting: list[tuple[str, Sequence[Span]]] = [("", top.children)]
    while waiting:
        phase, spans = waiting.pop()
        for span in spans:
            level = level_of(span)
            if level in TOPS:
                continue
            if level == MODULE:
                yield phase, span
            waiting.append((phase or (span.name if level == "phase" else ""), span.children))
