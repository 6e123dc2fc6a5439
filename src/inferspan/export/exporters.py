"""Exporters by name, and the guard around those for OTLP.

In come names chosen by ``variables``, out come exporters of the SDK whose requests stay below the receivers' limits and which work
again in a forked child. A package that is not installed raises ``ImportError``. Endpoint, headers and TLS are read by the exporters
themselves, from ``os.environ``.
"""

from __future__ import annotations

import functools
import gzip
import importlib
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from inferspan.export.variables import per_signal, positive_number, read, stays_here

__all__ = ["GuardedLogs", "GuardedMetrics", "GuardedSpans", "build_exporter", "open_exporter", "within_limit"]

_log = logging.getLogger("inferspan")

REQUEST_LIMIT = 3 * 1024 * 1024
"""Bytes of one request: receivers refuse more than 4 MiB over gRPC, 20 MiB over HTTP, and the estimate is not exact."""
METRIC_POINTS = 2000
"""Data points of one request; a histogram point with exemplars takes about 1 KiB."""

_PACKAGES = {"otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc", "otlp_proto_http": "opentelemetry-exporter-otlp-proto-http"}
_CLASSES = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}


def build_exporter(name: str, signal: str, environ: Mapping[str, str]) -> Any:
    """Make the exporter of an entry-point name; some of other packages are metric readers.

    Raises:
        ImportError: the package of the exporter is not installed.
    """
    if name not in _PACKAGES:
        found = next(iter(entry_points(group=f"opentelemetry_{signal}_exporter", name=name)))
        return found.load()()
    module, class_name = _CLASSES[signal]
    kind = name.removeprefix("otlp_proto_")
    try:
        exporter = getattr(importlib.import_module(f"opentelemetry.exporter.otlp.proto.{kind}.{module}"), class_name)
    except ImportError as error:
        raise ImportError(f"sending {signal} by OTLP/{kind} needs another package: pip install {_PACKAGES[name]} ({error})") from error
    arguments: dict[str, Any] = {"timeout": _timeout(environ, signal), "compression": _compression(environ, signal, kind)}
    if signal == "metrics":
        arguments["max_export_batch_size"] = METRIC_POINTS
    made = exporter(**arguments)
    _draw_apart()
    client: Any = getattr(made, "_client", None)
    if kind == "http" and arguments["compression"].value == "gzip" and hasattr(client, "_compress"):
        # The exporter compresses at level 9: five times the work of level 1 for a tenth less to send.
        client._compress = functools.partial(gzip.compress, compresslevel=1)
    return made


def _draw_apart() -> None:
    """Give the retries of the exporters' modules a generator of their own.

    They draw their jitter from the global ``random``: a collector that is down would change the results of a seeded program.
    """
    for name in ("opentelemetry.exporter.otlp.proto.grpc.exporter", "opentelemetry.exporter.otlp.common.http"):
        module: Any = sys.modules.get(name)
        if getattr(module, "random", None) is random:
            module.random = random.Random()


def _timeout(environ: Mapping[str, str], signal: str) -> float:
    # The specification counts milliseconds, the Python exporters seconds. Nobody means a quarter of an hour.
    value = positive_number(environ, 10.0, *per_signal(signal, "TIMEOUT"))
    return value / 1000 if value >= 1000 else value


def _compression(environ: Mapping[str, str], signal: str, kind: str) -> Any:
    found = read(environ, *per_signal(signal, "COMPRESSION"))
    # To a collector on the same machine it would take the processor's time and save nothing.
    word = found[1].lower() if found else "none" if stays_here(environ, signal) else "gzip"
    if found and word not in ("none", "gzip", "deflate"):
        _log.warning("%s=%s is ignored, gzip is used: it must be gzip, deflate or none", *found)
        word = "gzip"
    if kind == "grpc":
        from grpc import Compression as GrpcCompression  # type: ignore[import-untyped, unused-ignore]  # it publishes no types

        return {"none": GrpcCompression.NoCompression, "gzip": GrpcCompression.Gzip, "deflate": GrpcCompression.Deflate}[word]
    from opentelemetry.exporter.otlp.proto.http import Compression

    return Compression(word)


# -------------------------------------------------------------------------------------------------------- requests that fit
def _size(value: Any) -> int:
    """An upper bound for the bytes of an attribute value or a log body in protobuf, cheap to find."""
    kind = type(value)
    if kind is str:
        return len(value) + 6 if value.isascii() else 4 * len(value) + 6
    if kind is int or kind is float or kind is bool:
        return 14
    if isinstance(value, Mapping):
        return _mapping_size(value)
    if isinstance(value, list | tuple):
        if value and type(value[0]) in (int, float):
            return 14 * len(value) + 8
        return 12 + sum([_size(item) + 6 for item in value])
    return 4 * len(value) + 6 if isinstance(value, str | bytes) else 14


def _mapping_size(attributes: Mapping[str, Any]) -> int:
    size = 12
    for key, value in attributes.items():
        size += _size(key) + _size(value) + 8
    return size


def _span_size(span: Any) -> int:
    size = 150 + 4 * len(span.name) + _mapping_size(span.attributes or {})
    for event in span.events:
        size += 40 + 4 * len(event.name) + _mapping_size(event.attributes or {})
    for link in span.links:
        size += 60 + _mapping_size(link.attributes or {})
    return size


def _log_size(record: Any) -> int:
    return 150 + _size(record.log_record.body) + _mapping_size(record.log_record.attributes or {})


def within_limit(batch: Sequence[Any], size: Callable[[Any], int], limit: int = REQUEST_LIMIT) -> Iterator[Sequence[Any]]:
    """Cut a batch into parts whose sizes stay below ``limit`` bytes; an item that is too large alone is a part of its own."""
    start, total = 0, 0
    for index, item in enumerate(batch):
        more = size(item)
        if total + more > limit and index > start:
            yield batch[start:index]
            start, total = index, 0
        total += more
    if start < len(batch):
        yield batch[start:]


class _Renewing:
    """Makes an exporter now, and another one in a forked child, where the parent's connections must not be used."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._pid, self._exporter = os.getpid(), make()

    def __call__(self) -> Any:
        if self._pid != os.getpid():
            self._pid, self._exporter = os.getpid(), self._make()
        return self._exporter


class GuardedSpans(SpanExporter):
    """Sends spans in requests below the limit."""

    def __init__(self, make: Callable[[], Any], *, limit: int = REQUEST_LIMIT) -> None:
        self._inner, self._limit = _Renewing(make), limit

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        """Send all parts, also after one has failed."""
        results = [self._inner().export(part) for part in within_limit(spans, _span_size, self._limit)]
        return SpanExportResult.SUCCESS if all(item is SpanExportResult.SUCCESS for item in results) else SpanExportResult.FAILURE

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self) -> None:
        """Close the connection."""
        self._inner().shutdown()


class GuardedMetrics(MetricExporter):
    """Sends metrics; the exporter itself cuts the requests, by number of points."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._inner = _Renewing(make)
        exporter = self._inner()
        super().__init__(preferred_temporality=exporter._preferred_temporality, preferred_aggregation=exporter._preferred_aggregation)

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Send all points."""
        result: MetricExportResult = self._inner().export(metrics_data, timeout_millis=timeout_millis)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Close the connection."""
        self._inner().shutdown()


class GuardedLogs(LogRecordExporter):
    """Sends log records in requests below the limit."""

    def __init__(self, make: Callable[[], Any], *, limit: int = REQUEST_LIMIT) -> None:
        self._inner, self._limit = _Renewing(make), limit

    def export(self, batch: Sequence[Any]) -> LogRecordExportResult:
        """Send all parts, also after one has failed."""
        results = [self._inner().export(part) for part in within_limit(batch, _log_size, self._limit)]
        good = all(item is LogRecordExportResult.SUCCESS for item in results)
        return LogRecordExportResult.SUCCESS if good else LogRecordExportResult.FAILURE

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self) -> None:
        """Close the connection."""
        self._inner().shutdown()


_GUARDS: dict[str, Callable[[Callable[[], Any]], Any]] = {"traces": GuardedSpans, "metrics": GuardedMetrics, "logs": GuardedLogs}


def open_exporter(name: str, signal: str, environ: Mapping[str, str]) -> Any:
    """Make the exporter of an entry-point name, with the guard around it if it speaks OTLP.

    Raises:
        ImportError: the package of the exporter is not installed.
    """
    if name not in _PACKAGES:
        return build_exporter(name, signal, environ)
    return _GUARDS[signal](lambda: build_exporter(name, signal, environ))
