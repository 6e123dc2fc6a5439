"""Requests as OpenTelemetry spans.

A request's span goes through the API, live, and is the current one while ``generate()`` or a forward pass runs; ``live`` has what follows
until it has ended. A tracer that fails costs its span and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from inferspan import semconv
from inferspan.attribute_values import AttributeLimits, start_within_limits
from inferspan.caller import caller_attributes
from inferspan.export.otlp import current_provider, span_parts
from inferspan.export.sdk import SpanParts, SpanStarter, attribute_limits, wants_order, wants_start
from inferspan.guard import contain
from inferspan.metrics.requests import RequestMetrics
from inferspan.records import KIND_BATCH, AttributeValue, RequestScope, RequestStart
from inferspan.settings import Settings

from . import figures, origin
from .current import of_this_thread, session_attributes, suppressed
from .genai_interop import ThirdPartyCall, announce
from .live import LiveRequestSpan, RequestSinks
from .ranks.joining import begins
from .writer import SpanWriter, inside_a_provider, our_call

__all__ = ["LiveRequestSpan", "SpanRecorder"]

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
    acts: bool
    """Whether a processor acts on the end of a span: it may export it at once, or need it before its parent."""

    @classmethod
    def of(cls, parts: SpanParts, processors: Any) -> _Destination:
        tracer = parts.tracer
        if wants_start(tracer):
            return cls(tracer, processors, True, attribute_limits(tracer), None, wants_order(tracer))
        sender = direct_sender(current_provider("traces"), scope=parts.scope) if is_ours(parts) else None
        return cls(tracer, processors, False, attribute_limits(tracer), sender, wants_order(tracer))


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


class SpanRecorder(RequestSinks):
    """Makes spans and metrics of requests: the :class:`~inferspan.records.Recorder` of an instrumented model.

    Args:
        settings: options.
        tracer: returns the tracer; called for every request, because a host may set its provider late.
        metrics: records durations and counts.
        writer: writes detail.
        logger: returns the logger of the events.
        follow: called once with the processor of each tracer, whose flushes have to include the ends of requests.
    """

    def __init__(
        self,
        settings: Settings,
        tracer: Callable[[], Any],
        metrics: RequestMetrics,
        writer: SpanWriter,
        logger: Callable[[], Any] | None = None,
        *,
        follow: Callable[[Any], None] = lambda _: None,
    ) -> None:
        super().__init__(settings, metrics, writer, logger)
        self._tracer, self._follow = tracer, follow
        self._destination: _Destination | None = None

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
        together = start.model.ranks if parent is None and not (batch or start.nested) else None
        further = together is not None and not together.first
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
                span = start_within_limits(
                    tracer,
                    name,
                    attributes,
                    context=current,
                    kind=_KINDS[self.settings.span_kind] if not (batch or start.nested or third_party or further) else SpanKind.INTERNAL,
                    links=links,
                    start_time=start.start_ns,
                    record_exception=False,
                    set_status_on_exception=False,
                )
        try:
            scope = LiveRequestSpan(self, start, span, third_party, parent if isinstance(parent, LiveRequestSpan) else None)
            self.metrics.started(start)
        except BaseException:
            # An interrupt: nobody knows of the span yet.
            span.end()
            raise
        if start.begun is not None:
            start.begun(scope)
        with contain("summary"):
            scope.figures = figures.parts_of(self.recording, name, start, span, current)
        if together is not None:
            with contain("ranks"):
                begins(scope, together, name)
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
        if self.drift is not None:
            self.drift.renew_lock()

    def _find_destination(self, scope: LiveRequestSpan, tracer: Any, context: otel_context.Context) -> None:
        """Choose how the detail of a request leaves."""
        scope.tracer, parts = tracer, span_parts(tracer)
        if parts is None:
            return
        # Processors may be added to a provider at any time, which then has another tuple of them.
        processors = getattr(parts.processor, "_span_processors", None)
        known = self._destination
        if known is None or known.tracer is not parts.tracer or known.processors is not processors:
            self._follow(parts.processor)
            known = self._destination = _Destination.of(parts, processors)
        if known.starts:
            scope.starter = SpanStarter(tracer, context, scope.span)
        scope.parts, scope.limits, scope.sender = parts, known.limits, known.sender
        scope.at_once = known.acts

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

