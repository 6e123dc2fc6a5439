"""Exporters that append OTLP JSON lines to a session file.

In come finished spans, metrics and log records; out goes one line for each batch, as ``json_lines`` encodes it. A path that cannot be
used raises ``SettingsError`` at once. A write that fails later, for example on a full disk, is an export that failed: it is logged once,
spans that are lost are counted in ``semconv.M_SPANS_DROPPED``, and the next batch is tried again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from opentelemetry import metrics
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from inferspan import guard, semconv
from inferspan.export.files.appending import SessionFile
from inferspan.export.files.json_lines import message_line, spans_line
from inferspan.version import version

__all__ = ["LogFileExporter", "MetricFileExporter", "SessionFile", "SpanFileExporter"]

LONGEST_LINE = 8 * 1024 * 1024
"""Characters; a longer batch is divided, because readers limit the length of a line. One record is never divided."""


class SpanFileExporter(SpanExporter):
    """Writes spans to a session file.

    Raises:
        SettingsError: the path cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = SessionFile(path)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append ``spans``, usually as one line."""
        lost = _append_batch(self._file, spans, spans_line)
        if lost:
            with guard.contain("session file"):
                _count_lost_spans(lost)
        return SpanExportResult.FAILURE if lost else SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()


class MetricFileExporter(MetricExporter):
    """Writes metrics to a session file; sums and histograms are cumulative.

    Raises:
        SettingsError: the path cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._file = SessionFile(path)

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Append one line with all of ``metrics_data``."""
        written = False
        with guard.contain("session file"):
            written = self._file.append(_metrics_line(metrics_data))
        return MetricExportResult.SUCCESS if written else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Close the file."""
        self._file.close()


class LogFileExporter(LogRecordExporter):
    """Writes log records to a session file.

    Raises:
        SettingsError: the path cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = SessionFile(path)

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Append ``batch``, usually as one line."""
        lost = _append_batch(self._file, batch, _logs_line)
        return LogRecordExportResult.FAILURE if lost else LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()


def _metrics_line(data: MetricsData) -> str:
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

    return message_line(encode_metrics(data))


def _logs_line(batch: Sequence[ReadableLogRecord]) -> str:
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs

    return message_line(encode_logs(batch))


def _append_batch(file: SessionFile, batch: Sequence[Any], encode: Callable[[Sequence[Any]], str]) -> int:
    """Append a batch; the number of its records that could not be encoded or written."""
    lost = 0
    for part, line in _lines(batch, encode):
        if line is None or not file.append(line, len(part)):
            lost += len(part)
    return lost


def _lines(batch: Sequence[Any], encode: Callable[[Sequence[Any]], str]) -> Iterator[tuple[Sequence[Any], str | None]]:
    """The parts of a batch with their lines; ``None`` where a part cannot be encoded."""
    line = None
    with guard.contain("session file"):
        line = encode(batch)
    if line is None or len(line) <= LONGEST_LINE or len(batch) == 1:
        yield batch, line
        return
    middle = len(batch) // 2
    yield from _lines(batch[:middle], encode)
    yield from _lines(batch[middle:], encode)


def _count_lost_spans(number: int) -> None:
    metric = semconv.METRICS[semconv.M_SPANS_DROPPED]
    counter = metrics.get_meter(semconv.SCOPE, version()).create_counter(metric.name, metric.unit, metric.brief)
    counter.add(number, {semconv.DROP_REASON: "session_file"})
