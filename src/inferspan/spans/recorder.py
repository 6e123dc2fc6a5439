"""Requests as OpenTelemetry spans.

A request's span goes through the API, live, and is the current one while ``generate()`` runs. Its detail is left to ``span_writer``, at
once or when ``flight_recorder`` has decided that it is wanted. A tracer that fails costs its span and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from inferspan import semconv
from inferspan.attribute_values import exportable_attributes
from inferspan.caller import caller_attributes
from inferspan.export.otlp import current_provider, span_parts
from inferspan.export.sdk import SpanParts
from inferspan.guard import contain
from inferspan.metrics.requests import RequestMetrics
from inferspan.ranks import ranks
from inferspan.records import Attributes, AttributeValue, ModuleBatch, RequestEnd, RequestScope, RequestStart
from inferspan.settings import Settings

from .flight_recorder import FlightRecorder, HeldDetail, Record, weight_of
from .genai_interop import ThirdPartyCall, announce
from .writer import Detail, RequestSpan, SpanWriter, inside_a_provider, our_call

__all__ = ["SpanRecorder"]

AT_ONCE = 16
"""Spans that are made on the model's thread: waking another one for so few costs as much, and a caller finds them in place."""
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}


def is_ours(parts: SpanParts) -> bool:
    """Whether a tracer belongs to the global provider, which may be one that we have set up."""
    return getattr(current_provider("traces"), "_active_span_processor", None) is parts.processor


def raw_sink(provider: Any, *, scope: Any) -> Any:
    """The raw way out of a provider of ours; loaded late, because it needs the SDK."""
    from inferspan.export.raw_sender import raw_sink as open_sink

    return open_sink(provider, scope=scope)


def request_name(start: RequestStart, third_party: ThirdPartyCall | None) -> str:
    """Name of a request's span: operation and model, or ``forward`` and model."""
    if start.operation is None or (third_party is not None and start.kind == "forward"):
        return f"{semconv.SPAN_FORWARD} {start.model.name or start.model.architecture}"
    if third_party is not None:
        return semconv.SPAN_GENERATE
    return f"{start.operation} {start.model.name}" if start.model.name else start.operation


class SpanScope(RequestSpan):
    """One request that is running."""

    def __init__(
        self, recorder: SpanRecorder, start: RequestStart, span: Span, third_party: ThirdPartyCall | None, parent: SpanScope | None = None
    ) -> None:
        super().__init__(start, span, recorder.metrics)
        self.recorder = recorder
        self.third_party = third_party
        self.recording = bool(span.is_recording() and self.context.trace_flags.sampled)
        self.token: Any = None
        self.marked = False
        self.outermost = parent is None or not parent.recording
        """Of those that are recorded; it decides about the detail of all inside it."""
        self.held: HeldDetail | None = None
        if self.recording:
            self.held = recorder.flight.hold() if parent is None or self.outermost else parent.held

    def detail(self, records: Sequence[Record]) -> None:
        """Queue detail for the hand-over thread, or hold it until the outermost request has ended."""
        if not self.recording or not records:
            return
        weight = sum(map(weight_of, records))
        if self.held is None:
            self._hand_over(Detail(records), weight)
            return
        # Metrics are of all requests.
        measured = [record for record in records if isinstance(record, ModuleBatch) and self.metrics.has_modules(record)]
        if measured:
            self.recorder.writer.put(self, Detail(measured, spans=False), weight)
        if self.held.add(self, records):
            self._hand_over(Detail(records, metrics=False), weight)

    def _hand_over(self, detail: Detail, weight: int) -> None:
        """The little that a small plain forward has is handed over at once."""
        if self.request.kind == "forward" and weight <= AT_ONCE and self.recorder.writer.put_now(self, detail):
            return
        if not self.recorder.writer.put(self, detail, weight):
            self.metrics.dropped(weight, "queue_full")

    def end(self, end: RequestEnd) -> None:
        """End the span, whatever else fails, and record the metrics."""
        if self.token is not None:
            with contain("context"):
                otel_context.detach(self.token)
            self.token = None
        self.end_ns = end.end_ns
        if self.held is not None:
            with contain("flight recorder"):
                end = self._decide(self.held, end)
        with contain("request span"):
            if self.span.is_recording():
                self.recorder.finish_span(self, end)
        with contain("request span"), our_call():
            self.span.end(end_time=end.end_ns)
        with contain("content event"), our_call():
            self.recorder.emit_content(self, end)
        if self.third_party is not None:
            with contain("foreign gen_ai span"):
                self.third_party.publish(end)
        self.metrics.ended(self.request, end, self.span, third_party=self.third_party is not None)
        if self.metrics.has_steps(end):
            self.recorder.writer.put(self, end, 1)

    def _decide(self, held: HeldDetail, end: RequestEnd) -> RequestEnd:
        """Hand over what was held if the request, which ends now, is worth it; say on its span what was decided."""
        held.note(end, marked=self.marked or _says_keep(self.span) or semconv.PROFILER_STEPS in end.attributes)
        if not self.outermost:
            return end
        reasons = self.recorder.flight.reasons(self.request, end, held)
        self.metrics.summary.decided(kept=bool(reasons))
        for scope, records in held.decide(bool(reasons)):
            scope._hand_over(Detail(records, metrics=False), sum(map(weight_of, records)))
        said: dict[str, AttributeValue]
        if reasons:
            said = {semconv.DETAIL_KEPT: True, semconv.DETAIL_RULE: ",".join(reasons), semconv.KEEP: True}
            end = replace(end, spans_dropped=end.spans_dropped + held.lost)
        else:
            rule = ",".join(self.recorder.settings.keep_words)
            said = {semconv.DETAIL_KEPT: False, semconv.DETAIL_RULE: rule, semconv.DETAIL_SPANS: held.spans + held.lost}
        self.span.set_attributes(said)
        return end


def _says_keep(span: Span) -> bool:
    """Whether somebody has marked a span of the SDK since it began."""
    attributes = getattr(span, "attributes", None)
    return isinstance(attributes, Mapping) and attributes.get(semconv.KEEP) is True


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
        self.flight = FlightRecorder(settings)
        self._tracer = tracer
        self._logger = logger
        self._raw: tuple[Any, Any] | None = None
        self._ranks: Attributes = {key: value for key, value in ranks(os.environ).items() if value is not None}

    def start(self, start: RequestStart, parent: RequestScope | None) -> RequestScope | None:
        """Begin a request; see :class:`~inferspan.records.Recorder`."""
        current = otel_context.get_current()
        if inside_a_provider() or current.get(otel_context._SUPPRESS_INSTRUMENTATION_KEY) or current.get("suppress_instrumentation"):
            return None
        if isinstance(parent, SpanScope) and start.nested and not self._is_inside(current, parent):
            current = trace.set_span_in_context(parent.span, current)
        third_party = ThirdPartyCall.around(current, start) if start.operation is not None and not start.nested else None
        span: Span = trace.INVALID_SPAN
        tracer: Any = None
        attributes: dict[str, AttributeValue] = {}
        with contain("request span"), our_call():
            attributes = self._start_attributes(start, third_party)
            tracer = self._tracer()
            span = tracer.start_span(
                request_name(start, third_party),
                context=current,
                kind=_KINDS[self.settings.span_kind] if not start.nested and third_party is None else SpanKind.INTERNAL,
                attributes=attributes,
                start_time=start.start_ns,
                record_exception=False,
                set_status_on_exception=False,
            )
        scope = SpanScope(self, start, span, third_party, parent if isinstance(parent, SpanScope) else None)
        scope.marked = attributes.get(semconv.KEEP) is True
        if scope.recording:
            with contain("request span"):
                scope.tracer, scope.parts = tracer, span_parts(tracer)
                scope.sink = self._sink(tracer, scope.parts)
        if start.kind == "generate":
            with contain("context"):
                # Without a span of ours the caller's stays the parent of what is inside.
                inside = current if span is trace.INVALID_SPAN else trace.set_span_in_context(span, current)
                scope.token = otel_context.attach(announce(inside, start, third_party))
        self.metrics.started(start)
        return scope

    def renew_locks(self) -> None:
        """Called in a forked child, where nobody is left to release them."""
        self.metrics.renew_locks()
        self.flight.renew_lock()

    def _sink(self, tracer: Any, parts: SpanParts | None) -> Any:
        """The raw way out, where the tracer belongs to our own provider and nothing but OTLP hangs on it."""
        if parts is None:
            return None
        if self._raw is None or self._raw[0] is not parts.tracer:
            self._raw = (parts.tracer, raw_sink(current_provider("traces"), scope=parts.scope) if is_ours(parts) else None)
        return self._raw[1]

    @staticmethod
    def _is_inside(current: Any, parent: SpanScope) -> bool:
        return trace.get_current_span(current).get_span_context().trace_id == parent.context.trace_id

    def _start_attributes(self, start: RequestStart, third_party: ThirdPartyCall | None) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {}
        if start.operation is not None and third_party is None:
            attributes[semconv.OPERATION_NAME] = start.operation
            attributes[semconv.PROVIDER_NAME] = start.model.provider
            if start.model.name is not None:
                attributes[semconv.REQUEST_MODEL] = attributes[semconv.RESPONSE_MODEL] = start.model.name
        attributes[semconv.MODEL_NAME] = start.model.name or start.model.architecture
        if start.nested:
            attributes[semconv.NESTED] = True
        if self.settings.mark:
            attributes[semconv.KEEP] = True
        # At the start, so that a sampler can decide by them.
        given = caller_attributes()
        if third_party is not None:
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
        if scope.third_party is not None:
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
        if scope.third_party is not None:
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
