"""What limits a phase, step or module, from its work, its time and the ceilings of the device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from inferspan import semconv
from inferspan.records import Profiled

from .model import Work
from .peaks import Peaks

__all__ = ["LARGER_PART", "Rates", "Times", "copies_of", "rates_of", "waits_of"]

LARGER_PART = 0.5
"""Share of the time from which copies or waiting limit it."""
FAR_BELOW = 0.5
"""Share of the nearer roof below which kernels are not what takes the time, if the host is as slow as the device."""
NEVER_KERNELS = 0.05
"""Hardly a kernel is so far from both roofs: something else takes the time, launches where the host is not known."""
HOST_SETS_THE_PACE = 0.8
"""Time on the host / time on the device from which the device waits for launches: where kernels take the time, the host runs ahead."""
PLAUSIBLE_ON_HOST = 0.1
"""Share of the nearer roof from which it is said to limit a device that works while the host waits for it, such as a CPU."""
_WAITS = frozenset({"aten::_local_scalar_dense", "aten::item", "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"})
"""Operations and calls that wait for the device."""


class Times(NamedTuple):
    """What is known of the time of some work, in seconds; ``None`` is not known.

    Attributes:
        elapsed: from its begin to its end, on the device where that is known.
        host: that the host took to launch it.
        kernels: of the kernels alone, as a profiler has measured them.
        copies: of copies between memories.
        waits: for which the host waited for the device in the middle of it.
        asynchronous: whether the device works while the host goes on.
    """

    elapsed: float
    host: float | None = None
    kernels: float | None = None
    copies: float | None = None
    waits: float | None = None
    asynchronous: bool = False


class Rates(NamedTuple):
    """How near some work came to the ceilings; ``None`` where a ceiling is not known.

    Attributes:
        share: achieved rate / ceiling of the nearer roof, at most 1.
        flops: achieved FLOP/s / peak.
        bandwidth: achieved bytes a second / peak.
        bound: what limits it.
    """

    share: float | None
    flops: float | None
    bandwidth: float | None
    bound: str | None


def rates_of(work: Work, times: Times, peaks: Peaks | None) -> Rates:
    """How near the work came to the ceilings, and what limits it.

    The nearer roof is the one that takes the longer time at its ceiling. Above 1, which caches of the device make possible, the share
    is 1.
    """
    elapsed = times.elapsed
    if elapsed <= 0:
        return Rates(None, None, None, None)
    flops = bandwidth = None
    if peaks is not None:
        flops = None if not peaks.flops else work.flops / peaks.flops / elapsed
        bandwidth = None if not peaks.bandwidth else work.bytes / peaks.bandwidth / elapsed
    known = None if flops is None or bandwidth is None else max(flops, bandwidth)
    share = None if known is None else min(1.0, known)
    return Rates(share, flops, bandwidth, _bound(times, flops, bandwidth))


def _bound(times: Times, flops: float | None, bandwidth: float | None) -> str | None:
    elapsed = times.elapsed
    if times.copies is not None and times.copies > LARGER_PART * elapsed:
        return semconv.BOUND_TRANSFER
    if times.waits is not None and times.waits > LARGER_PART * elapsed:
        return semconv.BOUND_SYNC
    if times.asynchronous and times.kernels is not None and times.kernels < FAR_BELOW * elapsed:
        return semconv.BOUND_LAUNCH
    if flops is None or bandwidth is None:
        return None
    share, nearer = max(flops, bandwidth), semconv.BOUND_COMPUTE if flops >= bandwidth else semconv.BOUND_MEMORY
    if not times.asynchronous:
        return nearer if share >= PLAUSIBLE_ON_HOST else None
    if times.kernels is None:
        if times.host is None:
            return semconv.BOUND_LAUNCH if share < NEVER_KERNELS else nearer
        if share < FAR_BELOW and times.host >= HOST_SETS_THE_PACE * elapsed:
            return semconv.BOUND_LAUNCH
    # A kernel that waits for another rank, for instance: the host is ahead, and the device is busy.
    return nearer if share >= NEVER_KERNELS else None


def copies_of(profiled: Iterable[Profiled]) -> float:
    """Seconds of copies among the rows of a profiler window."""
    return math.fsum((row.end - row.start) / 1e9 for row in profiled if row.attributes.get(semconv.PROFILER_KIND) == "memcpy")


def waits_of(profiled: Iterable[Profiled]) -> float:
    """Seconds in which operations among the rows of a profiler window waited for the device."""
    return math.fsum((row.end - row.start) / 1e9 for row in profiled if row.name in _WAITS)
