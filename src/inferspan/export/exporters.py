"""Exporters by name, and the guard around each.

In come names chosen by ``variables``, out come exporters of the SDK whose requests stay below the receivers' limits, which work again
in a forked child, and whose failures are counted and logged by a ``Delivery``. A package that is not installed raises ``ImportError``.
Endpoint, headers and TLS are read by the exporters themselves, from ``os.environ``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import importlib
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricReader, MetricsData
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from inferspan.export import older_exporters
from inferspan.export.client.answers import LONGEST_BODY, taken_over_http
from inferspan.export.delivery import Delivery, destination_of, own_lines_only, tell_attempt, tell_taken
from inferspan.export.sdk_variables import hidden
from inferspan.export.variables import per_signal, positive_number, read, stays_here
from inferspan.setting_checks import shown, warn_once

__all__ = ["GuardedLogs", "GuardedMetrics", "GuardedSpans", "build_exporter", "guarded_exporter", "open_exporter", "within_limit"]

LONGEST_TIMEOUT = 86_400_000.0
"""Milliseconds."""
SHORTEST_TIMEOUT = 0.01
"""Seconds; nothing is answered in less."""

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
    cuts = "max_export_batch_size" in inspect.signature(exporter).parameters
    if signal == "metrics" and cuts:
        arguments["max_export_batch_size"] = METRIC_POINTS
    with hidden(), own_lines_only() as lines:
        made = exporter(**arguments)
    _warn_of_lines(environ, signal, lines)
    _draw_apart()
    older_exporters.adapt(made, kind, signal)
    if signal == "metrics" and not cuts:
        made.export = older_exporters.in_parts(made.export, METRIC_POINTS)
    client: Any = getattr(made, "_client", None)
    if kind == "http" and arguments["compression"].value == "gzip" and hasattr(client, "_compress"):
        # The exporter compresses at level 9: five times the work of level 1 for a tenth less to send.
        client._compress = functools.partial(gzip.compress, compresslevel=1)
    if kind == "http" and hasattr(client, "export"):
        client.export = _telling(client.export)
        _hear_answers(client, signal)
    return made


def _hear_answers(client: Any, signal: str) -> None:
    """Tell what the bodies of successes say: the client looks at the status only."""
    transport: Any = getattr(client, "_transport", None)
    request = getattr(transport, "request", None)
    if request is None:
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        result = request(*args, **kwargs)
        with contextlib.suppress(Exception):  # of a body that is broken off: the status counts then
            if result.status_code is not None and 200 <= result.status_code < 300:
                tell_taken(taken_over_http(signal, result.headers().get("Content-Type") or "", result.content()[:LONGEST_BODY]))
        return result

    transport.request = call


def _telling(export: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """The client's ``export`` that tells status and error of a failure: its log line has neither if there was no time to try again."""

    def call(data: bytes) -> Any:
        result = export(data)
        status, error = getattr(result, "status_code", None), getattr(result, "error", None)
        if getattr(result, "success", False) and status is not None and status >= 300:
            # It follows no redirection, and takes one for a success.
            result = dataclasses.replace(result, success=False)
        if not getattr(result, "success", True):
            tell_attempt(f"code: {status}" if status is not None else repr(error))
        return result

    return call


def _warn_of_lines(environ: Mapping[str, str], signal: str, lines: Sequence[str]) -> None:
    """Replace the warnings that an exporter logs while it is built: its lines contain headers, and these hold tokens."""
    if any("eader format" in line for line in lines):
        name, _ = read(environ, *per_signal(signal, "HEADERS")) or (per_signal(signal, "HEADERS")[1], "")
        warn_once("%s: entries that are not name=value, separated by commas, are ignored", name)
    for ending in ("TEMPORALITY_PREFERENCE", "DEFAULT_HISTOGRAM_AGGREGATION"):
        name = f"OTEL_EXPORTER_OTLP_METRICS_{ending}"
        if any(name in line for line in lines):
            warn_once("%s=%s is ignored: it is not one of the specification's", name, shown(environ.get(name, "")))


def _draw_apart() -> None:
    """Give the retries of the exporters' modules a generator of their own.

    They draw their jitter from the global ``random``: a collector that is down would change the results of a seeded program.
    """
    newest = "opentelemetry.exporter.otlp.proto.grpc.exporter", "opentelemetry.exporter.otlp.common.http"
    for name in newest + older_exporters.MODULES_OF_RETRIES:
        module: Any = sys.modules.get(name)
        if getattr(module, "random", None) is random:
            module.random = random.Random()


def _timeout(environ: Mapping[str, str], signal: str) -> float:
    # The specification counts milliseconds, the Python exporters seconds. Nobody means a quarter of an hour.
    value = positive_number(environ, 10.0, *per_signal(signal, "TIMEOUT"), most=LONGEST_TIMEOUT, least=SHORTEST_TIMEOUT)
    return value / 1000 if value >= 1000 else value


def _compression(environ: Mapping[str, str], signal: str, kind: str) -> Any:
    found = read(environ, *per_signal(signal, "COMPRESSION"))
    # To a collector on the same machine it would take the processor's time and save nothing.
    word = found[1].lower() if found else "none" if stays_here(environ, signal) else "gzip"
    if found and word not in ("none", "gzip", "deflate"):
        warn_once("%s=%s is ignored, gzip is used: it must be gzip, deflate or none", found[0], shown(found[1]))
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
    for index, item in enumerate(batch if limit < sys.maxsize else ()):
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

    def __init__(self, make: Callable[[], Any], *, limit: int = REQUEST_LIMIT, delivery: Delivery | None = None) -> None:
        self._inner, self._limit, self._delivery = _Renewing(make), limit, delivery or Delivery("traces")

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        """Send all parts, also after one has failed."""
        sent = self._delivery.attempt_all(self._send, within_limit(spans, _span_size, self._limit))
        return SpanExportResult.SUCCESS if sent else SpanExportResult.FAILURE

    def _send(self, spans: Sequence[Any]) -> bool:
        return self._inner().export(spans) is SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self) -> None:
        """Close the connection."""
        with own_lines_only():
            self._inner().shutdown()


class GuardedMetrics(MetricExporter):
    """Sends metrics; the exporter itself cuts the requests, by number of points (``METRIC_POINTS``)."""

    def __init__(self, make: Callable[[], Any], *, delivery: Delivery | None = None) -> None:
        self._inner, self._delivery = _Renewing(make), delivery or Delivery("metrics")
        exporter = self._inner()
        super().__init__(preferred_temporality=exporter._preferred_temporality, preferred_aggregation=exporter._preferred_aggregation)

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Send all points."""
        count = sum(len(scope.metrics) for resource in metrics_data.resource_metrics for scope in resource.scope_metrics)
        sent = self._delivery.attempt(
            lambda: self._inner().export(metrics_data, timeout_millis=timeout_millis) is MetricExportResult.SUCCESS, count
        )
        return MetricExportResult.SUCCESS if sent else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Close the connection."""
        with own_lines_only():
            self._inner().shutdown()


class GuardedLogs(LogRecordExporter):
    """Sends log records in requests below the limit."""

    def __init__(self, make: Callable[[], Any], *, limit: int = REQUEST_LIMIT, delivery: Delivery | None = None) -> None:
        self._inner, self._limit, self._delivery = _Renewing(make), limit, delivery or Delivery("logs")

    def export(self, batch: Sequence[Any]) -> LogRecordExportResult:
        """Send all parts, also after one has failed."""
        sent = self._delivery.attempt_all(self._send, within_limit(batch, _log_size, self._limit))
        return LogRecordExportResult.SUCCESS if sent else LogRecordExportResult.FAILURE

    def _send(self, batch: Sequence[Any]) -> bool:
        return self._inner().export(batch) is LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self) -> None:
        """Close the connection."""
        with own_lines_only():
            self._inner().shutdown()


def guarded_exporter(signal: str, make: Callable[[], Any], delivery: Delivery, *, limit: int = REQUEST_LIMIT) -> Any:
    """The guard of a signal around an exporter.

    Args:
        signal: ``traces``, ``metrics`` or ``logs``.
        make: makes the exporter; called again in a forked child.
        delivery: records the outcome of each request.
        limit: bytes of one request of spans or log records.
    """
    if signal == "metrics":
        return GuardedMetrics(make, delivery=delivery)
    return (GuardedSpans if signal == "traces" else GuardedLogs)(make, limit=limit, delivery=delivery)


def open_exporter(name: str, signal: str, environ: Mapping[str, str]) -> tuple[Any, Delivery]:
    """Make the exporter of an entry-point name, with the guard around it; some of other packages are metric readers, which get none.

    Returns:
        The exporter and the record of its deliveries.

    Raises:
        ImportError: the package of the exporter is not installed.
    """
    delivery = Delivery(signal, destination_of(name, signal, environ))
    if name in _PACKAGES:
        return guarded_exporter(signal, lambda: build_exporter(name, signal, environ), delivery), delivery
    made = build_exporter(name, signal, environ)
    if isinstance(made, MetricReader):
        return made, delivery
    return guarded_exporter(signal, lambda: made, delivery, limit=sys.maxsize), delivery
