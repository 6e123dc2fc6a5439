"""Span processors that act when a span starts: the spans under a request are started for them, with the request's context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    SpanLimits,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, StaticSampler

from inferspan.records import ModelInfo, RequestEnd, RequestStart, Step
from tests.spans.outputs import CASES, DECODE, recorder_on, send

RECORDS = [
    Step(4, DECODE, 1, 9, None, {}),
    *CASES["step"].records,
    *CASES["module, operation and kernel of a step"].records,
    *CASES["phase"].records,
]


class _Baggage(SpanProcessor):
    """Copies the baggage of the context that it is given."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        span.set_attributes({f"baggage.{key}": value for key, value in baggage.get_all(parent_context).items()})


class _CurrentBaggage(SpanProcessor):
    """Copies the baggage of the current context."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        span.set_attributes({f"baggage.{key}": value for key, value in baggage.get_all().items()})


def _within(multi: Any, part: SpanProcessor) -> SpanProcessor:
    multi.add_span_processor(part)
    processor: SpanProcessor = multi
    return processor


PROCESSORS: dict[str, Callable[[], SpanProcessor]] = {
    "the given context": _Baggage,
    "the current context": _CurrentBaggage,
    "in a group": lambda: _within(SynchronousMultiSpanProcessor(), _Baggage()),
    "in a concurrent group": lambda: _within(ConcurrentMultiSpanProcessor(), _Baggage()),
}


def _spans(*processors: SpanProcessor, limits: SpanLimits | None = None) -> list[ReadableSpan]:
    """Spans of the records with a tenant in the baggage, the request's last."""
    exporter = InMemorySpanExporter()
    token = context.attach(baggage.set_baggage("tenant", "t1"))
    try:
        send(RECORDS, *processors, SimpleSpanProcessor(exporter), limits=limits)
    finally:
        context.detach(token)
    return list(exporter.get_finished_spans())


@pytest.mark.parametrize("name", PROCESSORS)
def test_every_span_is_started(name: str) -> None:
    """A processor that copies baggage does so on the request and on every phase, step, module, operation and kernel."""
    assert {(span.attributes or {}).get("baggage.tenant") for span in _spans(PROCESSORS[name]())} == {"t1"}


def _described(spans: list[ReadableSpan]) -> list[tuple[Any, ...]]:
    """Spans without their ids: parents by name."""
    names = {span.context.span_id: span.name for span in spans}
    found = []
    for span in spans:
        above = names[span.parent.span_id] if span.parent else None
        own = {key: value for key, value in (span.attributes or {}).items() if not key.startswith("baggage.")}
        status = span.status.status_code, span.status.description
        found.append((span.name, above, span.start_time, span.end_time, own, status, span.kind, span.instrumentation_scope, span.resource))
    return found


def test_started_spans_are_those_that_are_handed_in() -> None:
    """Names, parents, times, attributes and status do not depend on how a span is made."""
    assert _described(_spans(_Baggage())) == _described(_spans())


def test_started_spans_are_of_one_trace() -> None:
    """All spans belong to the trace of their request."""
    assert len({span.context.trace_id for span in _spans(_Baggage())}) == 1


def test_limits_of_started_spans() -> None:
    """The SDK applies its limits to spans that are started, and counts what it drops."""
    spans = _spans(_Baggage(), limits=SpanLimits(max_span_attributes=3))[:-1]
    assert {len(span.attributes or {}) for span in spans} <= {2, 3}
    assert any(span.dropped_attributes for span in spans)


def test_a_processor_that_acts_before_the_end() -> None:
    """The experimental ``_on_ending`` is called for every span."""
    ending: list[str] = []

    class Ending(SpanProcessor):
        def _on_ending(self, span: Any) -> None:
            ending.append(span.name)

    names = [span.name for span in _spans(Ending())]
    assert ending == names


def test_spans_are_not_started_without_need() -> None:
    """Where no processor acts at the start, processors get finished spans; the tracer is asked for that of the request only."""
    started: list[str] = []

    class Watching(StaticSampler):
        def should_sample(self, parent_context: Any, trace_id: int, name: str, *rest: Any, **options: Any) -> Any:
            started.append(name)
            return super().should_sample(parent_context, trace_id, name, *rest, **options)

    provider = TracerProvider(shutdown_on_exit=False, sampler=Watching(Decision.RECORD_AND_SAMPLE))
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    recorder = recorder_on(provider)
    scope: Any = recorder.start(RequestStart("forward", None, ModelInfo("m", "huggingface", "M", {}), 0, False, {}), None)
    scope.detail(CASES["module of a plain forward"].records)
    scope.end(RequestEnd(1000, None, {}))
    assert recorder.writer.flush(10)
    provider.shutdown()
    assert started == ["forward m"]


def test_processor_added_later() -> None:
    """A processor that is added after the first request sees the spans of the next one start."""
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    recorder = recorder_on(provider)
    found = []
    for _ in range(2):
        scope: Any = recorder.start(RequestStart("forward", None, ModelInfo("m", "huggingface", "M", {}), 0, False, {}), None)
        scope.detail(CASES["module of a plain forward"].records)
        scope.end(RequestEnd(1000, None, {}))
        assert recorder.writer.flush(10)
        found.append({"seen" in (span.attributes or {}) for span in exporter.get_finished_spans()})
        exporter.clear()

        class Late(SpanProcessor):
            def on_start(self, span: Any, parent_context: Any = None) -> None:
                span.set_attribute("seen", True)

        provider.add_span_processor(Late())
    assert found == [{False}, {True}]


def test_the_sampler_decides_about_the_request_only() -> None:
    """A sampler that changes its mind is asked once a request, so that no span is left without its parent."""

    class Fickle(StaticSampler):
        asked = 0

        def should_sample(self, *arguments: Any, **options: Any) -> Any:
            Fickle.asked += 1
            self._decision = Decision.DROP if Fickle.asked % 2 == 0 else Decision.RECORD_AND_SAMPLE
            return super().should_sample(*arguments, **options)

    provider, exporter = TracerProvider(shutdown_on_exit=False, sampler=Fickle(Decision.RECORD_AND_SAMPLE)), InMemorySpanExporter()
    provider.add_span_processor(_Baggage())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    recorder = recorder_on(provider)
    scope: Any = recorder.start(RequestStart("forward", None, ModelInfo("m", "huggingface", "M", {}), 0, False, {}), None)
    scope.detail(CASES["module of a plain forward"].records)
    scope.end(RequestEnd(1000, None, {}))
    assert recorder.writer.flush(10)
    provider.shutdown()
    assert Fickle.asked == 1
    spans = exporter.get_finished_spans()
    assert {span.parent.span_id for span in spans if span.parent} <= {span.context.span_id for span in spans if span.context}
