"""Readings of the machine that are taken more often than metrics are exported -> the session file, each with its own time.

In come the readings of samplers with an interval of their own, on the sampler thread. Out goes a line of OTLP JSON a second at most, with
the names, units and resource of the metrics that the readers export. A metric reader would have to collect and encode every metric of the
process at that interval: 6 ms for the 150 series of a small program, where the readings of a second take 1 to 3 ms.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from inferspan import semconv
from inferspan.attribute_values import exportable_reading
from inferspan.export.files.appending import SessionFile
from inferspan.export.files.json_lines import message_line
from inferspan.export.providers import SETUP
from inferspan.guard import contain
from inferspan.records import Sample
from inferspan.version import version

__all__ = ["ReadingsFile", "readings_file"]

_EVERY = 1.0
"""Seconds between two lines."""
_MOST = 600
"""Readings that are held while the session file is not set up yet."""
_IN_A_LINE = 100

_files: dict[str, ReadingsFile] = {}
_instances: weakref.WeakSet[ReadingsFile] = weakref.WeakSet()


class ReadingsFile:
    """Writes readings to a session file, from the moment on at which that is set up.

    Args:
        path: of the session file, as the setting has it.
        provider: returns the meter provider whose resource the readings have.

    Raises:
        SettingsError: the path cannot be written.
    """

    def __init__(self, path: str, provider: Callable[[], Any]) -> None:
        self._path, self._provider = os.path.abspath(path), provider
        self._file = SessionFile(path)
        self.users = 0
        self.ends: tuple[Callable[[], None], ...] = ()
        self._start_ns = time.time_ns()
        self._forget()
        _instances.add(self)

    def _forget(self) -> None:
        """At first, and in a forked child: what is held there is the parent's, and its lock may be held for ever."""
        self._lock = threading.Lock()
        self._held: deque[tuple[int, Sequence[Sample]]] = deque(maxlen=_MOST)
        self._written_at = time.monotonic()

    def take(self, at_ns: int, samples: Sequence[Sample]) -> None:
        """Take a reading in; writes those of the last second."""
        with self._lock:
            self._held.append((at_ns, samples))
            due = time.monotonic() - self._written_at >= _EVERY
        if due:
            self.flush()

    def flush(self) -> None:
        """Write what is held, if the session file is set up."""
        if not self._is_set_up():
            return
        with self._lock:
            self._written_at = time.monotonic()
            held = list(self._held)
            self._held.clear()
        with contain("session file"):
            for first in range(0, len(held), _IN_A_LINE):
                part = held[first : first + _IN_A_LINE]
                self._file.append(self._line(part), sum(len(samples) for _, samples in part))

    def close(self) -> None:
        """Write what is held and close the file."""
        self.flush()
        self._file.close()

    def _is_set_up(self) -> bool:
        return any(name == self._path or name.startswith(f"{self._path} metrics ") for name in list(SETUP.session_files))

    def _line(self, readings: Sequence[tuple[int, Sequence[Sample]]]) -> str:
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

        points: dict[str, list[NumberDataPoint]] = {}
        for at_ns, samples in readings:
            for sample in samples:
                value = exportable_reading(semconv.METRICS[sample.metric], sample.value)
                if value is not None:
                    point = NumberDataPoint(dict(sample.attributes), self._start_ns, at_ns, value)
                    points.setdefault(sample.metric, []).append(point)
        scope = InstrumentationScope(semconv.SCOPE, version(), semconv.CORE_SCHEMA_URL)
        metrics = [_metric(semconv.METRICS[name], found) for name, found in points.items()]
        data = ResourceMetrics(self._resource(), [ScopeMetrics(scope, metrics, semconv.CORE_SCHEMA_URL)], "")
        return message_line(encode_metrics(MetricsData([data])))

    def _resource(self) -> Any:
        resource = getattr(getattr(self._provider(), "_sdk_config", None), "resource", None)
        if resource is None:
            from inferspan.export.resource import detected_resource

            resource = detected_resource(os.environ)
        return resource


def _metric(metric: semconv.Metric, points: list[NumberDataPoint]) -> Metric:
    data: Gauge | Sum = Gauge(points)
    if metric.instrument != semconv.OBSERVABLE_GAUGE:
        data = Sum(points, AggregationTemporality.CUMULATIVE, metric.instrument == semconv.OBSERVABLE_COUNTER)
    return Metric(metric.name, metric.brief, metric.unit, data)


def readings_file(
    path: str,
    provider: Callable[[], Any],
    follow: Callable[[Callable[[int, Sequence[Sample]], object]], Callable[[], None]],
    flush_first: Callable[[Callable[[], None]], Callable[[], None]],
) -> Callable[[], None]:
    """Write readings to a session file, once for each path however many ask; returns what ends that.

    Args:
        path: of the session file.
        provider: returns the meter provider whose resource the readings have.
        follow: has its argument called with each reading; returns what ends that.
        flush_first: has its argument called before each flush; returns what ends that.

    Raises:
        SettingsError: the path cannot be written.
    """
    key = os.path.abspath(path)
    with SETUP.lock:
        file = _files.get(key)
        if file is None:
            file = _files[key] = ReadingsFile(path, provider)
            file.ends = (follow(file.take), flush_first(file.flush))
        file.users += 1

    def release() -> None:
        with SETUP.lock:
            file.users -= 1
            if file.users:
                return
            if _files.get(key) is file:
                del _files[key]
        for end in file.ends:
            end()
        file.close()

    return release


def _forked() -> None:
    for file in list(_instances):
        file._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
