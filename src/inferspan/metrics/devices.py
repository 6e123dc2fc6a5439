"""Readings of the samplers as OpenTelemetry observable instruments, one for every row of ``semconv.DEVICE_METRICS``.

``Sample``s come in through a function that the caller hands over; observations go out when a metric reader collects. Values
that no backend can store are left out. Counters go on where their source begins again at zero. A callback never raises.
Instruments cannot be unregistered, so there is to be one ``DeviceMetrics`` per meter provider for the provider's life: ``close``
silences it, ``reopen`` gives it a new source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from inferspan import guard, semconv
from inferspan.attribute_values import exportable_reading
from inferspan.records import Sample

__all__ = ["DeviceMetrics"]

_Read = Callable[[], Sequence[Sample]]

_LONGEST_COLLECTION = 1.0
_numbers = count(1)


class _Collection:
    """The readings of one collection. A new source means a new object, so another thread may bring one at any moment."""

    __slots__ = ("number", "read", "samples", "served", "taken")

    def __init__(self, read: _Read, taken: float) -> None:
        self.number = next(_numbers)
        self.read = read
        self.taken = taken
        self.served: set[str] = set()
        self.samples: dict[str, list[Sample]] = {}


class DeviceMetrics:
    """The observable instruments of one meter provider.

    Args:
        source: a meter provider, or a meter.
        read: returns the newest readings; called once per collection.
        version: version of our scope, if ``source`` is a provider.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        source: MeterProvider | Meter,
        read: _Read,
        *,
        version: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read: _Read | None = read
        self._clock = clock
        self._collection: _Collection | None = None
        self._counters: dict[tuple[str, Any], tuple[int, float, float]] = {}
        """Of each series of a counter: the latest collection, its value, and what the sources before counted."""
        with guard.contain("device_metrics.meter"):
            meter: Any = source
            if not hasattr(meter, "create_observable_gauge"):
                meter = meter.get_meter(semconv.SCOPE, version, schema_url=semconv.CORE_SCHEMA_URL)
            for name in semconv.DEVICE_METRICS:
                with guard.contain("device_metrics.instrument"):
                    self._create(meter, semconv.METRICS[name])

    def close(self) -> None:
        """Release the source; the instruments stay and report nothing."""
        self._read = self._collection = None

    def reopen(self, read: _Read) -> None:
        """Report from a new source."""
        self._read = read

    def begin_at_zero(self) -> None:
        """Forget what counters have counted, for a forked child."""
        self._counters.clear()

    def _create(self, meter: Meter, metric: semconv.Metric) -> None:
        create = {
            semconv.OBSERVABLE_GAUGE: meter.create_observable_gauge,
            semconv.OBSERVABLE_COUNTER: meter.create_observable_counter,
            semconv.OBSERVABLE_UP_DOWN_COUNTER: meter.create_observable_up_down_counter,
        }[metric.instrument]
        create(metric.name, callbacks=[self._callback(metric)], unit=metric.unit, description=metric.brief)

    def _callback(self, metric: semconv.Metric) -> Callable[[CallbackOptions], list[Observation]]:
        counts = metric.instrument == semconv.OBSERVABLE_COUNTER

        def observe(options: CallbackOptions) -> list[Observation]:
            found: list[Observation] = []
            with guard.contain("device_metrics.callback"):
                collection = self._collected(metric.name)
                if collection is None:
                    return found
                for sample in collection.samples.get(metric.name, ()):
                    value = exportable_reading(metric, sample.value)
                    if value is not None:
                        found.append(Observation(self._total(collection.number, sample, value) if counts else value, sample.attributes))
            return found

        return observe

    def _total(self, collection: int, sample: Sample, value: float) -> float:
        """The value of a counter with what was counted before its source began again: samplers do when a model is instrumented anew."""
        series = sample.metric, frozenset(sample.attributes.items())
        known, last, before = self._counters.get(series, (0, 0, 0))
        if collection < known:
            return before + last  # another reader has collected meanwhile
        if value < last:
            before += last
        self._counters[series] = collection, value, before
        return before + value

    def _collected(self, metric: str) -> _Collection | None:
        """The readings of a metric; one that is asked for again is the sign of the next collection, which reads anew."""
        read, collection = self._read, self._collection
        if read is None:
            return None
        if (
            collection is None
            or collection.read is not read
            or metric in collection.served
            or self._clock() - collection.taken > _LONGEST_COLLECTION
        ):
            # Kept before it is filled, so that a source that raises is asked once per collection as well.
            collection = self._collection = _Collection(read, self._clock())
            for sample in read():
                collection.samples.setdefault(sample.metric, []).append(sample)
            collection.taken = self._clock()
        collection.served.add(metric)
        return collection
