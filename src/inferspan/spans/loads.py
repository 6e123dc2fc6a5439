"""Loads as spans: one for each, current while it runs, with its parts below it and the event of a checkpoint that has been read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from inferspan import semconv
from inferspan.attribute_values import add_event_within_limits, exportable_attributes, set_within_limits
from inferspan.guard import contain
from inferspan.records import AttributeValue, LoadEnd

from .content import exception_attributes
from .writer import inside_a_provider, our_call

__all__ = ["LoadSpans"]


class _LoadSpan:
    """The span of a load that runs."""

    def __init__(self, tracer: Any, span: Span, kind: str) -> None:
        self._tracer = tracer
        self._kind = kind
        self._span = span
        self._inside = trace.set_span_in_context(span)
        self._token = otel_context.attach(self._inside)

    def end(self, end: LoadEnd) -> None:
        """End it, with what is known now."""
        with contain("context"):
            otel_context.detach(self._token)
        with contain("span of a load"), our_call():
            for name, begun, ended in end.parts:
                part = self._tracer.start_span(name, context=self._inside, attributes={semconv.LOAD_KIND: self._kind}, start_time=begun)
                part.end(end_time=ended)
            attributes: dict[str, AttributeValue] = {**end.attributes, **end.checkpoint}
            if end.failure is not None:
                attributes |= {semconv.ERROR_TYPE: end.failure.type, semconv.FAILED: True}
                add_event_within_limits(self._span, semconv.EXCEPTION_EVENT, exception_attributes(end.failure), end.end_ns)
                self._span.set_status(Status(StatusCode.ERROR, end.failure.message or end.failure.type))
            elif end.checkpoint:
                add_event_within_limits(self._span, semconv.CHECKPOINT_LOADED_EVENT, exportable_attributes(end.checkpoint), end.end_ns)
            set_within_limits(self._span, exportable_attributes(attributes))
        with contain("span of a load"), our_call():
            self._span.end(end_time=end.end_ns)


class LoadSpans:
    """Makes the spans: a :class:`~inferspan.records.LoadRecorder`.

    Args:
        tracer: returns the tracer; called for every load, because a host may set its provider late.
    """

    def __init__(self, tracer: Callable[[], Any]) -> None:
        self._tracer = tracer

    def start_load(self, kind: str, name: str | None, start_ns: int) -> _LoadSpan | None:
        """Begin a load; see :class:`~inferspan.records.LoadRecorder`."""
        current = otel_context.get_current()
        if inside_a_provider() or current.get(otel_context._SUPPRESS_INSTRUMENTATION_KEY) or current.get("suppress_instrumentation"):
            return None
        attributes: dict[str, AttributeValue] = {semconv.LOAD_KIND: kind}
        if name is not None:
            attributes[semconv.MODEL_NAME] = name
        with our_call():
            tracer = self._tracer()
            span = tracer.start_span(
                semconv.SPAN_LOAD,
                attributes=exportable_attributes(attributes),
                start_time=start_ns,
                record_exception=False,
                set_status_on_exception=False,
            )
        return _LoadSpan(tracer, span, kind)
