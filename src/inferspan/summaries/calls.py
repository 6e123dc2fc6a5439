"""Module calls of one pass -> figures of one recording; those that the C extension has recorded are added up in C.

In Python a call takes 1.3 us, and 4 us between two steps of a large model, where nothing of ours is in the caches: a core for every
250,000 calls a second, with the interpreter's lock that the model's thread waits for. In C it takes a tenth. What was added up there is
taken over whenever somebody reads the recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from inferspan.analysis.quantiles import EXACT, GROWTH, SMALLEST
from inferspan.records import ModuleBatch, ModuleInfo

__all__ = ["Added", "CallSums", "ModuleSums"]


class ModuleSums(NamedTuple):
    """What calls of one module come to, in the layout of the C extension.

    Attributes:
        module: its facts.
        backward: whether these are backward calls.
        first: number of the first call.
        last: how many calls of all modules were added until the last one.
        calls: how many there were.
        inputs, outputs: described tensors of the last call.
        timed: calls that ended no earlier than they began; the figures below are of these.
        measured: calls with a time on the device.
        host: seconds by the host's clock.
        device: seconds on the device, and by the host's clock for a call that was not measured.
        inside, device_inside: the same of calls directly inside.
        least, greatest: the shortest and the longest call, by the device where it was measured.
        values, zeros, buckets: of durations, as ``Quantiles.join`` takes them.
    """

    module: ModuleInfo
    backward: bool
    first: int
    last: int
    calls: int
    inputs: Any
    outputs: Any
    timed: int
    measured: int
    host: float
    device: float
    inside: float
    device_inside: float
    least: float
    greatest: float
    values: bytes
    zeros: int
    buckets: Mapping[int, int] | None


class Added(NamedTuple):
    """What adding a pass has come to.

    Attributes:
        timed: calls with a duration.
        seconds: of those that lie directly under the pass, by the host's clock.
        device_seconds: the same by the device's, where it was measured.
        looked: places of calls with statistics.
    """

    timed: int
    seconds: float
    device_seconds: float
    looked: Sequence[int]


class CallSums:
    """Adds up calls that the C extension has recorded."""

    def __init__(self) -> None:
        self._figures: Any = None

    def __len__(self) -> int:
        return 0 if self._figures is None else len(self._figures)

    def add(self, batch: ModuleBatch, *, backward: bool) -> Added | None:
        """Add the calls of a pass; ``None`` if they have to be added one by one, and none was."""
        calls: Any = batch.calls
        if self._figures is None:
            make = getattr(calls, "figures", None)
            if make is None:
                return None
            self._figures = make(EXACT, GROWTH, SMALLEST)
        elif not hasattr(calls, "figures"):
            return None
        added = self._figures.add(calls, batch.device or None, backward)
        return None if added is None else Added(*added)

    def take(self) -> list[ModuleSums]:
        """The sums since the last time."""
        return [] if self._figures is None else [ModuleSums(*row) for row in self._figures.take()]
