"""Ends of requests leave the model's thread: what can be relied on when a call returns, and what brings the rest out at once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch import nn

import inferspan
from inferspan import buffer, composition, semconv
from tests.cases import models

QUIET: dict[str, Any] = {"nvml": False, "host": False, "allocator": False}


class _Host:
    """A program's own providers, and an instrumented model."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(shutdown_on_exit=False), MeterProvider([self.reader], shutdown_on_exit=False)
        self.queue = BatchSpanProcessor(self.exporter)
        self.tracers.add_span_processor(self.queue)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.handle = inferspan.instrument(self.model, tracer_provider=self.tracers, meter_provider=self.meters, **QUIET)

    def request(self) -> None:
        with torch.no_grad():
            self.model(torch.ones(1, 4))

    def names(self) -> list[str]:
        self.queue.force_flush()  # of what it has got
        return [span.name for span in self.exporter.get_finished_spans() if span.name.startswith(semconv.SPAN_FORWARD)]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Nothing leaves by itself while a test runs."""
    monkeypatch.setattr(buffer, "LINGER", 3600.0)
    found = _Host()
    yield found
    found.handle.uninstrument()
    found.tracers.shutdown()
    composition.writer.soon(lambda: None)  # wakes the thread


ACTIONS: dict[str, Callable[[_Host], Any]] = {
    "inferspan.flush()": lambda host: inferspan.flush(),
    "handle.flush()": lambda host: host.handle.flush(),
    "force_flush() of the provider": lambda host: host.tracers.force_flush(),
    "shutdown() of the provider": lambda host: host.tracers.shutdown(),
    "uninstrument()": lambda host: host.handle.uninstrument(),
    "handle.summary()": lambda host: host.handle.summary(),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_what_brings_the_span_out_at_once(host: _Host, action: str) -> None:
    """The request has reached the exporter when the action returns, though the hand-over thread sleeps."""
    host.request()
    assert host.names() == []
    ACTIONS[action](host)
    assert host.names() == ["forward Sequential"]


def test_a_summary_counts_each_request_that_has_returned(host: _Host) -> None:
    """Without a flush, of plain passes and in totals."""
    for number in (1, 2, 3):
        host.request()
        assert host.handle.summary().forwards == number


def test_a_collection_counts_each_plain_pass_that_has_returned(host: _Host) -> None:
    """A reader that collects finds the request, though its span has not ended."""
    for number in (1, 2, 3):
        host.request()
        data = host.reader.get_metrics_data()
        points = [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == semconv.M_FORWARD_DURATION
            for point in metric.data.data_points
        ]
        assert [point.count for point in points] == [number]  # type: ignore[union-attr]  # of a histogram
    assert host.names() == []


def test_an_exemplar_has_the_time_of_its_request(host: _Host) -> None:
    """Not that of the collection which has recorded it."""
    host.request()
    host.reader.get_metrics_data()
    began = time.time_ns()
    host.request()
    returned = time.time_ns()
    time.sleep(0.05)
    data = host.reader.get_metrics_data()
    assert data is not None
    (point,) = (
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == semconv.M_FORWARD_DURATION
        for point in metric.data.data_points
    )
    exemplar = max(point.exemplars, key=lambda exemplar: exemplar.time_unix_nano)
    assert began <= exemplar.time_unix_nano <= returned
    host.tracers.force_flush()
    assert exemplar.span_id in {span.context.span_id for span in host.exporter.get_finished_spans() if span.context}


def test_the_span_comes_by_itself() -> None:
    """Without any of these, soon after the call has returned."""
    host = _Host()
    host.request()
    deadline = time.monotonic() + 30
    while not host.names() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert host.names() == ["forward Sequential"]
    host.handle.uninstrument()
    host.tracers.shutdown()


def test_parents_and_the_current_span(host: _Host) -> None:
    """Spans of the program inside and around a request have their places, whenever the request's own span ends."""
    tracer = host.tracers.get_tracer("program")
    inner: list[trace.Span] = []

    def inside(*_: Any) -> None:
        with tracer.start_as_current_span("inside") as span:
            inner.append(span)

    host.model[0].register_forward_hook(inside)
    with tracer.start_as_current_span("around") as around:
        host.request()
        assert trace.get_current_span() is around
    inferspan.flush()
    host.queue.force_flush()
    spans = {span.name: span for span in host.exporter.get_finished_spans()}
    request = spans["forward Sequential"]
    assert request.parent is not None and request.parent.span_id == around.get_span_context().span_id
    assert spans["inside"].parent is not None and request.context is not None
    assert spans["inside"].parent.span_id == request.context.span_id
    assert request.end_time is not None and request.end_time <= (spans["around"].end_time or 0)


def test_a_generation_in_another_one_ends_inside(host: _Host) -> None:
    """Requests inside of requests lie inside of them."""
    model = models.llama()
    handle = inferspan.instrument(model, tracer_provider=host.tracers, meter_provider=host.meters, **QUIET)
    with torch.no_grad():
        model.generate(models.prompt(1, 4), do_sample=False, max_new_tokens=3)
    handle.uninstrument()
    host.queue.force_flush()
    generation = next(span for span in host.exporter.get_finished_spans() if semconv.OPERATION_NAME in (span.attributes or {}))
    assert (generation.attributes or {})[semconv.OUTPUT_TOKENS] == 3


PROGRAM = """
    import os, sys, time
    import torch
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
    import inferspan
    from inferspan import buffer

    buffer.LINGER = 3600
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    provider = TracerProvider()
    processor = SimpleSpanProcessor if "signal" in sys.argv else BatchSpanProcessor
    provider.add_span_processor(processor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
    inferspan.instrument(model, tracer_provider=provider, nvml=False, host=False, allocator=False, modules="none")
    model(torch.ones(1, 4))
    if "signal" in sys.argv:
        os.kill(os.getpid(), 15)
        time.sleep(30)
    if "fork" in sys.argv:
        child = os.fork()
        if not child:
            model(torch.ones(1, 4))
            provider.force_flush()
            os._exit(0)
        os.waitpid(child, 0)
"""


@pytest.mark.parametrize(("ending", "expected"), [("return", 1), ("signal", 1), ("fork", 2)])
def test_ends_of_a_process(ending: str, expected: int, tmp_path: Path) -> None:
    """The span of a request that has just returned is not lost at the exit, on SIGTERM, nor in a child or by a fork."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run([sys.executable, str(program), ending], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.split("\n").count("forward Sequential") == expected, done.stderr
