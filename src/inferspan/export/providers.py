"""Providers of our own: made, extended, remembered, and closed under one deadline.

In come exporters and a resource, out come global providers whose batch processors and readers are pipelines of ``SETUP``. Wrong
values in the environment are warnings and defaults. Providers of the host are never replaced or closed; a session file that was asked
for by name is added to them through their public methods.
"""

from __future__ import annotations

import atexit
import dataclasses
import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from inferspan.export import variables
from inferspan.export.shutdown import Pipeline, Pipelines

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.id_generator import IdGenerator

__all__ = ["INSTALL", "SETUP", "Setup", "current_provider", "extend", "file_exporter", "host_has_none", "take_over"]

_log = logging.getLogger("inferspan")

QUEUE_SIZE = 16384
BATCH_SIZE = 2048
METRIC_INTERVAL = 15_000.0
"""Milliseconds; what the bundled dashboards and Prometheus are set to."""


@dataclasses.dataclass
class Setup:
    """What this process has set up."""

    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)
    pipelines: Pipelines = dataclasses.field(default_factory=Pipelines)
    done: bool = False
    told: bool = False
    installed: set[str] = dataclasses.field(default_factory=set)
    """Signals whose global provider is one of ours."""
    session_files: set[str] = dataclasses.field(default_factory=set)
    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)
    tracer_provider: Any = None
    span_exporters: tuple[str, ...] = ()
    span_processors: tuple[Any, ...] = ()


SETUP = Setup()


def current_provider(signal: str) -> Any:
    """The global provider of a signal, a placeholder of the API if none has been set."""
    if signal == "traces":
        from opentelemetry import trace

        return trace.get_tracer_provider()
    if signal == "metrics":
        from opentelemetry import metrics

        return metrics.get_meter_provider()
    from opentelemetry import _logs

    return _logs.get_logger_provider()


def host_has_none(signal: str) -> bool:
    """Whether the API still has its placeholder for a signal, so that a provider can be set."""
    return type(current_provider(signal)).__name__ in ("ProxyTracerProvider", "_ProxyMeterProvider", "ProxyLoggerProvider")


def _install_traces(built: list[tuple[str, Any]], environ: Mapping[str, str], resource: Resource) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider

    arguments: dict[str, Any] = {"resource": resource, "id_generator": _id_generator(environ), "shutdown_on_exit": False}
    try:
        provider = TracerProvider(**arguments)
    except ValueError as error:  # of the limits
        _log.warning("The limits of spans in the environment are ignored: %s", error)
        unset = SpanLimits.UNSET
        provider = TracerProvider(span_limits=SpanLimits(128, 128, 128, 128, 128, 128, unset, unset), **arguments)
    SETUP.span_exporters, SETUP.span_processors = (), ()
    for name, exporter in built:
        _add_spans(provider, exporter, name, environ)
    trace.set_tracer_provider(provider)
    SETUP.tracer_provider, SETUP.environ = provider, environ


def _install_metrics(built: list[tuple[str, Any]], environ: Mapping[str, str], resource: Resource) -> None:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider, TraceBasedExemplarFilter

    readers = [_reader(exporter, name, environ) for name, exporter in built]
    arguments: dict[str, Any] = {"metric_readers": readers, "resource": resource, "shutdown_on_exit": False}
    try:
        provider = MeterProvider(**arguments)
    except Exception as error:  # the SDK raises no more exact type for an unknown OTEL_METRICS_EXEMPLAR_FILTER
        _log.warning("OTEL_METRICS_EXEMPLAR_FILTER is ignored: %s", error)
        provider = MeterProvider(exemplar_filter=TraceBasedExemplarFilter(), **arguments)
    metrics.set_meter_provider(provider)


def _install_logs(built: list[tuple[str, Any]], environ: Mapping[str, str], resource: Resource) -> None:
    from opentelemetry import _logs
    from opentelemetry.sdk._logs import LoggerProvider

    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    for name, exporter in built:
        _add_logs(provider, exporter, name)
    _logs.set_logger_provider(provider)


INSTALL: dict[str, Callable[[list[tuple[str, Any]], Mapping[str, str], Any], None]] = {
    "traces": _install_traces,
    "metrics": _install_metrics,
    "logs": _install_logs,
}


def _id_generator(environ: Mapping[str, str]) -> IdGenerator:
    from inferspan.export.ids import ids

    found = variables.read(environ, "OTEL_PYTHON_ID_GENERATOR")
    # "random" is the SDK's default, which the global random module makes repeat itself.
    if found is None or found[1] in ("random", "inferspan"):
        return ids()
    chosen = next(iter(entry_points(group="opentelemetry_id_generator", name=found[1])), None)
    if chosen is None:
        _log.warning("%s=%s is ignored: no package provides such an id generator", *found)
        return ids()
    generator: IdGenerator = chosen.load()()
    return generator


# -------------------------------------------------------------------------------------------------------------- pipelines
def _own(name: str, part: Any) -> None:
    """Take over flushing and closing of a processor, reader or provider; those of metrics alone take a time limit to close."""
    takes_limit = "timeout_millis" in inspect.signature(part.shutdown).parameters

    def flush(seconds: float) -> bool:
        return part.force_flush(max(1, int(seconds * 1000))) is not False

    def close(seconds: float) -> None:
        if takes_limit:
            part.shutdown(timeout_millis=max(1, int(seconds * 1000)))
        else:
            part.shutdown()

    SETUP.pipelines.add(Pipeline(name, flush, close))


def _add_spans(provider: Any, exporter: Any, name: str, environ: Mapping[str, str]) -> None:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    queue = int(variables.positive_number(environ, QUEUE_SIZE, "OTEL_BSP_MAX_QUEUE_SIZE")) or 1
    batch = int(variables.positive_number(environ, min(BATCH_SIZE, queue), "OTEL_BSP_MAX_EXPORT_BATCH_SIZE")) or 1
    if batch > queue:
        _log.warning("OTEL_BSP_MAX_EXPORT_BATCH_SIZE=%d is ignored, %d is used: no batch is larger than the queue", batch, queue)
    delay = variables.positive_number(environ, 5000, "OTEL_BSP_SCHEDULE_DELAY")
    processor = BatchSpanProcessor(
        exporter, max_queue_size=queue, max_export_batch_size=min(batch, queue), schedule_delay_millis=delay, export_timeout_millis=30_000
    )
    provider.add_span_processor(processor)
    SETUP.span_exporters += (name,)
    SETUP.span_processors += (processor,)
    _own(f"traces-{name}", processor)


def _reader(exporter: Any, name: str, environ: Mapping[str, str]) -> Any:
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

    if isinstance(exporter, MetricReader):  # the pull exporters of other packages
        reader = exporter
    else:
        interval = variables.positive_number(environ, METRIC_INTERVAL, "OTEL_METRIC_EXPORT_INTERVAL")
        timeout = variables.positive_number(environ, 30_000, "OTEL_METRIC_EXPORT_TIMEOUT")
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=interval, export_timeout_millis=timeout)
    _own(f"metrics-{name}", reader)
    return reader


def _add_logs(provider: Any, exporter: Any, name: str) -> None:
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    processor = BatchLogRecordProcessor(exporter)
    provider.add_log_record_processor(processor)
    _own(f"logs-{name}", processor)


def extend(
    session_file: str | None, signals: Sequence[str] = variables.SIGNALS, given: Mapping[str, Any] | None = None
) -> None:
    """Write a session file from SDK providers that exist already, the host's included: the file was asked for by name."""
    for signal in signals:
        for name, exporter in file_exporter(signal, session_file):
            provider: Any = (given or {}).get(signal) or current_provider(signal)
            if signal == "traces" and hasattr(provider, "add_span_processor"):
                _add_spans(provider, exporter, name, os.environ)
            elif signal == "metrics" and hasattr(provider, "add_metric_reader"):
                provider.add_metric_reader(_reader(exporter, name, os.environ))
            elif signal == "logs" and hasattr(provider, "add_log_record_processor"):
                _add_logs(provider, exporter, name)
            else:
                _log.warning("The provider for %s cannot be extended: %s will have no %s", signal, session_file, signal)
                exporter.shutdown()


def file_exporter(signal: str, session_file: str | None) -> list[tuple[str, Any]]:
    """The exporter of a signal to the session file, with its name, or nothing if there is no such file."""
    if session_file is None:
        return []
    from inferspan.export.session_file import LogFileExporter, MetricFileExporter, SpanFileExporter

    kinds: dict[str, Callable[[str], Any]] = {"traces": SpanFileExporter, "metrics": MetricFileExporter, "logs": LogFileExporter}
    return [("file", kinds[signal](session_file))]


def take_over(signals: list[str]) -> None:
    """Close the providers of a configuration file under our deadline instead of the SDK's half a minute each."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    from inferspan.export.ids import ids

    for signal in signals:
        provider: Any = current_provider(signal)
        if not hasattr(provider, "shutdown"):
            continue
        atexit.unregister(provider.shutdown)
        _own(f"{signal}-config", provider)
        if signal == "traces" and type(provider.id_generator) is RandomIdGenerator:
            provider.id_generator = ids()
