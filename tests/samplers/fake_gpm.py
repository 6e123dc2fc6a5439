"""Counters of units (GPM) and errors of the driver (XID) on top of the fake NVML, in the structures of the real binding.

What a card answers is in ``units``, by the number of a counter; one that is not there is refused. Each sample that is allocated has to be
freed. Events wait in ``xids``.
"""

from __future__ import annotations

from collections import Counter
from ctypes import c_uint
from typing import Any

import pynvml

from tests.samplers.fake_nvml import NOT_SUPPORTED, Card, FakeNvml, NVMLError
from tests.samplers.recorded_nvml import RecordedNvml

__all__ = ["UNITS", "CountingNvml", "CountingRecordedNvml"]

TIMEOUT = 10
UNITS = {2: 80.0, 3: 25.0, 5: 50.0, 11: 0.0, 12: 12.5, 13: 6.25, 4: 3.0, 10: 90.0, 20: 2.0, 21: 4.0, 60: 16.0, 61: 8.0}


class _Counting(FakeNvml):
    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t
    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION
    nvmlEventTypeXidCriticalError = pynvml.nvmlEventTypeXidCriticalError

    def __init__(self, *cards: Any, **options: Any) -> None:
        super().__init__(*cards, **options)
        self.units: dict[int, float] = dict(UNITS)
        self.supported = True
        self.refused: int | None = None
        """Code of the error with which a sample is refused."""
        self.xids: list[int] = []
        self.events_refused: int | None = None
        self.held: Counter[str] = Counter()
        """Samples and sets of events that were made and not freed."""

    def nvmlGpmQueryDeviceSupport(self, card: Card) -> Any:
        self._check(card)
        self.calls["support"] += 1
        return pynvml.c_nvmlGpmSupport_t(version=1, isSupportedDevice=int(self.supported))

    def nvmlGpmSampleAlloc(self) -> Any:
        self._check()
        self.held["sample"] += 1
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleGet(self, card: Card, sample: Any) -> Any:
        self._check(card)
        self.calls["sample"] += 1
        if self.refused is not None:
            raise NVMLError(self.refused)
        return sample

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self._check()
        self.held["sample"] -= 1

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        self._check()
        assert asked.version == 1
        for place in range(asked.numMetrics):
            metric = asked.metrics[place]
            known = metric.metricId in self.units
            metric.nvmlReturn, metric.value = c_uint(0 if known else NOT_SUPPORTED), self.units.get(metric.metricId, 0.0)
        return asked

    def nvmlEventSetCreate(self) -> Any:
        self._check()
        self.held["events"] += 1
        return pynvml.c_nvmlEventSet_t()

    def nvmlDeviceRegisterEvents(self, card: Card, kinds: int, events: Any) -> None:
        self._check(card)
        if self.events_refused is not None:
            raise NVMLError(self.events_refused)
        assert kinds == pynvml.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int) -> Any:
        self._check()
        assert milliseconds == 0
        if not self.xids:
            raise NVMLError(TIMEOUT)
        return pynvml.c_nvmlEventData_t(eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=self.xids.pop(0))

    def nvmlEventSetFree(self, events: Any) -> None:
        self._check()
        self.held["events"] -= 1


class CountingNvml(_Counting):
    """Cards of a test, with counters."""


class CountingRecordedNvml(_Counting, RecordedNvml):
    """Cards that are played back, with counters and an error of the driver."""

    def nvmlDeviceRegisterEvents(self, card: Card, kinds: int, events: Any) -> None:
        """One error for each card, with the XID of a memory error."""
        super().nvmlDeviceRegisterEvents(card, kinds, events)
        self.xids.append(94)
