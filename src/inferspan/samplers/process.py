"""The readings of the machine for every meter provider: one sampler thread a process, and the instruments that report on it.

In: settings and meter providers. Out: a meter for request metrics, and samplers that run while an instrumented model wants them. A
provider that fails costs its own metrics; a forked child starts the thread at its first instrumented call.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import CallbackOptions, Observation

from inferspan import semconv
from inferspan.export.providers import current_provider
from inferspan.guard import contain, error_counts
from inferspan.metrics.devices import DeviceMetrics
from inferspan.metrics.waiting import Waiting
from inferspan.ranks import ranks
from inferspan.records import Sampler
from inferspan.settings import Settings
from inferspan.version import version

from .compiling import CompileCounts

if TYPE_CHECKING:
    from .loop import SamplerLoop

__all__ = ["Meters", "Samplers", "forked", "meters_of", "samplers"]

_lock = threading.RLock()


class Meters:
    """The meter of one provider and the observable instruments on it, which cannot be unregistered and so are made once."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._meter: Any = None
        self.devices: DeviceMetrics | None = None
        self.stages: Any = None
        """Metrics of stages of the program, made by their first recorder."""
        self.observed = self._collects = False
        self.waiting = Waiting(self.collects)
        self._compilations = CompileCounts()

    def collects(self) -> bool:
        """Whether callbacks of ours run before each collection, which is known of the SDK only."""
        meter = getattr(self._meter, "_real_meter", None) or self._meter
        return self._collects and type(meter).__module__.startswith("opentelemetry.sdk.")

    def meter(self) -> Any:
        """The meter for request metrics; raises what the provider raises."""
        if self._meter is None:
            # A proxy resolves itself once the host sets its provider, so it may be kept.
            self._meter = (self._provider or current_provider("metrics")).get_meter(semconv.SCOPE, version())
            with contain("own metrics"):
                self._observe(self._meter)
        return self._meter

    def provider(self) -> Any:
        """The provider, global ones as they are now."""
        return self._provider or current_provider("metrics")

    def _observe(self, meter: Any) -> None:
        if self.observed:
            return
        self.observed = True
        own = (
            (semconv.M_ERRORS, self._observe_errors), (semconv.M_WORLD_SIZE, _observe_world),
            (semconv.M_SAMPLING_TIME, _observing_sampling()),
            *_observing_compilations(self._compilations),
        )  # fmt: skip
        for name, callback in own:
            metric = semconv.METRICS[name]
            create = (
                meter.create_observable_counter
                if metric.instrument == semconv.OBSERVABLE_COUNTER
                else meter.create_observable_up_down_counter
            )
            create(name, callbacks=[callback], unit=metric.unit, description=metric.brief)
        self._collects = True

    def _observe_errors(self, _: CallbackOptions) -> list[Observation]:
        self.waiting.collect()
        return [Observation(count, {semconv.ERROR_PLACE: place}) for place, count in error_counts().items()]


def _observe_world(_: CallbackOptions) -> list[Observation]:
    size = ranks(os.environ).get(semconv.WORLD_SIZE)
    return [Observation(size)] if size is not None else []


def _observing_compilations(counts: CompileCounts) -> Iterator[tuple[str, Callable[[CallbackOptions], list[Observation]]]]:
    def observing(name: str) -> Callable[[CallbackOptions], list[Observation]]:
        def observe(_: CallbackOptions) -> list[Observation]:
            count = counts.read(name)
            return [] if count is None else [Observation(count)]

        return observe

    for name in (semconv.M_COMPILE_GRAPHS, semconv.M_COMPILE_GRAPH_BREAKS, semconv.M_COMPILE_RECOMPILES):
        yield name, observing(name)


def _observing_sampling() -> Callable[[CallbackOptions], list[Observation]]:
    # A provider that is made later in the process counts from its own beginning.
    before = dict(samplers.spent)

    def observe(_: CallbackOptions) -> list[Observation]:
        since = ((name, seconds - before.get(name, 0.0)) for name, seconds in list(samplers.spent.items()))
        return [Observation(seconds, {semconv.SAMPLER: name}) for name, seconds in since if seconds > 0]

    return observe


_by_provider: weakref.WeakKeyDictionary[Any, Meters] = weakref.WeakKeyDictionary()
_global_meters: dict[Any, Meters] = {}


def meters_of(provider: Any) -> Meters:
    """One ``Meters`` for each provider; the global one is one of them, whichever provider it resolves to later."""
    present = current_provider("metrics")
    if provider is None and present in _by_provider:
        provider = present
    if provider is None or (_global_meters and provider is present):
        return _global_meters.setdefault(None, Meters(None))
    try:
        known = _by_provider.get(provider)
        if known is None:
            # The dictionary must not keep its own key alive through the value.
            known = _by_provider[provider] = Meters(weakref.proxy(provider))
        return known
    except TypeError:
        return Meters(provider)


def _all_meters() -> list[Meters]:
    return [*_by_provider.values(), *_global_meters.values()]


def settle() -> None:
    """Record the values of all requests that have ended."""
    with _lock:
        known = _all_meters()
    for meters in known:
        with contain("request metrics"):
            meters.waiting.settle()


class Samplers:
    """The sampler thread of the process: it runs while an instrumented model wants it, with the first one's settings."""

    def __init__(self) -> None:
        self._loop: SamplerLoop | None = None
        self._users = 0
        self._interval = 0.0
        self._asleep = False
        self._follows_exit = False
        self.spent: dict[str, float] = {}
        """Seconds that readings have taken in this process, by sampler."""

    @property
    def running(self) -> bool:
        """Whether an instrumented model has readings taken."""
        return self._loop is not None

    def acquire(self, settings: Settings, meters: Meters) -> tuple[SamplerLoop | None, Callable[[], None]]:
        """Start or share the thread and report its readings on ``meters``; returns it and a function that releases it."""
        if not any(getattr(settings, name) for name in SAMPLERS):
            return None, lambda: None
        with _lock:
            if self._loop is None:
                self._loop, self._interval = _sampler_loop(settings, self.spent), settings.sampler_interval
            if not self._follows_exit:
                self._follows_exit = True
                atexit.register(self._stop, 0.2)
            loop = self._loop
            self._users += 1
            loop.start()
            with contain("device metrics"):
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
                if not self._users:
                    self._stop(1.0)

        return loop, release

    def wake_in_child(self) -> None:
        """Start the thread in a forked child, which has none, now that a model is called."""
        if self._asleep:
            self._asleep = False
            with contain("samplers"):
                if self._loop is not None:
                    self._loop.start()

    def sleep_in_child(self) -> None:
        """Called in a forked child, before anything runs in it."""
        self._asleep = self._loop is not None
        self.spent.clear()
        for known in _all_meters():
            if known.devices is not None:
                known.devices.begin_at_zero()

    def _stop(self, timeout: float) -> None:
        """Stop the thread, which shuts NVML down; a collection that follows still finds the last readings."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        with contain("samplers"):
            last, until = list(loop.read()), time.monotonic() + 2 * self._interval
            for known in _all_meters():
                if known.devices is not None:
                    known.devices.reopen(lambda: last if time.monotonic() < until else ())
        loop.stop(timeout)


samplers = Samplers()
"""The samplers of this process."""


def _nvml(settings: Settings) -> Sampler:
    from .allocator import cuda_devices, device_memory
    from .groups import GPU_GROUPS, chosen
    from .nvml import NvmlSampler

    metrics = chosen(GPU_GROUPS, settings.gpu_metrics)
    return NvmlSampler(all_gpus=settings.all_gpus, metrics=metrics, cuda_devices=cuda_devices, cuda_memory=device_memory)


def _host(settings: Settings) -> Sampler:
    from .groups import HOST_GROUPS, chosen
    from .host import HostSampler

    metrics = chosen(HOST_GROUPS, settings.host_metrics)
    return HostSampler(local_rank=ranks(os.environ).get(semconv.LOCAL_RANK) or 0, metrics=metrics, off=_system_metrics_active)


def _allocator(settings: Settings) -> Sampler:
    from .allocator import AllocatorSampler

    return AllocatorSampler()


SAMPLERS: dict[str, Callable[[Settings], Sampler]] = {"nvml": _nvml, "host": _host, "allocator": _allocator}
"""By the setting that turns it off, the function that makes a sampler; its module is loaded then."""


def _amd(settings: Settings) -> Sampler:
    from .groups import GPU_GROUPS, chosen
    from .vendors.amd import AmdSampler

    return AmdSampler(all_gpus=settings.all_gpus, metrics=chosen(GPU_GROUPS, settings.gpu_metrics))


def _apple(settings: Settings) -> Sampler:
    from .vendors.torch_memory import MpsSampler

    return MpsSampler()


def _intel(settings: Settings) -> Sampler:
    from .vendors.torch_memory import XpuSampler

    return XpuSampler()


def _has_xpu() -> bool:
    return getattr(getattr(sys.modules.get("torch"), "version", None), "xpu", None) is not None


VENDORS: dict[str, tuple[str, Callable[[], bool], Callable[[Settings], Sampler]]] = {
    "amd": ("nvml", lambda: importlib.util.find_spec("amdsmi") is not None, _amd),
    "apple": ("allocator", lambda: sys.platform == "darwin", _apple),
    "intel": ("allocator", _has_xpu, _intel),
}
"""Samplers of other vendors: the setting that turns each off, whether there can be such a device, and what makes it."""


def _sampler_loop(settings: Settings, spent: dict[str, float]) -> SamplerLoop:
    from .loop import SamplerLoop

    chosen = {name: make(settings) for name, make in SAMPLERS.items() if getattr(settings, name)}
    for name, (setting, possible, make) in VENDORS.items():
        if getattr(settings, setting) and possible():
            chosen[name] = make(settings)
    intervals = (("nvml", settings.gpu_interval), ("amd", settings.gpu_interval), ("host", settings.host_interval))
    own = {name: interval for name, interval in intervals if interval is not None}
    return SamplerLoop(chosen, interval=settings.sampler_interval, own=own, spent=spent)


def _system_metrics_active() -> bool:
    """Whether OpenTelemetry's own host instrumentation runs: it uses the same metric names with other attributes."""
    module = sys.modules.get("opentelemetry.instrumentation.system_metrics")
    instrumentor = getattr(module, "SystemMetricsInstrumentor", None)
    return instrumentor is not None and bool(getattr(instrumentor(), "_is_instrumented_by_opentelemetry", False))


def forked() -> None:
    """Called in a forked child: the thread that held a lock at that moment does not exist in it."""
    global _lock
    _lock = threading.RLock()
    samplers.sleep_in_child()
