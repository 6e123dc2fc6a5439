"""Providers of the program, with processors that queue: ``flush()`` and SIGTERM have them send, say how it went, and never close them."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import torch
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import inferspan
from inferspan import semconv

QUIET: dict[str, Any] = {"nvml": False, "host": False, "allocator": False, "modules": "none"}
HOUR_MS = 3_600_000
PRELUDE = """
import os, signal, sys, threading, time
import torch, inferspan
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
class Lines(SpanExporter):
    def export(self, spans):
        os.write(1, "".join(f'"{span.name}"\\n' for span in spans).encode())
        return SpanExportResult.SUCCESS
    def shutdown(self):
        os.write(1, b'"closed"\\n')
def provide(exporter):
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
    return provider
model = torch.nn.Linear(3, 4)
def instrument(**options):
    return inferspan.instrument(model, nvml=False, host=False, modules="none", **options)
"""
TERM = "\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(20)\n"
SET_UP = {
    "given": "instrument(tracer_provider=provide(Lines()))",
    "global": "trace.set_tracer_provider(provide(Lines()))\ninstrument()",
    "global, set later": "instrument()\ntrace.set_tracer_provider(provide(Lines()))",
}
posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="signals of POSIX")


def ending(path: Path, body: str) -> tuple[int, list[str]]:
    """Exit status of a program, and the lines that it printed."""
    (path / "program.py").write_text(PRELUDE + textwrap.dedent(body))
    source = os.pathsep.join([str(Path(inferspan.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = run(
        [sys.executable, "program.py"], env={**os.environ, "PYTHONPATH": source}, cwd=path, capture_output=True, timeout=60, check=False
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No provider of a test is flushed in a later one."""
    yield
    gc.collect()


@pytest.fixture
def model() -> torch.nn.Module:
    """A model that outlives its handle."""
    return torch.nn.Linear(3, 4)


@pytest.fixture
def queued() -> Iterator[tuple[TracerProvider, InMemorySpanExporter]]:
    """A provider whose processor sends once an hour, and what it has sent."""
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=HOUR_MS))
    yield provider, exporter
    provider.shutdown()


def test_flush_has_a_given_provider_send(queued: tuple[TracerProvider, InMemorySpanExporter], model: torch.nn.Module) -> None:
    """What its processor has queued is exported when ``flush()`` returns, which is true."""
    provider, exporter = queued
    with inferspan.instrument(model, tracer_provider=provider, **QUIET):
        model(torch.ones(2, 3))
        assert inferspan.flush(10)
        assert [span.name for span in exporter.get_finished_spans()] == ["forward Linear"]


def test_flush_reaches_a_provider_after_uninstrument(queued: tuple[TracerProvider, InMemorySpanExporter], model: torch.nn.Module) -> None:
    """Spans of a model that is not instrumented any more may still be queued."""
    provider, exporter = queued
    with inferspan.instrument(model, tracer_provider=provider, **QUIET):
        model(torch.ones(2, 3))
    assert inferspan.flush(10)
    assert len(exporter.get_finished_spans()) == 1


def test_flush_has_meter_and_logger_providers_send(model: torch.nn.Module) -> None:
    """Both get the time that is left, as milliseconds."""
    asked: list[tuple[str, float]] = []

    class Metrics(MeterProvider):
        def force_flush(self, timeout_millis: float = 10_000) -> bool:
            asked.append(("metrics", timeout_millis))
            return True

    class Logs:
        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            asked.append(("logs", timeout_millis))
            return True

    meters, logs = Metrics([InMemoryMetricReader()], shutdown_on_exit=False), Logs()
    with inferspan.instrument(model, meter_provider=meters, logger_provider=logs, **QUIET):
        assert inferspan.flush(5)
    assert sorted(name for name, _ in asked) == ["logs", "metrics"]
    assert all(1000 < limit <= 5000 for _, limit in asked)


class Answers(TracerProvider):
    """A provider whose ``force_flush`` does what a test wants."""

    def __init__(self, answer: Any) -> None:
        super().__init__(shutdown_on_exit=False)
        self.answer = answer

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing but the answer."""
        result: bool = self.answer()
        return result


class Kept(MetricExporter):
    """Keeps the names of the metrics that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **options: Any) -> MetricExportResult:
        """Sent."""
        scopes = [scope for resource in metrics_data.resource_metrics for scope in resource.scope_metrics]
        self.names |= {metric.name for scope in scopes for metric in scope.metrics}
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing waits here."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **options: Any) -> None:
        """Nothing is open."""


def _raise() -> bool:
    raise LookupError


@pytest.mark.parametrize(
    ("answer", "expected"), [(lambda: True, True), (lambda: None, True), (lambda: False, False), (_raise, False)], ids=["true", "none", "false", "raises"]
)
@pytest.mark.parametrize("by_handle", [False, True], ids=["function", "handle"])
def test_flush_says_what_a_provider_says(model: torch.nn.Module, contained: list[Any], answer: Any, expected: bool, by_handle: bool) -> None:
    """One that returns ``False`` or raises has not sent everything; nothing is raised."""
    provider = Answers(answer)
    with inferspan.instrument(model, tracer_provider=provider, **QUIET) as handle:
        assert (handle.flush if by_handle else inferspan.flush)(10) is expected
    assert [error.place for error in contained] == (["provider pipeline"] if answer is _raise else [])
    contained.clear()


def test_flush_does_not_wait_for_a_provider_that_blocks(queued: tuple[TracerProvider, InMemorySpanExporter], model: torch.nn.Module) -> None:
    """It returns ``False`` in time, and another provider has sent."""
    leave = threading.Event()
    blocking, (provider, exporter) = Answers(lambda: leave.wait(60)), queued
    other = torch.nn.Linear(3, 4)
    try:
        with (
            inferspan.instrument(model, tracer_provider=blocking, **QUIET),
            inferspan.instrument(other, tracer_provider=provider, **QUIET),
        ):
            other(torch.ones(2, 3))
            begun = time.monotonic()
            assert inferspan.flush(2) is False
            assert time.monotonic() - begun < 30
            assert len(exporter.get_finished_spans()) == 1
    finally:
        leave.set()


def test_a_provider_that_was_shut_down_does_not_count(queued: tuple[TracerProvider, InMemorySpanExporter], model: torch.nn.Module) -> None:
    """It refuses to flush, and has sent everything when it was closed."""
    provider, exporter = queued
    with inferspan.instrument(model, tracer_provider=provider, **QUIET):
        model(torch.ones(2, 3))
        provider.shutdown()
        assert len(exporter.get_finished_spans()) == 1
        assert inferspan.flush(10)


def test_a_provider_is_not_kept(model: torch.nn.Module) -> None:
    """Nothing is left of one that the program has forgotten, nor of its thread."""
    provider = TracerProvider(shutdown_on_exit=False)
    inferspan.instrument(model, tracer_provider=provider, **QUIET).uninstrument()
    seen = weakref.ref(provider)
    del provider
    gc.collect()
    assert seen() is None
    begun = time.monotonic()
    assert inferspan.flush(10)
    assert time.monotonic() - begun < 5


def test_a_reader_that_others_read_is_not_collected(model: torch.nn.Module) -> None:
    """Its values until then would be in no collection of the program's."""
    reader = InMemoryMetricReader(preferred_temporality={Histogram: AggregationTemporality.DELTA})
    with inferspan.instrument(model, meter_provider=MeterProvider([reader], shutdown_on_exit=False), **QUIET) as handle:
        model(torch.ones(2, 3))
        assert handle.flush(10)
        data: Any = reader.get_metrics_data()
    metrics = [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics]
    assert [point.count for metric in metrics if metric.name == semconv.M_FORWARD_DURATION for point in metric.data.data_points] == [1]


def test_a_reader_that_sends_is_flushed(model: torch.nn.Module) -> None:
    """As the batch processor of spans is."""
    exporter = Kept()
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=HOUR_MS)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    with inferspan.instrument(model, meter_provider=provider, **QUIET):
        model(torch.ones(2, 3))
        assert inferspan.flush(10)
        assert semconv.M_FORWARD_DURATION in exporter.names
    provider.shutdown()


def _threads() -> int:
    return sum(thread.name == "inferspan-provider" for thread in threading.enumerate())


def test_many_providers_share_a_few_threads(model: torch.nn.Module) -> None:
    """All are flushed, and the threads end with them."""
    asked: list[int] = []
    flushing = [Answers(lambda number=number: asked.append(number)) for number in range(40)]
    for provider in flushing:
        inferspan.instrument(model, tracer_provider=provider, **QUIET).uninstrument()
    assert 0 < _threads() <= 8
    assert inferspan.flush(10)
    assert {*range(40)} == {*asked}
    del provider, flushing[:]
    gc.collect()
    deadline = time.monotonic() + 20
    while _threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _threads() == 0


@posix
@pytest.mark.parametrize("set_up", SET_UP.values(), ids=SET_UP.keys())
def test_sigterm_has_the_provider_send(tmp_path: Path, set_up: str) -> None:
    """Requests that have returned are exported before the signal ends the process; nothing closes the provider."""
    assert ending(tmp_path, f"{set_up}\nmodel(torch.ones(2, 3))" + TERM) == (-signal.SIGTERM, ["forward Linear"])


@posix
@pytest.mark.parametrize("set_up", SET_UP.values(), ids=SET_UP.keys())
def test_flush_has_the_provider_send_before_os_exit(tmp_path: Path, set_up: str) -> None:
    """The advice of the documentation for ``os._exit()`` holds for providers of the program."""
    body = f"{set_up}\nmodel(torch.ones(2, 3))\ninferspan.flush()\nos._exit(3)"
    assert ending(tmp_path, body) == (3, ["forward Linear"])


@posix
def test_sigterm_does_not_wait_for_a_provider_that_blocks(tmp_path: Path) -> None:
    """The process ends within ``exit_timeout``."""
    body = """
    class Blocks(Lines):
        def export(self, spans):
            os.write(1, b'"begun"\\n')
            time.sleep(50)
    instrument(tracer_provider=provide(Blocks()), exit_timeout=1.0)
    model(torch.ones(2, 3))
    """
    assert ending(tmp_path, textwrap.dedent(body) + "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(20)\nos._exit(7)") == (-signal.SIGTERM, ["begun"])
