"""Requests as OpenTelemetry spans.

A request's span goes through the API, live, and is the current one while ``generate()`` or a forward pass runs. The recorder passes its
detail to ``writer``, immediately or once ``flight_recorder`` has decided to keep it. A tracer that fails costs its span and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from inferspan import semconv
from inferspan.analysis.findings import Finding
from inferspan.attribute_values import AttributeLimits, exportable_attributes
from inferspan.caller import caller_attributes
from inferspan.export.otlp import current_provider, span_parts
from inferspan.export.sdk import SpanParts, SpanStarter, attribute_limits, wants_start
from inferspan.guard import contain
from inferspan.metrics.requests import RequestMetrics
from inferspan.ranks import ranks
from inferspan.records import KIND_BATCH, Attributes, AttributeValue, ModelInfo, Record, RequestEnd, RequestScope, RequestStart
from inferspan.settings import Settings
from inferspan.summaries.recording import Recording

from . import figures, origin
from .analysis import analysed, evaluation_event
from .attributes import nonfinite_attributes
from .content import attention_events, content_event, exception_attributes, exception_event, position_events, set_content
from .current import of_this_thread, session_attributes, suppressed
from .flight_recorder import FlightRecorder, HeldDetail, weight_of
from .genai_interop import ThirdPartyCall, announce
from .totals import usage_attributes, vllm_latency
from .writer import Detail, RequestSpan, SpanWriter, inside_a_provider, our_call

__all__ = ["SpanRecorder"]

SMALL_FORWARD_SPANS = 16
"""Largest number of spans that are made on the model's thread. Waking another thread for them costs as much, and this way they exist when
the call returns."""
_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}


def is_ours(parts: SpanParts) -> bool:
    """Whether a tracer belongs to the global provider, which ``export`` may have set up."""
    return getattr(current_provider("traces"), "_active_span_processor", None) is parts.processor


def direct_sender(provider: Any, *, scope: Any) -> Any:
    """The sender of packed spans beside a provider of ours; loaded late, because it needs the SDK."""
    from inferspan.export.raw_sender import raw_sink as open_sink

    return open_sink(provider, scope=scope)


class _Destination(NamedTuple):
    """How detail leaves, for a tracer and the processors that its provider has."""

    tracer: Any
    processors: Any
    starts: bool
    """Whether spans have to be started, because a processor acts when they are."""
    limits: AttributeLimits | None
    sender: Any
    """The sender of packed spans, if the provider is our own and has nothing but one OTLP exporter."""

    @classmethod
    def of(cls, parts: SpanParts, processors: Any) -> _Destination:
        tracer = parts.tracer
        if wants_start(tracer):  # then the SDK applies the limits
            return cls(tracer, processors, True, None, None)
        sender = direct_sender(current_provider("traces"), scope=parts.scope) if is_ours(parts) else None
        return cls(tracer, processors, False, attribute_limits(tracer), sender)


def request_name(start: RequestStart, third_party: ThirdPartyCall | None) -> str:
    """Name of a request's span: operation and model, or ``forward`` or the name of the method, and model."""
    method = start.attributes.get(semconv.METHOD)
    if start.kind == KIND_BATCH:
        return f"{semconv.SPAN_BATCH} {start.model.name or start.model.architecture}"
    if method is not None:
        return f"{method} {start.model.name or start.model.architecture}"
    if start.operation is None or (third_party is not None and start.kind == "forward"):
        return f"{semconv.SPAN_FORWARD} {start.model.name or start.model.architecture}"
    if third_party is not None:
        return semconv.SPAN_GENERATE
    return f"{start.operation} {start.model.name}" if start.model.name else start.operation


class LiveRequestSpan(RequestSpan):
    """The span of a request on an instrumented model, from its start to its end: a :class:`~inferspan.records.RequestScope`."""

    def __init__(
        self,
        recorder: SpanRecorder,
        start: RequestStart,
        span: Span,
        third_party: ThirdPartyCall | None,
        parent: LiveRequestSpan | None = None,
    ) -> None:
        super().__init__(start, span, recorder.metrics)
        self.recorder = recorder
        self.settings = recorder.settings
        self.third_party = third_party
        self.recording = bool(span.is_recording() and self.context.trace_flags.sampled)
        self.given: Mapping[str, AttributeValue] = {}
        """Attributes that the span began with."""
        self.marked = False
        self.outermost = parent is None or not parent.recording
        """Whether no recorded request is around this one; the outermost decides about the detail of all requests inside it."""
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
        # Metrics cover all requests, whether or not their detail is kept.
        measured = [record for record in records if self.metrics.measures(record)]
        if measured:
            self.recorder.writer.put(self, Detail(measured, spans=False), weight)
        if self.held.add(self, records):
            self._hand_over(Detail(records, metrics=False), weight)

    def _hand_over(self, detail: Detail, weight: int) -> None:
        """Queue detail; the few spans of a small plain forward pass are made immediately, on the calling thread."""
        if self.request.kind == "forward" and weight <= SMALL_FORWARD_SPANS and self.recorder.writer.put_now(self, detail):
            return
        if not self.recorder.writer.put(self, detail, weight):
            self.metrics.dropped(weight, "queue_full")

    def end(self, end: RequestEnd) -> None:
        """End the span, whatever else fails, and record the metrics."""
        self.detach()
        findings: Sequence[Finding] = ()
        if self.recording:
            with contain("analysis"):
                end, findings = analysed(end, self.settings, nested=self.request.nested)
        if self.held is not None:
            with contain("flight recorder"):
                end = self._decide(self.held, end)
        logged = False
        with contain("exception event"), our_call():
            logged = self.recorder.emit_exception(self, end)
        with contain("request span"):
            if self.span.is_recording():
                self.recorder.finish_span(self, end, exception=not logged or self.recorder.settings.exception_signal != "logs")
        with contain("request span"), our_call():
            self.span.end(end_time=end.end_ns)
        with contain("content event"), our_call():
            self.recorder.emit_content(self, end)
        if (findings or end.attention_maps) and not self.recorder.soon(partial(self.recorder.emit_events, self, end, findings)):
            self.recorder.emit_events(self, end, findings)
        if self.third_party is not None:
            with contain("third-party gen_ai span"):
                self.third_party.publish(end)
        with contain("summary"):
            figures.closes(self.span)
            if self.figures is not None:
                self.figures.ended(end, self.span, recording=self.recording)
        self.metrics.ended(self.request, end, self.span, third_party=self.third_party is not None)
        if (self.metrics.waiting or self.metrics.has_steps(end)) and not self.recorder.writer.put(self, end, 1):
            self.metrics.waiting.settle()

    def _decide(self, held: HeldDetail, end: RequestEnd) -> RequestEnd:
        """Hand over the held detail of a request that ends if a rule keeps it; record the decision on the request's span."""
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
    """Whether the user's code has marked a span of the SDK since it started."""
    attributes = getattr(span, "attributes", None)
    return isinstance(attributes, Mapping) and attributes.get(semconv.KEEP) is True


class SpanRecorder:
    """Makes spans and metrics of requests: the :class:`~inferspan.records.Recorder` of an instrumented model.

    Args:
        settings: options.
        tracer: returns the tracer; called for every request, because a host may set its provider late.
        metrics: records durations and counts.
        writer: writes detail.
        logger: returns the logger of the events.
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
        self.recording = Recording(metrics.summary)
        self.flight = FlightRecorder(settings)
        self._tracer = tracer
        self._logger = logger
        self._destination: _Destination | None = None
        self._known_model: tuple[ModelInfo, dict[str, AttributeValue]] | None = None
        self._ranks: Attributes = {key: value for key, value in ranks(os.environ).items() if value is not None}

    def start(self, start: RequestStart, parent: RequestScope | None) -> RequestScope | None:
        """Begin a request; see :class:`~inferspan.records.Recorder`."""
        # A batch belongs to no caller, on whichever thread its span is made.
        batch = start.kind == KIND_BATCH
        current = Context() if batch else of_this_thread()
        if inside_a_provider() or suppressed(current):
            return None
        if isinstance(parent, LiveRequestSpan) and not self._is_inside(current, parent):
            current = trace.set_span_in_context(parent.span, current)
        links: Sequence[trace.Link] = ()
        if parent is None and not batch:
            with contain("origin of a request"):
                current, links = origin.resolve(current, start.streamer() if start.streamer is not None else None)
        third_party = ThirdPartyCall.around(current, start) if start.operation is not None and not start.nested else None
        span: Span = trace.INVALID_SPAN
        tracer: Any = None
        attributes: dict[str, AttributeValue] = {}
        name = ""
        with contain("request span"), our_call():
            name = request_name(start, third_party)
            attributes = {**self._start_attributes(start, third_party), **session_attributes(current)}
            tracer = self._tracer()
            if not batch or self._shows_batches:
                span = tracer.start_span(
                    name,
                    context=current,
                    kind=_KINDS[self.settings.span_kind] if not (batch or start.nested or third_party) else SpanKind.INTERNAL,
                    attributes=attributes,
                    links=links,
                    start_time=start.start_ns,
                    record_exception=False,
                    set_status_on_exception=False,
                )
        scope = LiveRequestSpan(self, start, span, third_party, parent if isinstance(parent, LiveRequestSpan) else None)
        with contain("summary"):
            scope.figures = figures.parts_of(self.recording, name, start, span, current)
        scope.given = attributes
        scope.marked = attributes.get(semconv.KEEP) is True
        if scope.recording:
            with contain("request span"):
                self._find_destination(scope, tracer, current)
        if start.kind != "forward" and start.attached:
            with contain("context"):
                # Without a span of ours the caller's stays the parent of what is inside.
                inside = current if span is trace.INVALID_SPAN else trace.set_span_in_context(span, current)
                scope.attach(announce(inside, start, third_party))
        self.metrics.started(start)
        return scope

    @property
    def _shows_batches(self) -> bool:
        """Whether the steps of a batch get spans; ``keep`` decides about single requests, which share them."""
        return self.settings.steps != "none" and not self.settings.keep_words

    def add_source(self, collect: Callable[[], None]) -> Callable[[], None]:
        """See :class:`~inferspan.records.Recorder`."""
        return self.writer.add_source(collect)

    def soon(self, collect: Callable[[], None]) -> bool:
        """See :class:`~inferspan.records.Recorder`."""
        return self.writer.soon(collect)

    def renew_locks(self) -> None:
        """Replace locks in a forked child: the threads that held them do not exist there."""
        self.writer.renew_lock()
        self.metrics.renew_locks()
        self.flight.renew_lock()

    def _find_destination(self, scope: LiveRequestSpan, tracer: Any, context: otel_context.Context) -> None:
        """Choose how the detail of a request leaves."""
        scope.tracer, parts = tracer, span_parts(tracer)
        if parts is None:
            return
        # Processors may be added to a provider at any time, which then has another tuple of them.
        processors = getattr(parts.processor, "_span_processors", None)
        known = self._destination
        if known is None or known.tracer is not parts.tracer or known.processors is not processors:
            known = self._destination = _Destination.of(parts, processors)
        if known.starts:
            scope.starter = SpanStarter(tracer, context, scope.span)
        scope.parts, scope.limits, scope.sender = parts, known.limits, known.sender

    @staticmethod
    def _is_inside(current: Any, parent: LiveRequestSpan) -> bool:
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
        # Set at the start, so that samplers see them.
        given = caller_attributes() if start.kind != KIND_BATCH else {}
        if third_party is not None:
            given = {key: value for key, value in given.items() if not key.startswith("gen_ai.")}
        return {**attributes, **start.attributes, **given}

    def _end_attributes(self, scope: LiveRequestSpan, end: RequestEnd) -> dict[str, AttributeValue]:
        """Attributes of a request at its end, without its messages."""
        attributes: dict[str, AttributeValue] = {**end.attributes}
        attributes |= usage_attributes(end)
        if end.streaming and end.time_to_first_token is not None:
            attributes[semconv.TIME_TO_FIRST_CHUNK] = end.time_to_first_token
        if end.spans_dropped:
            attributes[semconv.SPANS_DROPPED] = end.spans_dropped
        if self.settings.compat_vllm_latency and scope.request.kind == "generate":
            attributes |= vllm_latency(scope.request, end)
        if semconv.RESPONSE_ID in scope.given:
            # The caller's own id counts.
            attributes.pop(semconv.RESPONSE_ID, None)
        if scope.third_party is not None:
            # Readers of traces would count a second span with gen_ai attributes as a second model call.
            attributes = {key: value for key, value in attributes.items() if not key.startswith("gen_ai.")}
        if end.failure is not None:
            # Every trace store can search by attribute value, but not every one by status.
            attributes |= {semconv.ERROR_TYPE: end.failure.type, semconv.FAILED: True}
        return {**self._of_model(scope), **exportable_attributes(attributes)}

    def _of_model(self, scope: LiveRequestSpan) -> dict[str, AttributeValue]:
        """Attributes of the model and of the rank, which are the same objects for all requests until the model changes."""
        model, known = scope.request.model, self._known_model
        if known is None or known[0] is not model:
            known = self._known_model = model, exportable_attributes({**model.attributes, **self._ranks})
        if scope.third_party is not None:
            return {key: value for key, value in known[1].items() if not key.startswith("gen_ai.")}
        return known[1]

    def finish_span(self, scope: LiveRequestSpan, end: RequestEnd, *, exception: bool = True) -> None:
        """Set the attributes of the end on the request's span; add its exception as an event, unless that was sent as a log record."""
        scope.span.set_attributes(self._end_attributes(scope, end))
        for bad in end.bad_outputs:
            scope.span.add_event(semconv.NONFINITE_EVENT, nonfinite_attributes(bad), timestamp=bad.time_ns)
        for name, time_ns, attributes in end.events:
            scope.span.add_event(name, attributes, timestamp=time_ns)
        if end.failure is not None:
            if exception:
                scope.span.add_event(semconv.EXCEPTION_EVENT, exception_attributes(end.failure), timestamp=end.end_ns)
            scope.span.set_status(Status(StatusCode.ERROR, end.failure.message or end.failure.type))
        if self.settings.content_on_spans and scope.third_party is None and (end.input_messages or end.output_messages):
            set_content(scope.span, end, maps=self.settings.content_format == "structured")

    def emit_exception(self, scope: LiveRequestSpan, end: RequestEnd) -> bool:
        """Send the exception of a failed ``generate()`` as a log event; false if there is none, or no logger takes it."""
        if end.failure is None or self._logger is None or scope.request.kind == "forward" or scope.third_party is not None:
            return False
        return exception_event(self._logger(), end.failure, end.end_ns, trace.set_span_in_context(scope.span), scope.given)

    def emit_events(self, scope: LiveRequestSpan, end: RequestEnd, findings: Sequence[Finding]) -> None:
        """Emit an event for each finding and map of attention; on the hand-over thread, unless that has too much to do."""
        if self._logger is None:
            return
        with contain("attention"), our_call():
            attention_events(self._logger(), end, trace.set_span_in_context(scope.span), scope.given)
        with contain("evaluation event"), our_call():
            for finding in findings:
                evaluation_event(self._logger(), finding, end.end_ns, trace.set_span_in_context(scope.span), scope.given)

    def emit_content(self, scope: LiveRequestSpan, end: RequestEnd) -> None:
        """Emit the events with captured content, if the settings ask for it."""
        if end.top_logits and self._logger is not None:
            position_events(self._logger(), end.top_logits, trace.set_span_in_context(scope.span), scope.given)
        if not self.settings.content_in_events or self._logger is None or not (end.input_messages or end.output_messages):
            return
        if scope.third_party is not None:
            return
        # The program may have put attributes of its own on the span while the request ran.
        present = getattr(scope.span, "attributes", None)
        attributes = {**scope.given, **self._end_attributes(scope, end), **(present if isinstance(present, Mapping) else {})}
        content_event(self._logger(), attributes, end, trace.set_span_in_context(scope.span))
