"""Spans of providers that allow few attributes: what says most is kept, the rest is counted, and the SDK has nothing to log."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import inferspan

PROCESSORS = [BatchSpanProcessor, SimpleSpanProcessor]


class Fails(torch.nn.Linear):
    """A layer that fails with three rows."""

    def forward(self, x: Any) -> Any:
        if len(x) == 3:
            raise ValueError("three")
        return super().forward(x)


def spans(processor: Any, limits: SpanLimits) -> list[ReadableSpan]:
    """Those of a call that succeeds and one that fails, in a stage."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(span_limits=limits, shutdown_on_exit=False)
    provider.add_span_processor(processor(memory))
    model = torch.nn.Sequential(Fails(3, 4), torch.nn.Tanh())
    with inferspan.instrument(model, nvml=False, host=False, tracer_provider=provider), inferspan.stage("load", a=1, b=2, c=3):
        model(torch.ones(2, 3))
        with pytest.raises(ValueError, match="three"):
            model(torch.ones(3, 3))
    provider.force_flush()
    provider.shutdown()
    return sorted(memory.get_finished_spans(), key=lambda span: (span.start_time or 0, span.name))


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("most", [0, 1, 4, 8, 12])
def test_few_attributes(processor: Any, most: int, caplog: pytest.LogCaptureFixture) -> None:
    """No span has more, what is missing is counted, and no line of the SDK comes of it."""
    whole = spans(processor, SpanLimits())
    with caplog.at_level(logging.WARNING):
        few = spans(processor, SpanLimits(max_span_attributes=most))
    assert [record.message for record in caplog.records if record.name.startswith("opentelemetry")] == []
    assert [len(span.attributes or ()) for span in few] == [min(most, len(span.attributes or ())) for span in whole]
    assert [span.dropped_attributes for span in few] == [max(0, len(span.attributes or ()) - most) for span in whole]


def test_error_is_kept_where_there_is_room() -> None:
    """The attributes that the request began with, and that it has failed, come before others of its end."""
    (failed,) = [span for span in spans(BatchSpanProcessor, SpanLimits(max_span_attributes=10)) if span.events]
    assert (failed.attributes or {})["error.type"] == "ValueError"


@pytest.mark.parametrize("processor", PROCESSORS)
def test_few_attributes_of_events(processor: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An exception keeps its type and message, and what it loses is counted."""
    with caplog.at_level(logging.WARNING):
        (failed,) = [span for span in spans(processor, SpanLimits(max_event_attributes=2)) if span.events]
    assert [record.message for record in caplog.records if record.name.startswith("opentelemetry")] == []
    assert list(failed.events[0].attributes or ()) == ["exception.type", "exception.message"]
    assert failed.events[0].dropped_attributes == 1
