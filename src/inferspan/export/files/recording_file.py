"""Providers that write everything to one session file and are nobody's global ones: for tests of programs.

In comes a path; out come a tracer provider and a meter provider, and a way to write what they have got so far. Spans are written in
batches on the thread that ends them, which is not the model's. A path that cannot be written raises ``SettingsError``.
"""

from __future__ import annotations

import os
import threading

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from inferspan.export.files.session_file import MetricFileExporter, SpanFileExporter
from inferspan.export.resource import detected_resource

__all__ = ["FileProviders"]

_BATCH = 512
_SELDOM = 3_600_000
"""Milliseconds between two exports of metrics: the flush and the end write them."""


class _Batches(SpanProcessor):
    def __init__(self, exporter: SpanFileExporter) -> None:
        self._exporter = exporter
        self._waiting: list[ReadableSpan] = []
        self._lock = threading.Lock()

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            self._waiting.append(span)
            if len(self._waiting) < _BATCH:
                return
            spans, self._waiting = self._waiting, []
        self._exporter.export(spans)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        with self._lock:
            spans, self._waiting = self._waiting, []
        if spans:
            self._exporter.export(spans)
        return True

    def shutdown(self) -> None:
        self.force_flush()
        self._exporter.shutdown()


class FileProviders:
    """A tracer provider and a meter provider over one session file.

    Args:
        path: file to append to.

    Raises:
        SettingsError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        resource = detected_resource()
        self.tracer = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self.tracer.add_span_processor(_Batches(SpanFileExporter(path)))
        reader = PeriodicExportingMetricReader(MetricFileExporter(path), export_interval_millis=_SELDOM)
        self.meter = MeterProvider([reader], resource=resource, shutdown_on_exit=False)

    def flush(self) -> None:
        """Write everything that has ended."""
        self.tracer.force_flush()
        self.meter.force_flush()

    def close(self) -> None:
        """Write the rest and close the file."""
        self.tracer.shutdown()
        self.meter.shutdown()
