"""When one sampler is read, how thoroughly, and its newest readings.

A sampler without an interval of its own follows the common one and answers readers at once. One with its own is read on its beat alone;
below one second only its cheap readings are taken each time, the others keep the common interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from inferspan.records import Sample, Sampler

__all__ = ["Beat", "Reading"]

_SHORT = 1.0
"""Seconds below which an interval has cheap readings."""


@runtime_checkable
class _Cheap(Protocol):
    """A sampler that can take its cheap readings without the others."""

    def collect_cheap(self) -> Sequence[Sample]:
        """Readings of one round."""


class Reading(NamedTuple):
    """Samples, and the monotonic time in seconds when their reading began."""

    taken: float
    samples: Sequence[Sample]


class Beat:
    """The beat of one sampler.

    Args:
        name: of the sampler.
        sampler: what is read.
        common: seconds between two rounds of samplers without an interval of their own.
        own: seconds between two readings of this one.
    """

    def __init__(self, name: str, sampler: Sampler, *, common: float, own: float | None = None) -> None:
        self.name, self.sampler = name, sampler
        self.paced = own is not None
        self.interval = common if own is None else own
        self._whole_interval = max(common, self.interval) if self.interval < _SHORT else self.interval
        self.due_at = float("-inf")
        self._whole_at = float("-inf")
        self._is_cheap = False
        self._whole: Reading | None = None
        self._cheap: Reading | None = None

    def collect(self, now: float) -> Reading:
        """Read it; raises what the sampler raises."""
        self._is_cheap = self.interval < _SHORT and now < self._whole_at and isinstance(self.sampler, _Cheap)
        if self._is_cheap and isinstance(self.sampler, _Cheap):
            return Reading(now, list(self.sampler.collect_cheap()))
        self._whole_at = now + self._whole_interval
        return Reading(now, list(self.sampler.collect()))

    def publish(self, reading: Reading) -> None:
        """Keep the newest readings: those of a reading that failed are absent."""
        if not self._is_cheap:
            self._whole, self._cheap = reading, None
            return
        if self._cheap is not None and len(reading.samples) < len(self._cheap.samples):
            self._whole_at = float("-inf")  # something is gone: all is looked at again
        self._cheap = reading

    def recent(self, now: float) -> list[Reading]:
        """Readings that are at most two intervals old, each series once."""
        whole = self._whole if self._whole is not None and self._whole.taken >= now - 2 * self._whole_interval else None
        cheap = self._cheap if self._cheap is not None and self._cheap.taken >= now - 2 * max(self.interval, _SHORT) else None
        if cheap is None or whole is None:
            return [reading for reading in (cheap, whole) if reading is not None]
        newer = {_series(sample) for sample in cheap.samples}
        return [cheap, whole._replace(samples=[sample for sample in whole.samples if _series(sample) not in newer])]


def _series(sample: Sample) -> tuple[object, ...]:
    return (sample.metric, *sorted((key, str(value)) for key, value in sample.attributes.items()))
