"""Ends of requests off the model's thread, under providers, processors and processes of all kinds."""

from __future__ import annotations

import contextvars
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn

import inferspan
from inferspan import buffer, composition
from inferspan.spans import live

QUIET: dict[str, Any] = {"nvml": False, "host": False, "allocator": False}
PATIENCE = 60.0
caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")


class _Program:
    """A program that has added one processor to its own provider."""

    def __init__(self, processor: SpanProcessor, *, modules: str = "none", given: Any = None, layers: int = 1) -> None:
        self.tracers, self.reader = TracerProvider(shutdown_on_exit=False), InMemoryMetricReader()
        self.tracers.add_span_processor(processor)
        self.model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
        provider = self.tracers if given is None else given(self.tracers)
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.handle = inferspan.instrument(self.model, tracer_provider=provider, meter_provider=meters, modules=modules, **QUIET)

    def request(self) -> None:
        with torch.no_grad():
            self.model(torch.ones(1, 4))


class _Ends(SpanProcessor):
    """Notes what it sees as spans end, and does what a test wants then."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.callers: list[str] = []
        self.arrived, self.leave = threading.Event(), threading.Event()
        self.blocks = False

    def on_end(self, span: ReadableSpan) -> None:
        if self.blocks and threading.current_thread() is not threading.main_thread():
            self.arrived.set()
            self.leave.wait(PATIENCE)
        self.callers.append(caller.get())
        self.names.append(span.name)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True  # the base class of older SDKs says that it has failed


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hand-over thread does nothing by itself."""
    monkeypatch.setattr(buffer, "LINGER", 3600.0)
    yield
    composition.writer.soon(lambda: None)  # wakes the thread


class _Delegating(trace.TracerProvider):
    """A provider that stands before one of the SDK."""

    def __init__(self, inner: TracerProvider) -> None:
        self.inner = inner

    def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
        return self.inner.get_tracer(*args, **kwargs)

    def force_flush(self) -> bool:
        return self.inner.force_flush()


@pytest.mark.usefixtures("asleep")
def test_a_processor_that_assembles_traces_gets_a_request_before_the_span_around_it() -> None:
    """It ends on the thread of the call."""
    ends = _Ends()
    program = _Program(ends)
    with program.tracers.get_tracer("program").start_as_current_span("around"):
        program.request()
    assert ends.names == ["forward Sequential", "around"]
    program.handle.uninstrument()


@pytest.mark.usefixtures("asleep")
def test_a_request_in_a_span_of_the_program_waits_where_spans_are_only_queued() -> None:
    """The SDK's batch processor sends them later anyway."""
    exporter = InMemorySpanExporter()
    queue = BatchSpanProcessor(exporter)
    program = _Program(queue)
    with program.tracers.get_tracer("program").start_as_current_span("around"):
        program.request()
        queue.force_flush()
        assert exporter.get_finished_spans() == ()
    program.handle.uninstrument()
    program.tracers.shutdown()


@pytest.mark.usefixtures("asleep")
def test_processors_that_act_see_a_request_at_once_and_in_its_context() -> None:
    """Who exports as spans end, or reads variables of the program then, does so before the call returns."""
    ends = _Ends()
    program = _Program(ends)
    token = caller.set("a tenant")
    program.request()
    caller.reset(token)
    assert ends.callers == ["a tenant"]
    program.handle.uninstrument()


@pytest.mark.usefixtures("asleep")
def test_a_provider_before_that_of_the_sdk_flushes_requests() -> None:
    """Its tracers are the SDK's, its flush is not."""
    exporter = InMemorySpanExporter()
    program = _Program(BatchSpanProcessor(exporter), given=_Delegating)
    program.request()
    _Delegating(program.tracers).force_flush()
    assert [span.name for span in exporter.get_finished_spans()] == ["forward Sequential"]
    program.handle.uninstrument()
    program.tracers.shutdown()


@pytest.mark.usefixtures("asleep")
def test_a_flush_that_was_kept_before_the_first_request() -> None:
    """A program may have handed the method to its framework."""
    exporter = InMemorySpanExporter()
    program = _Program(BatchSpanProcessor(exporter))
    kept = program.handle.uninstrument, program.tracers.force_flush
    program.request()
    kept[1]()
    assert [span.name for span in exporter.get_finished_spans()] == ["forward Sequential"]
    kept[0]()
    program.tracers.shutdown()


def test_a_processor_that_blocks_hides_no_request_from_the_summary() -> None:
    """A flush says that it has not sent all, in the time that the program gives it."""
    ends = _Ends()
    ends.blocks = True
    program = _Program(ends, modules="all", layers=20)  # more than are handed over in the call
    program.request()
    assert ends.arrived.wait(PATIENCE)
    program.request()
    assert program.handle.summary().forwards == 2
    began = time.monotonic()
    assert program.tracers.force_flush(10) is False
    assert time.monotonic() - began < composition.HAND_OVER
    ends.leave.set()
    assert program.tracers.force_flush() is True
    assert ends.names.count("forward Sequential") == 2
    program.handle.uninstrument()


def test_a_request_ends_while_much_detail_is_handed_over() -> None:
    """Ends come between the parts of the detail of an earlier request."""
    exporter = InMemorySpanExporter()
    queue = BatchSpanProcessor(exporter, max_queue_size=100_000, max_export_batch_size=32)
    program, other = _Program(queue, modules="all", layers=3000), _Program(queue)
    program.request()
    deadline = time.monotonic() + PATIENCE
    while len(exporter.get_finished_spans()) < 100 and time.monotonic() < deadline:
        time.sleep(0.001)
    other.request()
    program.handle.uninstrument()
    program.tracers.force_flush()
    names = [span.name for span in exporter.get_finished_spans()]
    first, second = (place for place, name in enumerate(names) if name == "forward Sequential")
    assert first < second < len(names) - 1000
    other.handle.uninstrument()
    for ended in (program, other):
        ended.tracers.shutdown()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_gets_no_lock_that_the_hand_over_thread_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork waits for the exporter that is at work on our thread."""
    monkeypatch.setattr(live, "FEW_SPANS", 0)  # all detail is handed over later

    class Slow(InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            with self._lock:
                if threading.current_thread() is not threading.main_thread():
                    inside.set()
                time.sleep(0.05)
            return super().export(spans)

    inside, exporter = threading.Event(), Slow()
    program = _Program(SimpleSpanProcessor(exporter), modules="all")
    program.request()
    assert inside.wait(PATIENCE)
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends a child that hangs
        exporter.clear()
        program.request()
        program.tracers.force_flush()
        os._exit(len(exporter.get_finished_spans()))
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 2
    program.tracers.force_flush()
    assert len(exporter.get_finished_spans()) == 2
    program.handle.uninstrument()
