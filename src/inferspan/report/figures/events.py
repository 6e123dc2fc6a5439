"""A session -> one flat list of what happened, in order of time: the key ``events`` of the JSON report.

In comes a ``Session``; out come mappings of plain values with the keys of ``FIELDS``. ``timestamp`` is seconds since the recording began,
``duration`` seconds or ``None``. Spans that were not kept have no events; ``left_out`` has their number by type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

from inferspan import semconv
from inferspan.analysis.levels import LOAD, MODULE, PHASE, STEP, TOPS, USER_STAGE, level_of
from inferspan.report.plain import plain
from inferspan.report.session import Request, Session
from inferspan.report.spans import Span
from inferspan.summaries.events import INPUTS, OF_STEP

__all__ = ["FIELDS", "TYPES", "Events", "events_of", "left_out"]

FIELDS = ("type", "module", "timestamp", "duration", "input_shapes", "output_shapes", "metadata")
TYPES = (
    "generation_start", "forward_pass", "module_start", "module_end", "vision_input", "audio_input", "fusion_input", "token_generation",
    "generation_step", "step_complete", "memory_usage", "generation_end", "generation_complete", "error", "stage_start", "stage_end",
)  # fmt: skip
"""Types beside the names of the program's own events."""
_TOKEN_KEYS = {
    "token_ids": semconv.STEP_TOKEN_IDS, "texts": semconv.STEP_TOKEN_TEXTS, "logprob": semconv.LOGITS_CHOSEN_LOGPROB,
    "entropy": semconv.LOGITS_ENTROPY, "top1_probability": semconv.LOGITS_TOP1,
}  # fmt: skip
_SHAPES = (semconv.INPUT_SHAPES, semconv.OUTPUT_SHAPES)
_SHOWN_APART = (
    *_SHAPES, semconv.MODULE_NAME, *semconv.MESSAGES, semconv.TOKEN_LOGPROBS, semconv.TOKEN_ENTROPIES, semconv.TOKEN_INTERVALS,
    semconv.TOKEN_IDS,
)  # fmt: skip


class _Seed(NamedTuple):
    """What an event is made of when it is asked for: a session holds hundreds of thousands."""

    time_ns: int
    kind: str
    span: Span
    shapes: bool = False
    timed: bool = False
    metadata: Mapping[str, Any] | None = None
    attributes: bool = False
    """Whether the attributes of the span are the metadata."""
    input_shapes: list[str] | None = None


class Events(Sequence[dict[str, Any]]):
    """The events of a session by time, each made anew when it is asked for."""

    def __init__(self, seeds: list[_Seed], begin_ns: int) -> None:
        self._seeds, self._begin = seeds, begin_ns

    @property
    def types(self) -> Counter[str]:
        """Number of events by type."""
        return Counter(str(plain(seed.kind)) for seed in self._seeds)

    def __len__(self) -> int:
        return len(self._seeds)

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(place, slice):
            return [self._made(seed) for seed in self._seeds[place]]
        return self._made(self._seeds[place])

    def _made(self, seed: _Seed) -> dict[str, Any]:
        span, attributes = seed.span, seed.span.attributes
        # An event that stands alone has a name that is its type, and no place; one on a span may name a module.
        named = (seed.metadata or {}).get(semconv.MODULE_NAME) or attributes.get(semconv.MODULE_NAME)
        module = named if span.span_id else named or ""
        metadata = _metadata(span) if seed.attributes else seed.metadata or {}
        return {
            "type": plain(seed.kind),
            "module": (plain(module) or None) if isinstance(module, str) else plain(span.name),
            "timestamp": max(0, seed.time_ns - self._begin) / 1e9 if seed.time_ns else None,
            "duration": span.seconds if seed.timed and span.timed else None,
            "input_shapes": seed.input_shapes or (plain(attributes.get(semconv.INPUT_SHAPES)) if seed.shapes else None),
            "output_shapes": plain(attributes.get(semconv.OUTPUT_SHAPES)) if seed.shapes else None,
            "metadata": {str(plain(key)): plain(value) for key, value in metadata.items() if value is not None},
        }


def events_of(session: Session) -> Events:
    """The events of a session by time; those at the same time in the order in which they must have happened."""
    takes_audio = {request.model for request in session.requests if _takes_audio(request)}
    found: list[_Seed] = []
    for request in session.requests:
        found.extend(_of_request(request, takes_audio))
    for span in (*session.stages, *session.loads):
        found.extend(_of_stage(span))
    for batch in session.batches:
        found.extend(_below(batch))
    found.extend(_Seed(span.start_ns, span.name, span, metadata=span.attributes) for span in session.events)
    found.sort(key=lambda seed: seed.time_ns)
    return Events(found, session.tally.first_ns)


def left_out(session: Session) -> Counter[str]:
    """Number of events by type of the spans that were not kept."""
    counts: Counter[str] = Counter()
    for kind, number in session.left_out.by_kind.items():
        if kind == MODULE:
            counts.update({"module_start": number, "module_end": number})
        elif kind in (semconv.SPAN_PREFILL_STEP, semconv.SPAN_DECODE_STEP, semconv.SPAN_DENOISE_STEP):
            counts.update(dict.fromkeys(OF_STEP, number))
            if kind == semconv.SPAN_DECODE_STEP:
                counts["token_generation"] += number
    return counts


def _of_request(request: Request, takes_audio: set[str | None]) -> Iterator[_Seed]:
    span, attributes = request.span, request.span.attributes
    ids = {"trace_id": span.trace_id, "span_id": span.span_id, "model": request.model}
    if request.kind == "forward":
        yield _Seed(span.start_ns, "forward_pass", span, shapes=True, timed=True, metadata=ids)
    else:
        asked = {**ids, "max_tokens": attributes.get(semconv.REQUEST_MAX_TOKENS)}
        yield _Seed(span.start_ns, "generation_start", span, metadata=asked, input_shapes=_prompt_shape(request))
    if request.model in takes_audio and not _has_stage(request, semconv.STAGE_AUDIO_ENCODE):
        yield _Seed(span.start_ns, "audio_input", span)
    for place, time in ((semconv.MEMORY_START, span.start_ns), (semconv.MEMORY_END, span.end_ns)):
        if place in attributes:
            peak = attributes.get(semconv.MEMORY_PEAK) if place == semconv.MEMORY_END else None
            yield _Seed(time, "memory_usage", span, metadata={"allocated": attributes[place], "peak": peak})
    yield from _below(span)
    yield from _own(span)
    if request.kind == "forward":
        return
    steps = attributes.get(semconv.DECODE_STEPS)
    reasons = attributes.get(semconv.FINISH_REASONS)
    yield _Seed(span.end_ns, "generation_end", span, timed=True, metadata={"reason": reasons, "step": steps})
    if not span.failed:
        tokens = attributes.get(semconv.OUTPUT_TOKENS)
        yield _Seed(span.end_ns, "generation_complete", span, timed=True, metadata={"total_tokens": tokens})


def _prompt_shape(request: Request) -> list[str] | None:
    """Shape of the prompt as it went into the model: rows x longest."""
    steps = [step for step in request.steps if step.name == semconv.SPAN_PREFILL_STEP]
    shapes = steps[0].attributes.get(semconv.INPUT_SHAPES) if len(steps) == 1 else None
    if isinstance(shapes, tuple) and shapes:
        return [str(shapes[0])]
    rows, lengths = request.number(semconv.BATCH_SIZE), request.numbers(semconv.SEQUENCE_INPUT_TOKENS)
    longest = max(lengths, default=request.number(semconv.INPUT_TOKENS) if rows == 1 else None)
    return None if rows is None or longest is None else [f"{int(rows)}x{int(longest)}"]


def _below(top: Span) -> Iterator[_Seed]:
    """Events of everything inside a request or a batch, other requests and stages of the program apart."""
    waiting = [(child, top) for child in reversed(top.children)]
    while waiting:
        span, parent = waiting.pop()
        level = level_of(span)
        if level in TOPS:
            continue
        yield from _own(span)
        if level == MODULE and span.attributes.get(semconv.PHASE) != semconv.SPAN_BACKWARD:
            yield _Seed(span.start_ns, "module_start", span, shapes=True, attributes=True)
            yield _Seed(span.end_ns, "module_end", span, shapes=True, timed=True)
        elif level == STEP:
            yield from _of_step(span, gives_token=_gives_token(span, parent))
        elif level == PHASE and span.name in INPUTS:
            yield _Seed(span.start_ns, INPUTS[span.name], span, shapes=True, timed=True, attributes=True)
        elif level == PHASE and semconv.STAGE_NAME in span.attributes:
            yield from _of_stage(span)
        waiting.extend((child, span) for child in reversed(span.children))


def _gives_token(step: Span, phase: Span) -> bool:
    """Whether a step ends with a choice of tokens: decode steps, and the last part of a prompt."""
    if step.name == semconv.SPAN_DECODE_STEP:
        return not step.failed
    if step.name != semconv.SPAN_PREFILL_STEP or step.failed:
        return False
    return step is [child for child in phase.children if child.name == semconv.SPAN_PREFILL_STEP][-1]


def _of_step(step: Span, *, gives_token: bool) -> Iterator[_Seed]:
    index = step.attributes.get(semconv.STEP_INDEX, step.attributes.get(semconv.DENOISE_INDEX))
    phase, tokens, device = (step.attributes.get(key) for key in (semconv.PHASE, semconv.STEP_TOKENS, semconv.DEVICE_TIME))
    yield _Seed(step.start_ns, "generation_step", step, metadata={"step": index, "phase": phase})
    if semconv.MEMORY_START in step.attributes:
        names = {"allocated": semconv.MEMORY_START, "reserved": semconv.MEMORY_RESERVED_START, "peak": semconv.MEMORY_HIGH_WATER_START}
        read = {name: step.attributes.get(key) for name, key in names.items()}
        yield _Seed(step.start_ns, "memory_usage", step, metadata={"step": index, **read})
    yield _Seed(step.start_ns, "forward_pass", step, shapes=True, timed=True, metadata={"step": index, "device_seconds": device})
    if gives_token:
        token = {name: step.attributes.get(key) for name, key in _TOKEN_KEYS.items()}
        yield _Seed(step.end_ns, "token_generation", step, metadata={"step": index, **token})
    yield _Seed(step.end_ns, "step_complete", step, timed=True, metadata={"step": index, "tokens": tokens})


def _of_stage(span: Span) -> Iterator[_Seed]:
    yield _Seed(span.start_ns, "stage_start", span, attributes=True)
    if level_of(span) in (USER_STAGE, LOAD):
        yield from _own(span)
    yield _Seed(span.end_ns, "stage_end", span, timed=True)


def _own(span: Span) -> Iterator[_Seed]:
    """Events that stand on a span: exceptions, and those of the program under their own names."""
    seen = False
    for event in span.events:
        attributes: Mapping[str, Any] = event.attributes
        if event.name == semconv.EXCEPTION_EVENT:
            seen = True
            kind, message = attributes.get(semconv.EXCEPTION_TYPE), attributes.get(semconv.EXCEPTION_MESSAGE)
            yield _Seed(event.time_ns, "error", span, metadata={"exception": kind, "message": message})
        else:
            yield _Seed(event.time_ns, event.name, span, metadata=attributes)
    if span.failed and not seen and level_of(span) in TOPS:
        kind = span.attributes.get(semconv.ERROR_TYPE)
        yield _Seed(span.end_ns, "error", span, metadata={"exception": kind, "message": span.status_message or None})


def _metadata(span: Span) -> dict[str, Any]:
    return {key: value for key, value in span.attributes.items() if key not in _SHOWN_APART}


def _takes_audio(request: Request) -> bool:
    told = request.span.attributes.get(semconv.MODEL_MODALITIES)
    return "audio" in told if isinstance(told, list | tuple) else _has_stage(request, semconv.STAGE_AUDIO_ENCODE)


def _has_stage(request: Request, name: str) -> bool:
    waiting = list(request.span.children)
    while waiting:
        span = waiting.pop()
        if span.name == name:
            return True
        if level_of(span) in (PHASE, STEP):
            waiting.extend(span.children)
    return False
