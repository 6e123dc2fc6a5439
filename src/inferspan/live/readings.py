"""The newest values of the machine's metrics: GPUs, processor and memory of each host, and the number of requests that run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.report.otlp_lines import Value, attributes_of, moment, number, objects, text_of
from inferspan.report.running.machine import Machine, machine_of

__all__ = ["Readings"]

STALE = 90.0
"""Seconds after which a reading is no longer shown: the exporters' default interval and half of it."""
_MOST = 5_000
_WANTED = frozenset({
    semconv.M_ACTIVE,
    semconv.M_GPU_UTILIZATION,
    semconv.M_GPU_MEMORY_USAGE,
    semconv.M_GPU_MEMORY_LIMIT,
    semconv.M_TEMPERATURE,
    semconv.M_POWER,
    semconv.M_SYSTEM_CPU_UTILIZATION,
    semconv.M_SYSTEM_MEMORY_USAGE,
    semconv.M_SYSTEM_MEMORY_LIMIT,
    semconv.M_PROCESS_MEMORY,
})  # fmt: skip
_HOST = ("host.name", "host.id")


class _Reading(NamedTuple):
    at_ns: int
    value: float
    attributes: Mapping[str, Value]
    host: str


class Readings:
    """Keeps the newest point of each series that is shown."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], _Reading] = {}

    def take(self, block: Mapping[str, Any], service: str) -> int:
        """Take in one object of ``resourceMetrics``; returns the time of its newest point, in nanoseconds since the epoch."""
        newest = 0
        holder = block.get("resource")
        resource = attributes_of(holder, {}) if isinstance(holder, dict) else {}
        host = next((str(resource[key]) for key in _HOST if key in resource), "")
        origin = "\0".join(str(resource.get(key, "")) for key in (*_HOST, "service.instance.id", "process.pid")) + service
        for scope in objects(block, "scopeMetrics"):
            for metric in objects(scope, "metrics"):
                name = text_of(metric.get("name"))
                if name not in _WANTED:
                    continue
                for kind in ("gauge", "sum"):
                    data = metric.get(kind)
                    for point in objects(data, "dataPoints") if isinstance(data, dict) else ():
                        newest = max(newest, self._point(name, point, host, origin))
        return newest

    def _point(self, name: str, point: Mapping[str, Any], host: str, origin: str) -> int:
        value = number(point.get("asInt")) if "asInt" in point else number(point.get("asDouble"))
        at = moment(point.get("timeUnixNano"))
        if value is None:
            return 0
        attributes = attributes_of(point, {})
        # What the machine reports is the same from each of its processes.
        of_process = name in (semconv.M_ACTIVE, semconv.M_PROCESS_MEMORY)
        key = (name, origin if of_process else host, repr(sorted((key, str(value)) for key, value in attributes.items())))
        self._found.pop(key, None)
        self._found[key] = _Reading(at, value, attributes, host)
        if len(self._found) > _MOST:
            del self._found[next(iter(self._found))]
        return at

    def _fresh(self, now: float) -> list[tuple[str, _Reading]]:
        return [(key[0], reading) for key, reading in self._found.items() if now - reading.at_ns / 1e9 <= STALE]

    def running(self, now: float) -> int | None:
        """Requests that run in all processes together, at their last export; ``None`` if no process says.

        Args:
            now: seconds since the epoch; older readings than ``STALE`` do not count.
        """
        found = [reading.value for name, reading in self._fresh(now) if name == semconv.M_ACTIVE]
        return max(0, round(sum(found))) if found else None

    def machines(self, now: float) -> tuple[Machine, ...]:
        """The hosts by name, with what they report."""
        by_host: dict[str, list[tuple[str, _Reading]]] = {}
        for name, reading in self._fresh(now):
            by_host.setdefault(reading.host, []).append((name, reading))
        found = [_machine(host, readings) for host, readings in sorted(by_host.items())]
        return tuple(one for one in found if one.cards or one.cpu is not None or one.used is not None)


def _machine(host: str, readings: list[tuple[str, _Reading]]) -> Machine:
    ordered = sorted(readings, key=lambda item: item[1].at_ns)
    return machine_of(host, [(name, reading.value, reading.attributes) for name, reading in ordered])
