"""``instrument(model)``: settings, providers, samplers and a target, put together; nothing else happens here.

In: a model and options. Out: a handle that detaches. A wrong option raises before anything is attached; everything after that is contained.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opentelemetry import _logs, metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation

from . import otlp, semconv
from .device_metrics import DeviceMetrics
from .guard import contain, error_counts
from .ids import adopt_ids
from .ranks import ranks
from .request_metrics import RequestMetrics
from .settings import Settings, SettingsError
from .spans import SpanRecorder, SpanWriter
from .summary import Totals
from .version import version

if TYPE_CHECKING:
    from .capture.target import Target
    from .samplers.loop import SamplerLoop

__all__ = ["Handle", "flush", "instrument"]

_lock = threading.RLock()
_writer = SpanWriter()
_instrumentations: dict[int, _Instrumentation] = {}
_Providers = tuple[Any, Any, Any]


class _Instrumentation:
    """What the handles of one model share."""

    def __init__(
        self, target: Target, recorder: SpanRecorder, settings: Settings, providers: _Providers, release: Callable[[], None]
    ) -> None:
        self.target = target
        self.recorder = recorder
        self.settings = settings
        self.providers = providers
        self.users = 0
        self._release = release
        self._key = id(target.model)

    def close(self) -> None:
        with contain("uninstrument"):
            self.target.close()
        with contain("uninstrument"):
            _writer.flush(5.0)
        with contain("uninstrument"):
            self._release()
        with _lock:
            if _instrumentations.get(self._key) is self:
                del _instrumentations[self._key]


class Handle:
    """Keeps a model instrumented until ``uninstrument()``; a context manager as well.

    Several handles on one model share one instrumentation, and the last ``uninstrument()`` detaches.
    """

    def __init__(self, instrumentation: _Instrumentation) -> None:
        self._instrumentation: _Instrumentation | None = instrumentation
        self._recorder = instrumentation.recorder
        self.settings = instrumentation.settings
        """The settings in force."""

    def uninstrument(self) -> None:
        """Take everything off the model; may be called twice, and while the model runs."""
        with _lock:
            instrumentation, self._instrumentation = self._instrumentation, None
            if instrumentation is None:
                return
            instrumentation.users -= 1
            last = not instrumentation.users
        if last:
            instrumentation.close()

    def refresh(self) -> None:
        """Look at the model again after its submodules were replaced or compiled."""
        if self._instrumentation is not None:
            with contain("refresh"):
                self._instrumentation.target.refresh()

    def summary(self) -> Totals:
        """Totals of the requests on this model so far; kept in the process, so no destination is needed."""
        return self._recorder.metrics.summary.totals()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None) -> None:
        self.uninstrument()


def instrument(
    model: Any,
    tokenizer: Any = None,
    settings: Settings | None = None,
    tracer_provider: Any = None,
    meter_provider: Any = None,
    logger_provider: Any = None,
    auto_configure: bool = True,
    **settings_overrides: Any,
) -> Handle:
    """Make a model emit traces and metrics of its calls.

    Args:
        model: a transformers model, any ``torch.nn.Module``, or a pipeline that holds one as ``.model``.
        tokenizer: decodes prompts and outputs; used only with content capture.
        settings: options; default: resolved from environment, file and presets.
        tracer_provider: where spans go; default the global provider, looked up at each request.
        meter_provider: where metrics go; default the global one.
        logger_provider: where content events go; default the global one.
        auto_configure: set up providers from the ``OTEL_*`` variables if the program has set none and a destination is named.
        **settings_overrides: single settings, stronger than every other source.

    Returns:
        A handle; ``handle.uninstrument()`` detaches.

    Raises:
        TypeError: ``model`` is no module and holds none.
        SettingsError: a setting is unknown or wrong, a module pattern matches nothing, an exporter or protocol is unknown, the session
            file cannot be written, or the model is instrumented already with other settings. The model is untouched then.
    """
    model, tokenizer = _unwrap(model, tokenizer)
    explicit = settings is not None or bool(settings_overrides)
    resolved = _resolve(settings, settings_overrides)
    providers = (tracer_provider, meter_provider, logger_provider)
    with _lock:
        existing = _instrumentations.get(id(model))
        if existing is not None and existing.target.model is model and existing.target.is_open:
            _check_conflict(existing, resolved if explicit else None, providers)
        else:
            if auto_configure:
                given = dict(zip(("traces", "metrics", "logs"), providers, strict=True))
                otlp.automatic_setup(resolved, given={signal: provider for signal, provider in given.items() if provider is not None})
            existing = _build(model, tokenizer, resolved, providers)
            _instrumentations[id(model)] = existing
        existing.users += 1
        return Handle(existing)


def flush(timeout: float | None = 30.0) -> bool:
    """Hand everything recorded so far to the span processors, and send it where the pipelines are our own.

    Args:
        timeout: longest time in seconds; ``None`` for no limit on the hand-over.

    Returns:
        Whether all of it was done in that time.
    """
    done = _writer.flush(timeout)
    return otlp.force_flush(30.0 if timeout is None else timeout) and done


def _unwrap(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    from torch import nn

    if isinstance(model, nn.Module):
        return model, tokenizer
    inner = getattr(model, "model", None)
    if isinstance(inner, nn.Module):
        return inner, tokenizer if tokenizer is not None else getattr(model, "tokenizer", None)
    raise TypeError(
        f"inferspan.instrument() takes a torch.nn.Module, a transformers model or a pipeline with a .model, not {type(model).__name__}"
    )


def _resolve(settings: Settings | None, overrides: Mapping[str, Any]) -> Settings:
    if settings is None:
        preset = overrides.get("preset")
        return Settings.resolve({name: value for name, value in overrides.items() if name != "preset"}, preset=preset)
    if not isinstance(settings, Settings):
        raise SettingsError(f"settings must be an inferspan.Settings, not {type(settings).__name__}; pass single options as keywords")
    if not overrides:
        return settings
    # Through resolve() for its message about unknown names; the environment has had its say in `settings` already.
    return Settings.resolve({**{item.name: getattr(settings, item.name) for item in fields(settings)}, **overrides}, environ={})


def _check_conflict(existing: _Instrumentation, settings: Settings | None, providers: _Providers) -> None:
    if settings is not None and settings != existing.settings:
        names = [item.name for item in fields(settings) if getattr(settings, item.name) != getattr(existing.settings, item.name)]
        told = ", ".join(f"{name}={getattr(existing.settings, name)!r} (now {getattr(settings, name)!r})" for name in names)
        raise SettingsError(f"this model is instrumented already with {told}; uninstrument() it first or pass the same settings")
    for name, new, old in zip(("tracer_provider", "meter_provider", "logger_provider"), providers, existing.providers, strict=True):
        if new is not None and new is not old:
            raise SettingsError(f"this model is instrumented already with another {name}; uninstrument() it first or pass the same one")


def _build(model: Any, tokenizer: Any, settings: Settings, providers: _Providers) -> _Instrumentation:
    from .capture.target import Target

    tracer_provider, meter_provider, logger_provider = providers
    meters = _meters(meter_provider)
    request_metrics = RequestMetrics(meters.meter, settings)
    recorder = SpanRecorder(settings, _tracer_source(tracer_provider), request_metrics, _writer, _logger_source(logger_provider))
    target = Target(model, settings, recorder, tokenizer)
    release: Callable[[], None] = lambda: None  # noqa: E731 - replaced below
    with contain("samplers"):
        loop, release = _samplers.acquire(settings, meters)
        from .samplers.allocator import cuda_devices

        target.watch_machine(loop, cuda_devices)
    return _Instrumentation(target, recorder, settings, providers, release)


def _tracer_source(provider: Any) -> Callable[[], Any]:
    """Returns the tracer; it is kept only once it belongs to a provider that is really there."""
    kept: list[Any] = []

    def tracer() -> Any:
        if kept:
            return kept[0]
        found = (provider or trace.get_tracer_provider()).get_tracer(semconv.SCOPE, version())
        with contain("id generator"):
            adopt_ids(found)
        if provider is not None or otlp.span_parts(found) is not None:
            kept.append(found)
        return found

    return tracer


def _logger_source(provider: Any) -> Callable[[], Any]:
    return lambda: (provider or _logs.get_logger_provider()).get_logger(semconv.SCOPE, version())


class _Meters:
    """The meter of one provider and the observable instruments on it, which cannot be unregistered and so are made once."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._meter: Any = None
        self.devices: DeviceMetrics | None = None
        self.observed = False

    def meter(self) -> Any:
        """The meter for request metrics; raises what the provider raises."""
        if self._meter is None:
            # A proxy resolves itself once the host sets its provider, so it may be kept.
            self._meter = (self._provider or metrics.get_meter_provider()).get_meter(semconv.SCOPE, version())
            with contain("own metrics"):
                self._observe(self._meter)
        return self._meter

    def provider(self) -> Any:
        """The provider, global ones as they are now."""
        return self._provider or metrics.get_meter_provider()

    def _observe(self, meter: Any) -> None:
        if self.observed:
            return
        self.observed = True
        for name, callback in ((semconv.M_ERRORS, _observe_errors), (semconv.M_WORLD_SIZE, _observe_world)):
            metric = semconv.METRICS[name]
            create = (
                meter.create_observable_counter
                if metric.instrument == semconv.OBSERVABLE_COUNTER
                else meter.create_observable_up_down_counter
            )
            create(name, callbacks=[callback], unit=metric.unit, description=metric.brief)


def _observe_errors(_: CallbackOptions) -> list[Observation]:
    return [Observation(count, {semconv.ERROR_PLACE: place}) for place, count in error_counts().items()]


def _observe_world(_: CallbackOptions) -> list[Observation]:
    size = ranks(os.environ).get(semconv.WORLD_SIZE)
    return [Observation(size)] if size is not None else []


_by_provider: weakref.WeakKeyDictionary[Any, _Meters] = weakref.WeakKeyDictionary()
_global_meters: dict[Any, _Meters] = {}


def _meters(provider: Any) -> _Meters:
    """One ``_Meters`` for each provider; the global one counts as a provider of its own, whatever stands behind it later."""
    if provider is None:
        return _global_meters.setdefault(None, _Meters(None))
    try:
        known = _by_provider.get(provider)
        if known is None:
            # The dictionary must not keep its own key alive through the value.
            known = _by_provider[provider] = _Meters(weakref.proxy(provider))
        return known
    except TypeError:
        return _Meters(provider)


class _Samplers:
    """The sampler thread of the process: it runs while an instrumented model wants it, with the first one's settings."""

    def __init__(self) -> None:
        self._loop: SamplerLoop | None = None
        self._users = 0

    def acquire(self, settings: Settings, meters: _Meters) -> tuple[SamplerLoop | None, Callable[[], None]]:
        """Start or share the thread and report its readings on ``meters``; returns it and what lets go of it."""
        if not (settings.nvml or settings.host or settings.allocator):
            return None, lambda: None
        with _lock:
            if self._loop is None:
                self._loop = _sampler_loop(settings)
                # NVML counts its users, so ours says goodbye; before the providers, whose last collection then finds nothing.
                atexit.register(self._loop.stop, 0.2)
            loop = self._loop
            self._users += 1
            loop.start()
            if meters.devices is None:
                meters.devices = DeviceMetrics(meters.provider(), loop.read, version=version())
            else:
                meters.devices.reopen(loop.read)
        released = False

        def release() -> None:
            nonlocal released
            with _lock:
                if released:
                    return
                released = True
                self._users -= 1
                if self._users:
                    return
                self._loop = None
                for known in (*_by_provider.values(), *_global_meters.values()):
                    if known.devices is not None:
                        known.devices.close()
            loop.stop()

        return loop, release


_samplers = _Samplers()


def _sampler_loop(settings: Settings) -> SamplerLoop:
    from .samplers.allocator import AllocatorSampler, cuda_devices, device_memory
    from .samplers.host import HostSampler
    from .samplers.loop import SamplerLoop
    from .samplers.nvml import NvmlSampler

    local_rank = ranks(os.environ).get(semconv.LOCAL_RANK)
    samplers: list[Any] = []
    if settings.nvml:
        samplers.append(NvmlSampler(all_gpus=settings.all_gpus, cuda_devices=cuda_devices, cuda_memory=device_memory))
    if settings.host:
        samplers.append(HostSampler(local_rank=local_rank or 0, off=_system_metrics_active))
    if settings.allocator:
        samplers.append(AllocatorSampler())
    return SamplerLoop(samplers, interval=settings.sampler_interval)


def _system_metrics_active() -> bool:
    """Whether OpenTelemetry's own host instrumentation runs: it uses the same metric names with other attributes."""
    import sys

    module = sys.modules.get("opentelemetry.instrumentation.system_metrics")
    instrumentor = getattr(module, "SystemMetricsInstrumentor", None)
    return instrumentor is not None and bool(getattr(instrumentor(), "_is_instrumented_by_opentelemetry", False))


otlp.flush_first(lambda: (_writer.flush(2.0), None)[1])
