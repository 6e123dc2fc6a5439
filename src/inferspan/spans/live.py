"""The live span of a request, from its start until it has ended.

The detail of a request goes to ``writer``, immediately or once ``flight_recorder`` has decided to keep it. The end of an ordinary request
costs the model's thread two appends: the hand-over thread sets the attributes, ends the span with the time of the end and records the
metrics, soon afterwards or at the next flush; a collection of metrics that comes before records the metrics itself. A request that has
failed, whose detail is held or whose messages are captured ends on its own thread, and so do all if a processor does more than queue spans.
What ends later ends in the context of its call.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from inferspan import semconv
from inferspan.analysis.drift import monitor_for
from inferspan.analysis.findings import Finding
from inferspan.attribute_values import add_event_within_limits, exportable_attributes, set_within_limits
from inferspan.guard import contain
from inferspan.metrics.requests import RequestMetrics
from inferspan.ranks import ranks
from inferspan.records import Attributes, AttributeValue, ModelInfo, Record, RequestEnd, RequestStart
from inferspan.settings import Settings
from inferspan.summaries.recording import Recording

from . import figures
from .analysis import analysed, evaluation_event
from .attributes import nonfinite_attributes
from .content import attention_events, content_event, exception_attributes, exception_event, position_events, set_content
from .flight_recorder import FlightRecorder, HeldDetail, weight_of
from .genai_interop import ThirdPartyCall
from .ranks.joining import WAIT
from .totals import usage_attributes, vllm_latency
from .writer import Detail, RequestSpan, SpanWriter, our_call

__all__ = ["LiveRequestSpan", "RequestSinks"]

FEW_SPANS = 16
"""Spans of a plain forward pass that are made on the thread of the call, where its request ends there: who looks finds them together."""


class RequestSinks:
    """What the requests of one recorder write to.

    Args:
        settings: options.
        metrics: records durations and counts.
        writer: writes detail, and ends requests.
        logger: returns the logger of the events.
    """

    def __init__(self, settings: Settings, metrics: RequestMetrics, writer: SpanWriter, logger: Callable[[], Any] | None) -> None:
        self.settings = settings
        self.metrics = metrics
        self.writer = writer
        self.logger = logger
        self.recording = Recording(metrics.summary)
        self.flight = FlightRecorder(settings)
        self.drift = monitor_for(settings)
        self._known_model: tuple[ModelInfo, dict[str, AttributeValue]] | None = None
        self._ranks: Attributes = {key: value for key, value in ranks(os.environ).items() if value is not None}

    def of_model(self, model: ModelInfo) -> dict[str, AttributeValue]:
        """Attributes of the model and of the rank, which are the same objects for all requests until the model changes."""
        known = self._known_model
        if known is None or known[0] is not model:
            known = self._known_model = model, exportable_attributes({**model.attributes, **self._ranks})
        return known[1]


class LiveRequestSpan(RequestSpan):
    """The span of a request on an instrumented model, from its start to its end: a :class:`~inferspan.records.RequestScope`."""

    def __init__(
        self,
        sinks: RequestSinks,
        start: RequestStart,
        span: Span,
        third_party: ThirdPartyCall | None,
        parent: LiveRequestSpan | None = None,
    ) -> None:
        super().__init__(start, span, sinks.metrics)
        self.sinks = sinks
        self.settings = sinks.settings
        self.third_party = third_party
        self.recording = bool(span.is_recording() and self.context.trace_flags.sampled)
        self.given: Mapping[str, AttributeValue] = {}
        """Attributes that the span began with."""
        self.marked = False
        self.at_once = False
        """Whether a processor acts on the end of the span: who has chosen one expects it to have acted when the call returns."""
        self.outermost = parent is None or not parent.recording
        """Whether no recorded request is around this one; the outermost decides about the detail of all requests inside it."""
        self.held: HeldDetail | None = None
        if self.recording:
            self.held = sinks.flight.hold() if parent is None or self.outermost else parent.held

    # --------------------------------------------------------------------------------------------------------- detail
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
            self.sinks.writer.put(self, Detail(measured, spans=False), weight)
        if self.held.add(self, records):
            self._hand_over(Detail(records, metrics=False), weight)

    def _hand_over(self, detail: Detail, weight: int) -> None:
        if self.at_once and weight <= FEW_SPANS and self.request.kind == "forward" and self.sinks.writer.put_now(self, detail, weight):
            return
        if not self.sinks.writer.put(self, detail, weight):
            self.metrics.dropped(weight, "queue_full")

    def _decide(self, held: HeldDetail, end: RequestEnd) -> RequestEnd:
        """Hand over the held detail of a request that ends if a rule keeps it; record the decision on the request's span."""
        held.note(end, marked=self.marked or _says_keep(self.span) or semconv.PROFILER_STEPS in end.attributes)
        if not self.outermost:
            return end
        reasons = self.sinks.flight.reasons(self.request, end, held)
        self.metrics.summary.decided(kept=bool(reasons))
        for scope, records in held.decide(bool(reasons)):
            scope._hand_over(Detail(records, metrics=False), sum(map(weight_of, records)))
        said: dict[str, AttributeValue]
        if reasons:
            said = {semconv.DETAIL_KEPT: True, semconv.DETAIL_RULE: ",".join(reasons), semconv.KEEP: True}
            end = replace(end, spans_dropped=end.spans_dropped + held.lost)
        else:
            rule = ",".join(self.settings.keep_words)
            said = {semconv.DETAIL_KEPT: False, semconv.DETAIL_RULE: rule, semconv.DETAIL_SPANS: held.spans + held.lost}
        set_within_limits(self.span, said)
        return end

    # ------------------------------------------------------------------------------------------------------------ end
    def end(self, end: RequestEnd) -> None:
        """End the span, whatever else fails, and record the metrics; on the hand-over thread, unless the end is an unusual one."""
        self.detach()
        self.end_ns = end.end_ns
        with contain("summary"):
            figures.closes(self.span)
        if self.tell_end is not None:
            with contain("ranks"):
                self.tell_end(end.end_ns)
        ending, alone = _Ending(self, end), False
        try:
            if self._can_wait(end) and self.sinks.writer.put_end(ending):
                self.metrics.waiting.put(ending.measure)
                return
            alone = True
            ending.close()
            ending.measure()
        except BaseException:
            # An interrupt of the program's. The hand-over thread does what is left, or this one if that cannot.
            if alone:
                ending.interrupted()
            self.metrics.waiting.put(ending.measure)
            if not self.sinks.writer.put_end(ending):
                ending.close()
            raise
        if (self.metrics.waiting or self.metrics.has_steps(end)) and not self.sinks.writer.put(self, end, 1):
            self.metrics.waiting.settle()

    def _can_wait(self, end: RequestEnd) -> bool:
        """Whether nobody has to see the end before the call returns, and only the SDK is asked off its thread."""
        return (
            end.failure is None
            and self.held is None
            and self.third_party is None
            and not self.at_once
            and (self.parts is not None or not self.span.is_recording())
            and not end.input_messages
            and not end.output_messages
        )

    def finish_span(self, end: RequestEnd, *, exception: bool = True) -> None:
        """Set the attributes of the end on the span; add its exception as an event, unless that was sent as a log record."""
        set_within_limits(self.span, self._end_attributes(end))
        for bad in end.bad_outputs:
            add_event_within_limits(self.span, semconv.NONFINITE_EVENT, nonfinite_attributes(bad), bad.time_ns)
        for name, time_ns, attributes in end.events:
            add_event_within_limits(self.span, name, attributes, time_ns)
        if end.failure is not None:
            if exception:
                add_event_within_limits(self.span, semconv.EXCEPTION_EVENT, exception_attributes(end.failure), end.end_ns)
            self.span.set_status(Status(StatusCode.ERROR, end.failure.message or end.failure.type))
        if self.settings.content_on_spans and self.third_party is None and (end.input_messages or end.output_messages):
            set_content(self.span, end, maps=self.settings.content_format == "structured")

    def _end_attributes(self, end: RequestEnd) -> dict[str, AttributeValue]:
        """Attributes of a request at its end, without its messages."""
        attributes: dict[str, AttributeValue] = {**end.attributes}
        attributes |= usage_attributes(end)
        if end.roofline is not None:
            with contain("roofline"):
                attributes |= end.roofline.figures.attributes
        if end.streaming and end.time_to_first_token is not None:
            attributes[semconv.TIME_TO_FIRST_CHUNK] = end.time_to_first_token
        if end.spans_dropped:
            attributes[semconv.SPANS_DROPPED] = end.spans_dropped
        if self.settings.compat_vllm_latency and self.request.kind == "generate":
            attributes |= vllm_latency(self.request, end)
        if semconv.RESPONSE_ID in self.given:
            # The caller's own id counts.
            attributes.pop(semconv.RESPONSE_ID, None)
        if end.failure is not None:
            # Every trace store can search by attribute value, but not every one by status.
            attributes |= {semconv.ERROR_TYPE: end.failure.type, semconv.FAILED: True}
        of_model = self.sinks.of_model(self.request.model)
        if self.third_party is not None:
            # Readers of traces would count a second span with gen_ai attributes as a second model call.
            attributes, of_model = (
                {key: value for key, value in some.items() if not key.startswith("gen_ai.")} for some in (attributes, of_model)
            )
        return {**of_model, **exportable_attributes(attributes)}

    def emit_exception(self, end: RequestEnd) -> bool:
        """Send the exception of a failed ``generate()`` as a log event; false if there is none, or no logger takes it."""
        logger = self.sinks.logger
        if end.failure is None or logger is None or self.request.kind == "forward" or self.third_party is not None:
            return False
        return exception_event(logger(), end.failure, end.end_ns, trace.set_span_in_context(self.span), self.given)

    def emit_events(self, end: RequestEnd, findings: Sequence[Finding]) -> None:
        """Emit an event for each finding and map of attention; on the hand-over thread, unless that has too much to do."""
        logger = self.sinks.logger
        if logger is None:
            return
        with contain("attention"), our_call():
            attention_events(logger(), end, trace.set_span_in_context(self.span), self.given)
        with contain("evaluation event"), our_call():
            for finding in findings:
                evaluation_event(logger(), finding, end.end_ns, trace.set_span_in_context(self.span), self.given)

    def emit_content(self, end: RequestEnd) -> None:
        """Emit the events with captured content, if the settings ask for it."""
        logger = self.sinks.logger
        if end.top_logits and logger is not None:
            position_events(logger(), end.top_logits, trace.set_span_in_context(self.span), self.given)
        if not self.settings.content_in_events or logger is None or not (end.input_messages or end.output_messages):
            return
        if self.third_party is not None:
            return
        # The program may have put attributes of its own on the span while the request ran.
        present = getattr(self.span, "attributes", None)
        attributes = {**self.given, **self._end_attributes(end), **(present if isinstance(present, Mapping) else {})}
        content_event(logger(), attributes, end, trace.set_span_in_context(self.span))


class _Ending:
    """The end of one request: what its span and its metrics are still to get. Two threads may do one part each.

    Args:
        scope: the request.
        end: how it ended.
    """

    __slots__ = ("_context", "_done", "_end", "_logged", "_measured", "_part", "_stepped", "scope")

    def __init__(self, scope: LiveRequestSpan, end: RequestEnd) -> None:
        self.scope = scope
        self._end = end
        self._done: tuple[RequestEnd, Sequence[Finding]] | None = None
        self._part = 0
        self._logged = self._measured = self._stepped = False
        # Processors of log records, whose events leave with the end, may read variables of the caller's context.
        self._context = contextvars.copy_context()

    def _analysed(self) -> tuple[RequestEnd, Sequence[Finding]]:
        """The end with its analysis, and the findings. Two threads that ask at once get equal ones."""
        done = self._done
        if done is None:
            end, scope = self._end, self.scope
            findings: Sequence[Finding] = ()
            if scope.recording:
                with contain("analysis"):
                    start, drift = scope.request, scope.sinks.drift
                    end, findings = analysed(end, scope.settings, nested=start.nested, drift=drift, model=start.model)
            done = self._done = end, findings
        return done

    def finish(self, pause: Callable[[], None]) -> None:
        """Do all of it that has not been done, on the hand-over thread; ``pause`` is called in between."""
        self._analysed()
        pause()
        self.scope.join(WAIT)
        self._context.run(self.close, pause)
        pause()
        metrics = self.scope.metrics
        metrics.waiting.settle(pause)
        if self._stepped:  # queued once more, as the interrupt came when it was
            return
        self._stepped = True
        metrics.steps(self.scope.request, self._analysed()[0], self.scope.span, pause)

    def close(self, pause: Callable[[], None] = lambda: None) -> None:
        """End the span, and send the events of the end; ``pause`` is called in between. Goes on behind the part that was interrupted."""
        self._analysed()
        self.scope.join(0.0)
        while self._part < len(_PARTS):
            part, pauses = _PARTS[self._part]
            self._part += 1
            part(self)
            if pauses:
                pause()

    def interrupted(self) -> None:
        """End the span again if the interrupt came before it had ended."""
        if self._part > _END and self.scope.span.is_recording():
            self._part = _END

    def _decide(self) -> None:
        scope = self.scope
        if scope.held is not None:
            with contain("flight recorder"):
                end, findings = self._analysed()
                self._done = scope._decide(scope.held, end), findings

    def _tell_exception(self) -> None:
        with contain("exception event"), our_call():
            self._logged = self.scope.emit_exception(self._analysed()[0])

    def _finish_span(self) -> None:
        scope = self.scope
        with contain("request span"):
            if scope.span.is_recording():
                scope.finish_span(self._analysed()[0], exception=not self._logged or scope.settings.exception_signal != "logs")

    def _end_span(self) -> None:
        with contain("request span"), our_call():
            self.scope.span.end(end_time=self._end.end_ns)

    def _tell_content(self) -> None:
        with contain("content event"), our_call():
            self.scope.emit_content(self._analysed()[0])

    def _tell_findings(self) -> None:
        scope, (end, findings) = self.scope, self._analysed()
        if (findings or end.attention_maps) and not scope.sinks.writer.soon(partial(scope.emit_events, end, findings)):
            scope.emit_events(end, findings)

    def _publish(self) -> None:
        if self.scope.third_party is not None:
            with contain("third-party gen_ai span"):
                self.scope.third_party.publish(self._analysed()[0])

    def _count(self) -> None:
        scope = self.scope
        with contain("summary"):
            if scope.figures is not None:
                scope.figures.ended(self._analysed()[0], scope.span, recording=scope.recording)

    def measure(self) -> None:
        """Record the metrics of the request, once."""
        if self._measured:
            return
        end, scope = self._analysed()[0], self.scope
        self._measured = True
        scope.metrics.ended(scope.request, end, scope.span, third_party=scope.third_party is not None)


_PARTS: tuple[tuple[Callable[[_Ending], None], bool], ...] = (
    (_Ending._decide, False), (_Ending._tell_exception, False), (_Ending._finish_span, True), (_Ending._end_span, True),
    (_Ending._tell_content, False), (_Ending._tell_findings, False), (_Ending._publish, False), (_Ending._count, False),
)  # fmt: skip
"""What the end of a request consists of, in order, and whether other threads may run after it."""
_END = 3
"""The part that ends the span."""


def _says_keep(span: Span) -> bool:
    """Whether the user's code has marked a span of the SDK since it started."""
    attributes = getattr(span, "attributes", None)
    return isinstance(attributes, Mapping) and attributes.get(semconv.KEEP) is True
