"""Requests and their detail as OpenTelemetry spans.

A request's span goes through the API, live, and is the current one while ``generate()`` runs. Phases, steps and modules become
finished spans afterwards, off the model's path, in small paced chunks, with ids of our own generator. On a tracer that is not the
SDK's they are started and ended through the API with their times. A tracer that fails costs its span and nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode

from . import semconv
from .attribute_values import exportable_attributes
from .buffer import Buffer
from .caller import caller_attributes
from .genai_interop import ForeignCall, announce
from .guard import contain, guarded
from .ids import ids
from .otlp import span_parts
from .packed_modules import ModulePacker
from .ranks import ranks
from .records import Attributes, AttributeValue, ModuleBatch, ModuleCall, Phase, RequestEnd, RequestScope, RequestStart, Step, module_calls
from .request_metrics import RequestMetrics
from .settings import Settings
from .span_parts import SpanParts, next_chunk

__all__ = ["SpanRecorder", "SpanWriter"]

CHUNK = 32
"""Spans made at once before the thread lets others run."""
AT_ONCE = 16
"""Spans that are made on the model's thread: waking another one for so few costs as much, and a caller finds them in place."""
PAUSE = 0.001
ROOM = 256
PATIENCE = 2.0
"""Longest time in seconds that a chunk waits for a batch processor to empty its queue."""
_SHAPES_KEPT = 4096
CALL_FIELDS = len(ModuleCall._fields)
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}


def is_ours(parts: SpanParts) -> bool:
    """Whether a tracer belongs to the global provider, which may be one that we have set up."""
    return getattr(trace.get_tracer_provider(), "_active_span_processor", None) is parts.processor


def raw_sink(provider: Any, *, scope: Any) -> Any:
    """The raw way out of a provider of ours; loaded late, because it needs the SDK."""
    from .raw_spans import raw_sink as open_sink

    return open_sink(provider, scope=scope)


class _Own(threading.local):
    busy = False


_own = _Own()
"""Whether this thread is inside a call of ours into a provider. A model that a processor runs there is no request: it would never end."""


@contextmanager
def _our_call() -> Iterator[None]:
    before, _own.busy = _own.busy, True
    try:
        yield
    finally:
        _own.busy = before


def request_name(start: RequestStart, foreign: ForeignCall | None) -> str:
    """Name of a request's span: operation and model, or ``forward`` and model."""
    if start.operation is None or (foreign is not None and start.kind == "forward"):
        return f"{semconv.SPAN_FORWARD} {start.model.name or start.model.architecture}"
    if foreign is not None:
        return semconv.SPAN_GENERATE
    return f"{start.operation} {start.model.name}" if start.model.name else start.operation


class SpanScope:
    """One request that is running."""

    def __init__(self, recorder: SpanRecorder, start: RequestStart, span: Span, foreign: ForeignCall | None) -> None:
        self.recorder = recorder
        self.request = start
        self.span = span
        self.foreign = foreign
        self.context: SpanContext = span.get_span_context()
        self.recording = bool(span.is_recording() and self.context.trace_flags.sampled)
        self.token: Any = None
        self.parts: SpanParts | None = None
        self.tracer: Any = None
        self.sink: Any = None
        self.end_ns: int | None = None
        self.phase_ids: dict[str, int] = {}
        self.step_ids: dict[int, int] = {}

    def detail(self, records: Sequence[Phase | Step | ModuleBatch]) -> None:
        """Queue detail for the hand-over thread; the little that a small plain forward has is handed over at once."""
        if not self.recording or not records:
            return
        weight = sum(len(record.calls) // CALL_FIELDS if isinstance(record, ModuleBatch) else 1 for record in records)
        if self.request.kind == "forward" and weight <= AT_ONCE and self.recorder.writer.put_now(self, records):
            return
        if not self.recorder.writer.put(self, records, weight):
            self.recorder.metrics.dropped(weight, "queue_full")

    def end(self, end: RequestEnd) -> None:
        """End the span, whatever else fails, and record the metrics."""
        if self.token is not None:
            with contain("context"):
                otel_context.detach(self.token)
            self.token = None
        self.end_ns = end.end_ns
        with contain("request span"):
            if self.span.is_recording():
                self.recorder.finish_span(self, end)
        with contain("request span"), _our_call():
            self.span.end(end_time=end.end_ns)
        with contain("content event"), _our_call():
            self.recorder.emit_content(self, end)
        if self.foreign is not None:
            with contain("foreign gen_ai span"):
                self.foreign.publish(end)
        self.recorder.metrics.ended(self.request, end, self.span, foreign=self.foreign is not None)
        if self.recorder.metrics.has_steps(end):
            self.recorder.writer.put(self, end, 1)


class SpanRecorder:
    """Makes spans and metrics of requests: the :class:`~inferspan.records.Recorder` of an instrumented model.

    Args:
        settings: options.
        tracer: returns the tracer; asked at every request, because a host may set its provider late.
        metrics: where durations and counts go.
        writer: hand-over of detail.
        logger: returns the logger of the content event.
    """

    def __init__(
        self,
        settings: Settings,
        tracer: Callable[[], Any],
        metrics: RequestMetrics,
        writer: SpanWriter,
        logger: Callable[[], Any] | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.writer = writer
        self._tracer = tracer
        self._logger = logger
        self._raw: tuple[Any, Any] | None = None
        self._ranks: Attributes = {key: value for key, value in ranks(os.environ).items() if value is not None}

    def start(self, start: RequestStart, parent: RequestScope | None) -> RequestScope | None:
        """Begin a request; see :class:`~inferspan.records.Recorder`."""
        current = otel_context.get_current()
        if _own.busy or current.get(otel_context._SUPPRESS_INSTRUMENTATION_KEY) or current.get("suppress_instrumentation"):
            return None
        if isinstance(parent, SpanScope) and start.nested and not self._is_inside(current, parent):
            current = trace.set_span_in_context(parent.span, current)
        foreign = ForeignCall.around(current, start) if start.operation is not None and not start.nested else None
        span: Span = trace.INVALID_SPAN
        tracer: Any = None
        with contain("request span"), _our_call():
            tracer = self._tracer()
            span = tracer.start_span(
                request_name(start, foreign),
                context=current,
                kind=_KINDS[self.settings.span_kind] if not start.nested and foreign is None else SpanKind.INTERNAL,
                attributes=self._start_attributes(start, foreign),
                start_time=start.start_ns,
                record_exception=False,
                set_status_on_exception=False,
            )
        scope = SpanScope(self, start, span, foreign)
        if scope.recording:
            with contain("request span"):
                scope.tracer, scope.parts = tracer, span_parts(tracer)
                scope.sink = self._sink(tracer, scope.parts)
        if start.kind == "generate":
            with contain("context"):
                # Without a span of ours the caller's stays the parent of what is inside.
                inside = current if span is trace.INVALID_SPAN else trace.set_span_in_context(span, current)
                scope.token = otel_context.attach(announce(inside, start, foreign))
        self.metrics.started(start)
        return scope

    def _sink(self, tracer: Any, parts: SpanParts | None) -> Any:
        """The raw way out, where the tracer belongs to our own provider and nothing but OTLP hangs on it."""
        if parts is None:
            return None
        if self._raw is None or self._raw[0] is not parts.tracer:
            self._raw = (parts.tracer, raw_sink(trace.get_tracer_provider(), scope=parts.scope) if is_ours(parts) else None)
        return self._raw[1]

    @staticmethod
    def _is_inside(current: Any, parent: SpanScope) -> bool:
        return trace.get_current_span(current).get_span_context().trace_id == parent.context.trace_id

    def _start_attributes(self, start: RequestStart, foreign: ForeignCall | None) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {}
        if start.operation is not None and foreign is None:
            attributes[semconv.OPERATION_NAME] = start.operation
            attributes[semconv.PROVIDER_NAME] = start.model.provider
            if start.model.name is not None:
                attributes[semconv.REQUEST_MODEL] = attributes[semconv.RESPONSE_MODEL] = start.model.name
        attributes[semconv.MODEL_NAME] = start.model.name or start.model.architecture
        if start.nested:
            attributes[semconv.NESTED] = True
        if self.settings.keep:
            attributes[semconv.KEEP] = True
        # At the start, so that a sampler can decide by them.
        given = caller_attributes()
        if foreign is not None:
            given = {key: value for key, value in given.items() if not key.startswith("gen_ai.")}
        return {**attributes, **start.attributes, **given}

    def finish_span(self, scope: SpanScope, end: RequestEnd) -> None:
        """Put what is known at the end on the request's span."""
        attributes: dict[str, AttributeValue] = {**scope.request.model.attributes, **self._ranks, **end.attributes}
        text = end.modality == "text"
        for key, text_key, tokens in (
            (semconv.INPUT_TOKENS, semconv.TEXT_INPUT_TOKENS, end.input_tokens),
            (semconv.OUTPUT_TOKENS, semconv.TEXT_OUTPUT_TOKENS, end.output_tokens),
        ):
            if tokens is not None:
                attributes[key] = tokens
                if text and tokens:
                    attributes[text_key] = tokens
        if end.streaming and end.time_to_first_token is not None:
            attributes[semconv.TIME_TO_FIRST_CHUNK] = end.time_to_first_token
        if end.spans_dropped:
            attributes[semconv.SPANS_DROPPED] = end.spans_dropped
        if self.settings.compat_vllm_latency and scope.request.kind == "generate":
            attributes |= _vllm_latency(scope.request, end)
        if self.settings.content_on_spans:
            attributes |= content_attributes(end)
        if scope.foreign is not None:
            # A second span with gen_ai attributes would count as a second model call wherever traces are read.
            attributes = {key: value for key, value in attributes.items() if not key.startswith("gen_ai.")}
        scope.span.set_attributes(exportable_attributes(attributes))
        if end.failure is not None:
            # Not every store of traces can be asked for a status, but each for the value of an attribute.
            scope.span.set_attributes({semconv.ERROR_TYPE: end.failure.type, semconv.FAILED: True})
            scope.span.add_event(
                semconv.EXCEPTION_EVENT,
                {
                    semconv.EXCEPTION_TYPE: end.failure.type,
                    semconv.EXCEPTION_MESSAGE: end.failure.message,
                    semconv.EXCEPTION_STACKTRACE: end.failure.stacktrace,
                },
                timestamp=end.end_ns,
            )
            scope.span.set_status(Status(StatusCode.ERROR, end.failure.message or end.failure.type))

    def emit_content(self, scope: SpanScope, end: RequestEnd) -> None:
        """Send the event that carries messages, where the settings want it."""
        if not self.settings.content_in_events or self._logger is None or not (end.input_messages or end.output_messages):
            return
        if scope.foreign is not None:
            return
        from .content import content_event

        content_event(self._logger(), scope.request, end, trace.set_span_in_context(scope.span))


def _vllm_latency(start: RequestStart, end: RequestEnd) -> dict[str, AttributeValue]:
    seconds = {phase: sum(values) for phase, values in end.step_seconds.items()}
    prefill, decode = seconds.get(semconv.SPAN_PREFILL, 0.0), seconds.get(semconv.SPAN_DECODE, 0.0)
    found: dict[str, AttributeValue] = {
        semconv.LATENCY_E2E: (end.end_ns - start.start_ns) / 1e9,
        semconv.LATENCY_PREFILL: prefill,
        semconv.LATENCY_DECODE: decode,
        semconv.LATENCY_INFERENCE: prefill + decode,
    }
    if end.time_to_first_token is not None:
        found[semconv.LATENCY_TTFT] = end.time_to_first_token
    return found


def content_attributes(end: RequestEnd) -> dict[str, AttributeValue]:
    """Captured messages as the JSON strings that stand on spans."""
    from .content import to_json

    found: dict[str, AttributeValue] = {}
    if end.input_messages:
        found[semconv.INPUT_MESSAGES] = to_json(end.input_messages)
    if end.output_messages:
        found[semconv.OUTPUT_MESSAGES] = to_json(end.output_messages)
    return found


class SpanWriter:
    """Turns queued detail into finished spans and hands them to the processors."""

    def __init__(self) -> None:
        self._buffer: Buffer[tuple[SpanScope, Any]] = Buffer(self._write)
        self._shapes: dict[Any, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._packer = ModulePacker(self._described)

    def put(self, scope: SpanScope, item: Any, weight: int) -> bool:
        """Queue detail of a request, or the end of one whose steps are to be measured."""
        return self._buffer.put((scope, item), weight)

    def put_now(self, scope: SpanScope, records: Sequence[Phase | Step | ModuleBatch]) -> bool:
        """Hand detail of a request over on the calling thread; false where others come first, or where it is to be measured as well."""
        if any(isinstance(record, ModuleBatch) and scope.recorder.metrics.has_modules(record) for record in records):
            return False
        return self._buffer.consume_now((scope, records))

    def flush(self, timeout: float | None = None) -> bool:
        """Hand over everything that is queued, on the calling thread."""
        return self._buffer.flush(timeout)

    def _write(self, queued: tuple[SpanScope, Any], until: float | None) -> None:
        with _our_call():
            self._hand_over(queued, until)

    def _hand_over(self, queued: tuple[SpanScope, Any], until: float | None) -> None:
        scope, item = queued
        if isinstance(item, RequestEnd):
            scope.recorder.metrics.steps(scope.request, item, scope.span)
            return
        left, patience = CHUNK, PATIENCE
        for record in item:
            if isinstance(record, ModuleBatch) and scope.recorder.metrics.has_modules(record):
                self._measure(scope, record, until)
            if scope.sink is not None and isinstance(record, ModuleBatch):
                self._offer(scope, record, until)
                continue
            for span in self._spans(scope, record):
                if not left:
                    left = self._pace(scope, until, patience)
                if not left:
                    # A processor that has taken nothing for so long has lost its receiver: no more waiting for it.
                    left, patience = CHUNK, 0.0
                self._hand_in(scope, span)
                left -= 1

    @guarded("span hand-over")
    def _offer(self, scope: SpanScope, batch: ModuleBatch, until: float | None) -> None:
        """Send module calls the raw way, in slices that leave the interpreter to others in between."""
        above = self._above(scope, batch)
        for packed in self._packer.pack(scope.context, batch, scope.context.span_id if above is None else above):
            scope.recorder.metrics.dropped(len(packed) - scope.sink.offer(packed), "queue_full")
            self._pause(until)

    def _measure(self, scope: SpanScope, batch: ModuleBatch, until: float | None) -> None:
        calls = module_calls(batch)
        while some := list(islice(calls, CHUNK)):
            scope.recorder.metrics.modules(scope.request, batch, some, scope.span)
            self._pause(until)

    def _pause(self, until: float | None) -> None:
        """Let the model's thread have the interpreter, unless somebody waits for the hand-over."""
        if until is None and not self._buffer.awaited:
            time.sleep(PAUSE)

    def _pace(self, scope: SpanScope, until: float | None, patience: float) -> int:
        """Let the model's thread have the interpreter, and a batch processor empty its queue; returns how many spans may follow."""
        self._pause(until)
        end = time.monotonic() + patience
        while not (chunk := next_chunk(scope.tracer, CHUNK, ROOM)):
            now = time.monotonic()
            if now >= end or (until is not None and now >= until):
                return 0
            time.sleep(10 * PAUSE)
        return chunk

    # ------------------------------------------------------------------------------------------------------- one span
    @guarded("span hand-over")
    def _hand_in(self, scope: SpanScope, span: tuple[Any, ...]) -> None:
        name, span_id, parent_id, start, end, attributes, failure = span
        if scope.end_ns is not None:
            # Times of a request come from one clock, but the span of a nested request may have been cut short by its end.
            end = min(end, scope.end_ns)
            start = min(start, end)
        end = max(end, start)
        if failure is not None:
            attributes[semconv.ERROR_TYPE] = failure
        context = scope.context
        if scope.parts is None:
            self._through_api(scope, name, start, end, attributes, failure)
            return
        from opentelemetry.sdk.trace import ReadableSpan

        scope.parts.hand_in(
            ReadableSpan(
                name=name,
                context=SpanContext(context.trace_id, span_id, False, context.trace_flags, context.trace_state),
                parent=SpanContext(context.trace_id, parent_id or context.span_id, False, context.trace_flags, context.trace_state),
                resource=scope.parts.resource,
                attributes=attributes,
                kind=SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR, failure) if failure is not None else Status(),
                start_time=start,
                end_time=end,
                instrumentation_scope=scope.parts.scope,
            )
        )

    @staticmethod
    def _through_api(
        scope: SpanScope, name: str, start: int, end: int, attributes: Mapping[str, AttributeValue], failure: str | None
    ) -> None:
        """For tracers of another implementation: flat under the request, which is all that can be done after the fact."""
        span = scope.tracer.start_span(name, context=trace.set_span_in_context(scope.span), start_time=start, attributes=attributes)
        if failure is not None:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(end_time=end)

    def _spans(self, scope: SpanScope, record: Phase | Step | ModuleBatch) -> Iterator[tuple[Any, ...]]:
        if isinstance(record, ModuleBatch):
            yield from self._modules(scope, record)
        elif isinstance(record, Step):
            attributes = dict(record.attributes() if callable(record.attributes) else record.attributes)
            attributes |= {semconv.PHASE: record.phase, semconv.STEP_INDEX: record.number}
            device = scope.request.model.attributes.get(semconv.DEVICE)
            if device is not None:
                attributes[semconv.DEVICE] = device
            name = semconv.SPAN_PREFILL_STEP if record.phase == semconv.SPAN_PREFILL else semconv.SPAN_DECODE_STEP
            own = self._step_id(scope, record.number)
            yield name, own, self._phase_id(scope, record.phase), record.start_ns, record.end_ns, attributes, record.failure
        else:
            attributes = {semconv.PHASE: record.name, **record.attributes}
            yield record.name, self._phase_id(scope, record.name), None, record.start_ns, record.end_ns, attributes, record.failure

    @staticmethod
    def _phase_id(scope: SpanScope, phase: str) -> int:
        return scope.phase_ids.get(phase) or scope.phase_ids.setdefault(phase, ids().generate_span_id())

    @staticmethod
    def _step_id(scope: SpanScope, index: int) -> int:
        return scope.step_ids.get(index) or scope.step_ids.setdefault(index, ids().generate_span_id())

    def _above(self, scope: SpanScope, batch: ModuleBatch) -> int | None:
        """Span id that the outermost calls of a batch hang under; ``None`` for the request's own."""
        if batch.step is not None:
            return self._step_id(scope, batch.step)
        return self._phase_id(scope, batch.phase) if batch.phase in (semconv.SPAN_PREFILL, semconv.SPAN_DECODE) else None

    def _modules(self, scope: SpanScope, batch: ModuleBatch) -> Iterator[tuple[Any, ...]]:
        above = self._above(scope, batch)
        calls = list(module_calls(batch))
        own = {call[0]: ids().generate_span_id() for call in calls}
        for number, parent, info, start, end, inputs, outputs, failure, statistics in calls:
            attributes: dict[str, AttributeValue] = {
                semconv.PHASE: batch.phase,
                semconv.MODULE_NAME: info.name,
                semconv.MODULE_TYPE: info.type,
            }
            if batch.step is not None:
                attributes[semconv.STEP_INDEX] = batch.step
            if info.layer_index is not None:
                attributes[semconv.MODULE_LAYER_INDEX] = info.layer_index
            if inputs:
                attributes[semconv.INPUT_SHAPES], attributes[semconv.INPUT_DTYPES] = self._described(inputs)
            if outputs:
                attributes[semconv.OUTPUT_SHAPES], attributes[semconv.OUTPUT_DTYPES] = self._described(outputs)
            if statistics is not None:
                attributes.update(batch.statistics.get(statistics, {}))
            yield info.span_name, own[number], own.get(parent, above), start + batch.offset, end + batch.offset, attributes, failure

    def _described(self, described: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        known = self._shapes.get(described)
        if known is None:
            if len(self._shapes) >= _SHAPES_KEPT:
                self._shapes.clear()
            known = (
                tuple("x".join(map(str, shape)) or "scalar" for shape, _ in described),
                tuple(str(dtype).removeprefix("torch.") for _, dtype in described),
            )
            self._shapes[described] = known
        return known
