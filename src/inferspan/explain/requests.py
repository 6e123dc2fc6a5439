"""Request spans -> their phases, steps and figures, as rules ask for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from inferspan import semconv
from inferspan.analysis.levels import PHASE, STEP, level_of
from inferspan.metrics.summary import percentile

from .spans import SpanLike, number, numbers, shape, taken, text, whole

__all__ = ["FORWARD", "Phase", "Request", "median", "request_of"]

FORWARD = semconv.PHASE_FORWARD


def median(values: Iterable[float]) -> float:
    """The median of some values, 0 of none."""
    return percentile(list(values), 0.5) or 0.0


@dataclass(slots=True)
class Phase:
    """A phase or stage of a request.

    ``seconds``: by the host's clock. ``ran``: the number of its steps, with those that have no span.
    """

    name: str
    span: SpanLike
    seconds: float
    steps: list[SpanLike]
    ran: int

    @property
    def step_seconds(self) -> float | None:
        """Seconds of all steps, the device's where it takes longer; of those without a span as many as the others took on average."""
        return min(self.seconds, sum(map(taken, self.steps)) / len(self.steps) * self.ran) if self.steps else None

    @property
    def typical_seconds(self) -> float:
        """Seconds of all steps as they typically are, which a few that were held up do not change."""
        return median(map(taken, self.steps)) * self.ran

    @property
    def stage_seconds(self) -> float:
        """Seconds of stages of the model outside of its steps, such as an encoder that runs before the first one."""
        return sum(child.seconds for child in self.span.children if semconv.STAGE_NAME in child.attributes)


@dataclass(slots=True)
class Request:
    """A request that is not inside another one."""

    span: SpanLike
    generates: bool
    seconds: float
    queue: float
    warmup: bool
    phases: list[Phase]
    nested: list[SpanLike] = field(default_factory=list)

    @property
    def model(self) -> str:
        """Name of the model."""
        return text(self.span, semconv.REQUEST_MODEL) or text(self.span, semconv.MODEL_NAME) or ""

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return whole(self.span, semconv.BATCH_SIZE) or max(1, len(self.inputs))

    @property
    def inputs(self) -> list[float]:
        """Prompt tokens of each row, without padding."""
        return numbers(self.span, semconv.SEQUENCE_INPUT_TOKENS)

    @property
    def outputs(self) -> list[float]:
        """Generated tokens of each sequence."""
        return numbers(self.span, semconv.SEQUENCE_OUTPUT_TOKENS)

    @property
    def recompiles(self) -> int:
        """Recompilations that happened in it."""
        return whole(self.span, semconv.COMPILE_RECOMPILES) or 0

    @property
    def on_gpu(self) -> bool:
        """Whether the model is on a device of its own."""
        return text(self.span, semconv.DEVICE_TYPE) not in (None, "cpu")

    def phase(self, name: str) -> Phase | None:
        """The phase of this name."""
        return next((phase for phase in self.phases if phase.name == name), None)

    @property
    def width(self) -> int | None:
        """Positions of a row of the prompt in the first pass, with padding."""
        prefill = self.phase(semconv.SPAN_PREFILL)
        found = shape(prefill.steps[0], semconv.INPUT_SHAPES) if prefill is not None and prefill.steps else []
        return found[1] if len(found) == 2 else None


def request_of(span: SpanLike, *, generates: bool) -> Request:
    """The figures of a request span.

    Args:
        span: with everything below it.
        generates: whether it is a ``generate()``, and no plain call of the model.
    """
    queue = min(number(span, semconv.TIME_IN_QUEUE) or 0.0, span.seconds)
    if generates:
        phases = [_phase(child, span) for child in span.children if level_of(child) == PHASE and child.name != semconv.SPAN_BACKWARD]
    else:
        phases = [Phase(FORWARD, span, span.seconds, [span], 1)]
        phases += [_phase(child, span) for child in span.children if level_of(child) == PHASE and child.name != semconv.SPAN_BACKWARD]
    return Request(span, generates, span.seconds, queue, span.attributes.get(semconv.WARMUP) is True, phases)


def _phase(span: SpanLike, request: SpanLike) -> Phase:
    steps = [child for child in span.children if level_of(child) == STEP]
    ran = len(steps)
    if span.name == semconv.SPAN_DECODE:
        ran = max(ran, whole(request, semconv.DECODE_STEPS) or 0)
    return Phase(span.name, span, span.seconds, steps, ran)
