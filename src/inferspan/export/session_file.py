"""Exporters that write OTLP JSON lines to a file, in the format of the collector's file exporter.

In come finished spans, metrics and log records, out goes one compact JSON object a line: ``{"resourceSpans":[...]}``,
``{"resourceMetrics":[...]}`` or ``{"resourceLogs":[...]}``, with hex ids, 64-bit integers as strings and enums as integers. A line is
appended by one write, so several processes can share a file. A path that cannot be written raises ``SettingsError`` at once; a
disk that fills up later is an export that failed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from inferspan.export.json_lines import message_line, spans_line
from inferspan.settings import SettingsError

__all__ = ["LogFileExporter", "MetricFileExporter", "SessionFile", "SpanFileExporter"]


class SessionFile:
    """A file that lines are appended to, each by one write.

    Raises:
        SettingsError: the path cannot be opened for writing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file: int | None = None
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise SettingsError(
                f"inferspan setting 'session_file' cannot be {os.fspath(path)!r}: {error.strerror or error}; use the path of a file"
                " that can be written, in a directory that exists"
            ) from None

    def append(self, line: str) -> bool:
        """Write one line; says whether all of it was written."""
        if self._file is None:
            return False
        data = line.encode("utf-8") + b"\n"
        try:
            while data:  # a short write happens when the disk is full, and then the next one fails
                data = data[os.write(self._file, data) :]
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the file; may be called twice."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class SpanFileExporter(SpanExporter):
    """Writes spans to a session file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = SessionFile(path)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append one line with all ``spans``."""
        return SpanExportResult.SUCCESS if self._file.append(spans_line(spans)) else SpanExportResult.FAILURE

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()


class MetricFileExporter(MetricExporter):
    """Writes metrics to a session file; sums and histograms are cumulative."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._file = SessionFile(path)

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Append one line with all of ``metrics_data``."""
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

        written = self._file.append(message_line(encode_metrics(metrics_data)))
        return MetricExportResult.SUCCESS if written else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Close the file."""
        self._file.close()


class LogFileExporter(LogRecordExporter):
    """Writes log records to a session file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = SessionFile(path)

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Append one line with all of ``batch``."""
        from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs

        written = self._file.append(message_line(encode_logs(batch)))
        return LogRecordExportResult.SUCCESS if written else LogRecordExportResult.FAILURE

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()
