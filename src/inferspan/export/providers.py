"""Providers of our own: made, extended, remembered, and closed under one deadline.

In come exporters and a resource, out come global providers whose batch processors and readers are pipelines of ``SETUP``. Wrong
values in the environment are warnings and defaults. Providers of the host are never replaced or closed; a session file that was asked
for by name is added to them.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from inferspan.export import variables
from inferspan.export.delivery import Delivery, begin_end, tell_undelivered
from inferspan.export.fork import begin_at_zero_in_children, own_id_in_children
from inferspan.export.older_sdk import joining
from inferspan.export.sdk_variables import PROVIDERS, hidden
from inferspan.export.shutdown import Pipeline, Pipelines
from inferspan.setting_checks import shown, warn_once

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.id_generator import IdGenerator

__all__ = [
    "INSTALL",
    "SETUP",
    "Built",
    "FilePart",
    "Setup",
    "current_provider",
    "extend",
    "file_exporter",
    "host_has_none",
    "take_over",
    "without_unusable",
]

_log = logging.getLogger("inferspan")

QUEUE_SIZE = 16384
BATCH_SIZE = 2048
_NEEDED_BY_FILES = (
    "opentelemetry.exporter.otlp.proto.common.metrics_encoder",
    "opentelemetry.exporter.otlp.proto.common._log_encoder",
    "google.protobuf.json_format",
)
METRIC_INTERVAL = 15_000.0
"""Milliseconds; the interval that the bundled dashboards and Prometheus assume."""
SHORTEST_INTERVAL = 100.0
"""Milliseconds: a collection has to fit in, and the reader's thread must not begin before its provider is there."""


class Built(NamedTuple):
    """An exporter or metric reader, its name, and the record of its deliveries."""

    name: str
    exporter: Any
    delivery: Delivery
    path: str | None = None
    """Of a session file."""


class FilePart(NamedTuple):
    """A processor or reader that writes a session file."""

    path: str
    signal: str
    provider: Any
    """``None`` stands for the global one."""
    part: Any
    pipeline: Pipeline


@dataclasses.dataclass
class Setup:
    """Providers and pipelines that this process has set up."""

    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)
    pipelines: Pipelines = dataclasses.field(default_factory=lambda: Pipelines(begin=begin_end, tell=tell_undelivered))
    done: bool = False
    hinted: bool = False
    installed: set[str] = dataclasses.field(default_factory=set)
    """Signals whose global provider is one of ours."""
    session_files: set[str] = dataclasses.field(default_factory=set)
    """Absolute paths of those that the global providers write; with signal and identity those of a provider that was given."""
    kept_files: set[str] = dataclasses.field(default_factory=set)
    """Absolute paths of those that are open until the process ends."""
    file_parts: list[FilePart] = dataclasses.field(default_factory=list)
    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)
    tracer_provider: Any = None
    span_exporters: tuple[str, ...] = ()
    span_processors: tuple[Any, ...] = ()

    def forget(self, part: FilePart) -> None:
        """A session file is not written any more by this part; called with the lock held."""
        self.file_parts = [each for each in self.file_parts if each is not part]
        kept = [pair for pair in zip(self.span_exporters, self.span_processors, strict=True) if pair[1] is not part.part]
        self.span_exporters, self.span_processors = tuple(name for name, _ in kept), tuple(each for _, each in kept)
        self.session_files -= {part.path, f"{part.path} {part.signal} {id(part.provider)}"}


SETUP = Setup()


def current_provider(signal: str) -> Any:
    """The global provider of a signal, a placeholder of the API if none has been set; never raises.

    Where a variable names a provider that cannot be had, the API raises at each question, until a provider is set.
    """
    variable, group = PROVIDERS[signal]
    named = os.environ.get(variable)
    if named is None:
        return _global_provider(signal)
    if variables.is_provided(group, named):
        with contextlib.suppress(Exception), hidden():  # of the provider; the API logs it
            return _global_provider(signal)
        reason = "it cannot be made"
    else:
        reason = "no package provides it"
    provider = set_provider(signal)
    if provider is not None:
        return provider
    warn_once("%s=%s is ignored: %s", variable, shown(named), reason)
    return _placeholder(signal)


@contextlib.contextmanager
def without_unusable() -> Iterator[None]:
    """Leave out variables that name a provider which no package provides: the SDK's metrics of its own make the API read them."""
    taken = {
        variable: os.environ.pop(variable)
        for variable, group in PROVIDERS.values()
        if variable in os.environ and not variables.is_provided(group, os.environ[variable])
    }
    try:
        yield
    finally:
        os.environ.update(taken)


def _global_provider(signal: str) -> Any:
    if signal == "traces":
        from opentelemetry import trace

        return trace.get_tracer_provider()
    if signal == "metrics":
        from opentelemetry import metrics

        return metrics.get_meter_provider()
    from opentelemetry import _logs

    return _logs.get_logger_provider()


def set_provider(signal: str) -> Any:
    """The provider that has been set, read without having the API read the environment."""
    if signal == "traces":
        from opentelemetry import trace

        return getattr(trace, "_TRACER_PROVIDER", None)
    if signal == "metrics":
        from opentelemetry.metrics import _internal as metrics

        return getattr(metrics, "_METER_PROVIDER", None)
    from opentelemetry._logs import _internal as logs

    return getattr(logs, "_LOGGER_PROVIDER", None)


def _placeholder(signal: str) -> Any:
    """The API's placeholder; tracers, meters and loggers taken from it resolve once a provider is set."""
    if signal == "traces":
        from opentelemetry import trace

        return trace.ProxyTracerProvider()
    if signal == "metrics":
        from opentelemetry.metrics import NoOpMeterProvider
        from opentelemetry.metrics import _internal as metrics

        return getattr(metrics, "_PROXY_METER_PROVIDER", None) or NoOpMeterProvider()
    from opentelemetry import _logs
    from opentelemetry._logs import _internal as logs

    return getattr(logs, "_PROXY_LOGGER_PROVIDER", None) or _logs.NoOpLoggerProvider()


def host_has_none(signal: str) -> bool:
    """Whether the API still has its placeholder for a signal, so that a provider can be set."""
    return type(current_provider(signal)).__name__ in ("ProxyTracerProvider", "_ProxyMeterProvider", "ProxyLoggerProvider")


def _install_traces(built: list[Built], environ: Mapping[str, str], resource: Resource) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider(resource=resource, id_generator=_id_generator(environ), shutdown_on_exit=False)
    own_id_in_children(provider, resource)
    SETUP.span_exporters, SETUP.span_processors = (), ()
    for item in built:
        _add_spans(provider, item, environ)
    trace.set_tracer_provider(provider)
    SETUP.tracer_provider, SETUP.environ = provider, environ


def _install_metrics(built: list[Built], environ: Mapping[str, str], resource: Resource) -> None:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider

    readers = [_reader(item, environ) for item in built]
    provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    own_id_in_children(provider, resource)
    for reader in readers:
        begin_at_zero_in_children(reader, provider, ours=True)
    metrics.set_meter_provider(provider)


def _install_logs(built: list[Built], environ: Mapping[str, str], resource: Resource) -> None:
    from opentelemetry import _logs
    from opentelemetry.sdk._logs import LoggerProvider

    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    own_id_in_children(provider, resource)
    for item in built:
        _add_logs(provider, item, environ)
    _logs.set_logger_provider(provider)


INSTALL: dict[str, Callable[[list[Built], Mapping[str, str], Any], None]] = {
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
    reason = "no package provides such an id generator"
    if chosen is not None:
        try:
            generator: IdGenerator = chosen.load()()
            return generator
        except Exception as error:
            reason = f"it cannot be made ({type(error).__name__})"
    warn_once("%s=%s is ignored: %s", found[0], shown(found[1]), reason)
    return ids()


# -------------------------------------------------------------------------------------------------------------- pipelines
def _own_item(signal: str, item: Built, part: Any, provider: Any = None) -> None:
    """Take over a part of one exporter, and note what a session file is written by."""
    pipeline = _own(f"{signal}-{item.name}", part, item.delivery)
    if item.path is not None:
        SETUP.file_parts.append(FilePart(os.path.abspath(item.path), signal, provider, part, pipeline))


def _own(name: str, part: Any, delivery: Delivery | None = None) -> Pipeline:
    """Take over flushing and closing of a processor, reader or provider; those of metrics alone take a time limit to close.

    The SDK's parts drop the results of their exporter. ``delivery`` has them: a flush is true only if nothing was lost since the last one.
    """
    takes_limit = "timeout_millis" in inspect.signature(part.shutdown).parameters

    def flush(seconds: float) -> bool:
        return part.force_flush(max(1, int(seconds * 1000))) is not False

    def close(seconds: float) -> None:
        if takes_limit:
            part.shutdown(timeout_millis=max(1, int(seconds * 1000)))
        else:
            part.shutdown()

    pipeline = Pipeline(name, delivery.all_sent(flush) if delivery is not None else flush, close)
    SETUP.pipelines.add(pipeline)
    return pipeline


def _batches(environ: Mapping[str, str], prefix: str, queue_size: int, delay: float) -> dict[str, Any]:
    """Arguments of a batch processor from its variables, all of them, so that the SDK reads none."""
    most = sys.maxsize
    queue = int(variables.positive_number(environ, queue_size, f"{prefix}_MAX_QUEUE_SIZE", most=most)) or 1
    default = min(BATCH_SIZE, queue)
    batch = int(variables.positive_number(environ, default, f"{prefix}_MAX_EXPORT_BATCH_SIZE", most=most)) or 1
    if batch > queue:
        text = "%s_MAX_EXPORT_BATCH_SIZE=%d is ignored, %d is used: no batch is larger than the queue"
        warn_once(text, prefix, batch, queue)
    wait = variables.positive_number(environ, delay, f"{prefix}_SCHEDULE_DELAY", most=variables.LONGEST_WAIT, least=variables.SHORTEST_WAIT)
    variables.positive_number(environ, 30_000, f"{prefix}_EXPORT_TIMEOUT", most=variables.LONGEST_WAIT)  # the SDK does not use it
    return {
        "max_queue_size": queue,
        "max_export_batch_size": min(batch, queue),
        "schedule_delay_millis": wait,
        "export_timeout_millis": 30_000,
    }


def _add_spans(provider: Any, item: Built, environ: Mapping[str, str]) -> None:
    from inferspan.export.processors import BoundedSpans

    processor = BoundedSpans(item.exporter, item.delivery, **_batches(environ, "OTEL_BSP", QUEUE_SIZE, 5000))
    provider.add_span_processor(processor)
    SETUP.span_exporters += (item.name,)
    SETUP.span_processors += (processor,)
    _own_item("traces", item, processor, provider)


def _reader(item: Built, environ: Mapping[str, str], provider: Any = None) -> Any:
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

    if isinstance(item.exporter, MetricReader):  # the pull exporters of other packages
        reader = item.exporter
    else:
        most = variables.LONGEST_WAIT
        interval = variables.positive_number(environ, METRIC_INTERVAL, "OTEL_METRIC_EXPORT_INTERVAL", most=most, least=SHORTEST_INTERVAL)
        timeout = variables.positive_number(environ, 30_000, "OTEL_METRIC_EXPORT_TIMEOUT", most=most, least=SHORTEST_INTERVAL)
        reader = PeriodicExportingMetricReader(item.exporter, export_interval_millis=interval, export_timeout_millis=timeout)
    _own_item("metrics", item, reader, provider)
    return reader


def _add_logs(provider: Any, item: Built, environ: Mapping[str, str]) -> None:
    from inferspan.export.processors import BoundedLogs

    processor = BoundedLogs(item.exporter, item.delivery, **_batches(environ, "OTEL_BLRP", 2048, 1000))
    provider.add_log_record_processor(processor)
    _own_item("logs", item, processor, provider)


def extend(
    session_file: str | None, signals: Sequence[str] = variables.SIGNALS, given: Mapping[str, Any] | None = None
) -> None:
    """Write a session file from SDK providers that exist already, the host's included: the file was asked for by name."""
    for signal in signals if session_file is not None else ():
        for item in file_exporter(signal, session_file):
            provider: Any = (given or {}).get(signal) or current_provider(signal)
            if signal == "traces" and hasattr(provider, "add_span_processor"):
                _add_spans(provider, item, os.environ)
            elif signal == "metrics" and (join := joining(provider)) is not None:
                reader = _reader(item, os.environ, provider)
                join(reader)
                begin_at_zero_in_children(reader, provider, ours=False)
            elif signal == "logs" and hasattr(provider, "add_log_record_processor"):
                _add_logs(provider, item, os.environ)
            else:
                _log.warning("The provider for %s cannot be extended: %s will have no %s", signal, session_file, signal)
                item.exporter.shutdown()


def file_exporter(signal: str, session_file: str | None) -> list[Built]:
    """The exporter of a signal to the session file, or nothing if there is no such file."""
    if session_file is None:
        return []
    from inferspan.export.exporters import guarded_exporter
    from inferspan.export.files.session_file import LogFileExporter, MetricFileExporter, SpanFileExporter

    kinds: dict[str, Callable[[str], Any]] = {"traces": SpanFileExporter, "metrics": MetricFileExporter, "logs": LogFileExporter}
    for module in _NEEDED_BY_FILES:
        # Before there is a thread that would do it: a module that is being imported while the process forks cannot be in the child.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    made, delivery = kinds[signal](session_file), Delivery(signal)  # the session file logs its own failures
    return [Built("file", guarded_exporter(signal, lambda: made, delivery, limit=sys.maxsize), delivery, session_file)]


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
