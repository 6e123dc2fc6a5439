"""The wall clock that all our spans share: the monotonic clock, and what is added to it.

Spans begin and end at readings of the monotonic clock. Were the difference of the two clocks read for each span, a pause of the thread
between the two readings would move that span, and one inside another would stick out of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from time import perf_counter_ns, time_ns

__all__ = ["Clock", "offset"]

_NEAR_NS = max(100_000, int(2e9 * time.get_clock_info("time").resolution))
"""Readings whose difference is this near to the known one change nothing; further away, the wall clock was set or has drifted."""
_PAIR_NS = 2_000
"""Two readings of the monotonic clock that are this near have had no pause between them."""
_MOST_READINGS = 8


class Clock:
    """The difference of the two clocks, which stays the same until the wall clock is set.

    Args:
        monotonic: nanoseconds of a clock that only rises.
        epoch: nanoseconds since the epoch.
    """

    def __init__(self, monotonic: Callable[[], int] = perf_counter_ns, epoch: Callable[[], int] = time_ns) -> None:
        self._monotonic, self._epoch = monotonic, epoch
        self._known: int | None = None

    def offset(self) -> int:
        """What is added to a reading of the monotonic clock, for nanoseconds since the epoch."""
        known = self._known
        if known is not None and -_NEAR_NS < self._epoch() - self._monotonic() - known < _NEAR_NS:
            return known
        measured = self._measured()
        if known is None or not -_NEAR_NS < measured - known < _NEAR_NS:
            self._known = known = measured
        return known

    def _measured(self) -> int:
        """The difference from the reading of the wall clock that took the least time."""
        least: int | None = None
        found = 0
        for _ in range(_MOST_READINGS):
            before, wall, after = self._monotonic(), self._epoch(), self._monotonic()
            if least is None or after - before < least:
                least, found = after - before, wall - (before + after) // 2
            if least <= _PAIR_NS:
                break
        return found


offset = Clock().offset
"""That of this process."""
