"""How busy the units of an NVIDIA GPU were, from counters of Hopper and later cards (GPM), and errors that its driver reports (XID).

In: a module like ``pynvml`` and a card. Out: samples. A reading of the counters is the mean between two samples of the sampler thread, so
the first round has none. A card, driver, binding or container that lacks them or refuses them is asked once; ``inferspan doctor`` says why.
On MIG instances and cards that are split nothing is asked: queries of memory are reported to fail after it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from inferspan import semconv as s

from .nvml_rows import is_unsupported

__all__ = ["UNITS", "DriverErrors", "UnitCounters"]

TIMEOUT = 10
"""Error code of an event that has not come."""
MOST_EVENTS = 64
"""Events that are taken in one round."""
LEAST_SECONDS = 0.1
"""NVML asks for at least so much time between two samples."""
_PERCENT, _MIB = 1 / 100, 2**20


class Unit(NamedTuple):
    """One counter: the number that NVML has for it, and what brings it to the metric's unit."""

    number: int
    metric: str
    times: float
    attributes: Mapping[str, str] = {}


UNITS = (
    Unit(2, s.M_SM_ACTIVE, _PERCENT),
    Unit(3, s.M_SM_OCCUPANCY, _PERCENT),
    Unit(5, s.M_PIPE_ACTIVE, _PERCENT, {s.PIPE_NAME: "tensor"}),
    Unit(11, s.M_PIPE_ACTIVE, _PERCENT, {s.PIPE_NAME: "fp64"}),
    Unit(12, s.M_PIPE_ACTIVE, _PERCENT, {s.PIPE_NAME: "fp32"}),
    Unit(13, s.M_PIPE_ACTIVE, _PERCENT, {s.PIPE_NAME: "fp16"}),
    Unit(4, s.M_PIPE_ACTIVE, _PERCENT, {s.PIPE_NAME: "integer"}),
    Unit(10, s.M_DRAM_ACTIVE, _PERCENT),
    Unit(20, s.M_PCIE_BANDWIDTH, _MIB, {s.PCIE_DIRECTION: "transmit"}),
    Unit(21, s.M_PCIE_BANDWIDTH, _MIB, {s.PCIE_DIRECTION: "receive"}),
    Unit(61, s.M_NVLINK_BANDWIDTH, _MIB, {s.NETWORK_IO_DIRECTION: "transmit"}),
    Unit(60, s.M_NVLINK_BANDWIDTH, _MIB, {s.NETWORK_IO_DIRECTION: "receive"}),
)
"""Every counter that is read."""
Reading = tuple[str, float, Mapping[str, str]]
"""Metric, value, attributes."""


class UnitCounters:
    """The counters of one card.

    Args:
        library: a module like ``pynvml``.
        handle: of the card.
        metrics: those to read.
        clock: monotonic seconds.
    """

    def __init__(self, library: Any, handle: Any, metrics: Collection[str], clock: Callable[[], float]) -> None:
        self._library, self._handle, self._clock = library, handle, clock
        self._wanted = [unit for unit in UNITS if unit.metric in metrics]
        self._possible: bool | None = None if self._wanted else False
        self._before: tuple[Any, float] | None = None

    def read(self) -> list[Reading]:
        """Means since the last call; raises what NVML raises, except where it means that there are no counters here."""
        if self._possible is False or (self._before is not None and self._clock() - self._before[1] < LEAST_SECONDS):
            return []
        try:
            if self._possible is None:
                self._possible = bool(self._library.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
                if not self._possible:
                    return []
            return self._since_last()
        except Exception as error:
            if not is_unsupported(error):
                raise
            self._possible = False
            return []

    def _since_last(self) -> list[Reading]:
        library = self._library
        taken = library.nvmlGpmSampleAlloc()
        try:
            library.nvmlGpmSampleGet(self._handle, taken)
        except BaseException:
            library.nvmlGpmSampleFree(taken)
            raise
        before, self._before = self._before, (taken, self._clock())
        if before is None:
            return []
        try:
            return list(self._between(before[0], taken))
        finally:
            library.nvmlGpmSampleFree(before[0])

    def _between(self, first: Any, last: Any) -> Iterator[Reading]:
        asked = self._library.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = self._library.NVML_GPM_METRICS_GET_VERSION, len(self._wanted)
        asked.sample1, asked.sample2 = first, last
        for place, unit in enumerate(self._wanted):
            asked.metrics[place].metricId = unit.number
        self._library.nvmlGpmMetricsGet(asked)
        for place, unit in enumerate(self._wanted):
            found = asked.metrics[place]
            # A card without NVLink, or one that has no such pipe, answers for the others.
            if found.nvmlReturn == 0 and math.isfinite(found.value) and found.value >= 0:
                yield unit.metric, found.value * unit.times, unit.attributes

    def close(self) -> None:
        """Free what is held; NVML has to be initialised still."""
        before, self._before = self._before, None
        if before is not None:
            self._library.nvmlGpmSampleFree(before[0])


class DriverErrors:
    """Errors of one card by their XID, counted from the first reading on.

    Args:
        library: a module like ``pynvml``.
        handle: of the card.
        counts: earlier ones of the same card.
    """

    def __init__(self, library: Any, handle: Any, counts: Counter[int]) -> None:
        self._library, self._handle, self._counts = library, handle, counts
        self._possible: bool | None = None
        self._events: Any = None

    def read(self) -> list[Reading]:
        """Counts by XID, of those that have occurred; raises as ``UnitCounters.read`` does."""
        try:
            if self._possible is None:
                self._events = self._library.nvmlEventSetCreate()
                self._library.nvmlDeviceRegisterEvents(self._handle, self._library.nvmlEventTypeXidCriticalError, self._events)
                self._possible = True
            if self._possible:
                self._take()
        except Exception as error:
            unsupported = is_unsupported(error)
            if unsupported or not self._possible:
                self.close()  # the next reading makes another set
            if not unsupported:
                raise
            self._possible = False
        return [(s.M_XID_ERRORS, count, {s.XID: str(number)}) for number, count in sorted(self._counts.items())]

    def _take(self) -> None:
        for _ in range(MOST_EVENTS):
            try:
                event = self._library.nvmlEventSetWait_v2(self._events, 0)
            except Exception as error:
                if getattr(error, "value", None) == TIMEOUT:
                    return
                raise
            if event.eventType == self._library.nvmlEventTypeXidCriticalError:
                self._counts[int(event.eventData)] += 1

    def close(self) -> None:
        """Give the set of events back; NVML has to be initialised still."""
        events, self._events = self._events, None
        if events is not None:
            self._library.nvmlEventSetFree(events)
