"""Session files of small programs: a model that is instrumented with providers of its own, whose exporters write to one file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import inferspan
from inferspan.explain.explanation import Explanation
from inferspan.export.files.session_file import MetricFileExporter, SpanFileExporter
from inferspan.export.files.system_record import record_system
from inferspan.report.figures.explained import explanation_of
from inferspan.report.session import read_session
from inferspan.settings import Settings

__all__ = ["explained", "providers", "recorded"]

NEVER = 1e9


@contextmanager
def providers(path: Path, **settings: Any) -> Iterator[tuple[TracerProvider, MeterProvider, Any]]:
    """Providers that write to a file, and the reader that collects metrics when it is told to; the file begins with these settings."""
    tracers, reader = TracerProvider(shutdown_on_exit=False), PeriodicExportingMetricReader(MetricFileExporter(path), NEVER)
    tracers.add_span_processor(BatchSpanProcessor(SpanFileExporter(path)))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    record_system(Settings.resolve({**settings, "session_file": str(path)}, environ={}), tracers)
    try:
        yield tracers, meters, reader
    finally:
        tracers.shutdown()
        meters.shutdown()


@contextmanager
def recorded(path: Path, *models: Any, **settings: Any) -> Iterator[list[inferspan.Handle]]:
    """Record models to a file; readings of the machine are off, because this machine has other work."""
    settings = {"nvml": False, "host": False, "allocator": False, **settings}
    with providers(path, **settings) as (tracers, meters, _):
        handles = [inferspan.instrument(model, tracer_provider=tracers, meter_provider=meters, **settings) for model in models]
        try:
            yield handles
        finally:
            for handle in handles:
                handle.flush()
                handle.uninstrument()


def explained(path: Path) -> Explanation:
    """The explanation of a file."""
    return explanation_of(read_session(path))
