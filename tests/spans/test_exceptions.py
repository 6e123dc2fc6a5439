"""The exception of a failed request: as a log event, as an event on its span, or both."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry._logs import NoOpLoggerProvider, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import StatusCode

import inferspan
from tests.cases.models import llama, prompt

pytestmark = pytest.mark.usefixtures("one_thread")

VARIABLE = "OTEL_SEMCONV_EXCEPTION_SIGNAL_OPT_IN"
EVENT = "gen_ai.client.inference.exception"


class _Signals:
    """Spans and log records in memory."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.spans, self._logs = InMemorySpanExporter(), InMemoryLogRecordExporter()
        self.tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.loggers: Any = LoggerProvider(shutdown_on_exit=False)
        self.loggers.add_log_record_processor(SimpleLogRecordProcessor(self._logs))

    def instrument(self, model: Any, **settings: Any) -> inferspan.Handle:
        fixed: Any = {"nvml": False, "host": False, "allocator": False, "modules": "none", "steps": "none"}
        return inferspan.instrument(model, tracer_provider=self.tracers, logger_provider=self.loggers, **{**fixed, **settings})

    def request(self) -> Any:
        (span,) = (span for span in self.spans.get_finished_spans() if span.parent is None)
        return span

    def on_span(self) -> list[str]:
        return [event.name for event in self.request().events]

    def records(self) -> list[Any]:
        return [log.log_record for log in self._logs.get_finished_logs()]


def _raise(input_ids: Any, scores: Any) -> Any:
    raise ValueError("no more")


def _fail(signals: _Signals, **settings: Any) -> None:
    model = llama()
    with signals.instrument(model, **settings), pytest.raises(ValueError, match="no more"):
        model.generate(prompt(1, 4), max_new_tokens=2, do_sample=False, logits_processor=[_raise])


def test_a_failed_request_sends_a_log_event_and_keeps_the_span_event() -> None:
    """By default both are there: logs for those who look there, the span event for stores of traces that show it."""
    signals = _Signals()
    _fail(signals)
    (record,) = signals.records()
    assert record.event_name == EVENT
    assert record.severity_number is SeverityNumber.WARN
    assert record.attributes["exception.type"] == "ValueError"
    assert record.attributes["exception.message"] == "no more"
    assert "_raise" in record.attributes["exception.stacktrace"]
    assert signals.on_span() == ["exception"]
    assert dict(signals.request().events[0].attributes) == dict(record.attributes)


def test_the_log_event_is_in_the_context_of_the_span() -> None:
    """The record names the trace and the span of the request, and its time is the end of it."""
    signals = _Signals()
    _fail(signals)
    (record,) = signals.records()
    span = signals.request()
    assert (record.trace_id, record.span_id) == (span.context.trace_id, span.context.span_id)
    assert record.timestamp == span.end_time


@pytest.mark.parametrize(("value", "on_span"), [("logs", []), ("logs/dup", ["exception"]), ("LOGS", [])])
def test_the_standard_variable_chooses_the_signal(value: str, on_span: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``logs`` ends the event on the span, ``logs/dup`` is the default spelled out; the status says in each case that it failed."""
    monkeypatch.setenv(VARIABLE, value)
    signals = _Signals()
    _fail(signals)
    assert [record.event_name for record in signals.records()] == [EVENT]
    assert signals.on_span() == on_span
    assert signals.request().status.status_code is StatusCode.ERROR
    assert signals.request().attributes["error.type"] == "ValueError"


def test_an_unknown_value_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An unknown value of the variable is named in one line and the default counts."""
    monkeypatch.setenv(VARIABLE, "spans")
    signals = _Signals()
    with caplog.at_level(logging.WARNING, "inferspan"):
        _fail(signals)
    assert [line for line in caplog.messages if line.startswith(f"{VARIABLE}=spans is ignored")] != []
    assert signals.on_span() == ["exception"]
    assert len(signals.records()) == 1


@pytest.mark.parametrize("provider", ["none", "no-op", "without a processor"])
def test_without_a_logger_provider_the_span_event_stays(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody takes log records, the exception stays on the span, whatever was asked for."""
    # Another test may have set one for the process.
    monkeypatch.setattr("opentelemetry._logs._internal._LOGGER_PROVIDER", None)
    signals = _Signals()
    signals.loggers = {"none": None, "no-op": NoOpLoggerProvider(), "without a processor": LoggerProvider(shutdown_on_exit=False)}[provider]
    _fail(signals, exception_signal="logs")
    assert signals.on_span() == ["exception"]
    assert signals.records() == []


def test_a_provider_that_fails_leaves_the_span_event(contained: list[Any]) -> None:
    """A log pipeline that raises costs the log record only: the exception is on the span then."""

    class Broken:
        def get_logger(self, *args: Any, **kwargs: Any) -> Any:
            raise OSError("no logs")

    signals = _Signals()
    signals.loggers = Broken()
    _fail(signals, exception_signal="logs")
    assert signals.on_span() == ["exception"]
    assert {error.place for error in contained} == {"exception event"}
    contained.clear()


def test_a_request_that_is_not_sampled_sends_the_log_event() -> None:
    """The log event belongs to the failure, not to the span, which may not be recorded."""
    signals = _Signals(ALWAYS_OFF)
    _fail(signals)
    assert [record.event_name for record in signals.records()] == [EVENT]


def test_successful_requests_and_plain_forwards_send_none() -> None:
    """The event is of failed inferences; a plain forward is none, and keeps its exception on the span."""
    signals, model = _Signals(), llama()
    with signals.instrument(model, exception_signal="logs"):
        model.generate(prompt(1, 4), max_new_tokens=2, do_sample=False)
        with pytest.raises(TypeError):
            model("no tensor")
    assert signals.records() == []
    events = [event.name for span in signals.spans.get_finished_spans() for event in span.events]
    assert events == ["exception"]


def test_inside_another_librarys_call_the_exception_is_that_librarys() -> None:
    """A gen_ai span of another library sends its own event, so ours keeps the exception on its span."""
    signals = _Signals()
    token = otel_context.attach(otel_context.set_value("opentelemetry.genai.client.inference.context", object()))
    try:
        _fail(signals, exception_signal="logs")
    finally:
        otel_context.detach(token)
    assert signals.records() == []
    assert signals.on_span() == ["exception"]
