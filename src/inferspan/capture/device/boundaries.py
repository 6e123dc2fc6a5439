"""Where on a device's time line the module calls of a pass begin and end: which of their boundaries get an event, and what lies between.

In: entries and exits of recorded module calls, and pools of events. Out: seconds by number of the call. This is the twin, in Python, of
what ``_recorder.c`` has under the same names; ``recorder`` decides which of the two is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch import Tensor

if TYPE_CHECKING:
    from .events import EventPool

__all__ = ["PASS", "Boundaries", "BoundaryEvents"]

PASS = -1
"""Number that stands for the pass itself."""


def _nothing() -> None:
    """Stands for a weak reference where there is no tensor."""


def _longer(one: float, other: float) -> float:
    """The longer of two times; not a number if one of them is not known."""
    return other if one < other or math.isnan(other) else one


class BoundaryEvents:
    """The boundaries of one pass.

    Args:
        lanes: slots of the events, in order, for each device.
        marks: number of a call and its boundary, in turn; the number is inverted where the call ends.
    """

    def __init__(self, lanes: list[list[int]], marks: list[int]) -> None:
        self._lanes = lanes
        self._marks = marks

    @property
    def count(self) -> int:
        """Boundaries with an event on each device."""
        return len(self._lanes[0])

    def lane(self, device: int) -> list[int]:
        """Slots on the device of that place."""
        return self._lanes[device]

    def seconds(self, pools: Sequence[EventPool], begin: int, end: int) -> dict[int, float] | None:
        """Times by number of the call, that of the pass from ``begin`` to ``end`` under ``PASS``; those not known are not in it.

        Returns:
            ``None`` if some device has not come so far.

        Raises:
            RuntimeError: the driver or torch has refused a call.
        """
        calls, begins, ends = self._pairs(begin, end)
        longest: list[float] = []
        for pool, lane in zip(pools, self._lanes, strict=True):
            found = pool.seconds([lane[place] for place in begins], [lane[place] for place in ends])
            if found is None:
                return None
            longest = [*map(_longer, longest, found)] if longest else found
        # Boundaries on two streams that nothing orders can be the wrong way round, and some are missing.
        return {number: value for number, value in zip(calls, longest, strict=True) if value >= 0}

    def _pairs(self, begin: int, end: int) -> tuple[list[int], list[int], list[int]]:
        """Numbers of the calls with their first and last boundary; the pass itself comes first, because it is known last."""
        calls, begins, ends = ([PASS], [begin], [end]) if begin >= 0 else ([], [], [])
        begun: dict[int, int] = {}
        marks = iter(self._marks)
        for number, place in zip(marks, marks, strict=True):
            if number >= 0:
                begun[number] = place
            elif (start := begun.pop(~number, None)) is not None:
                calls.append(~number)
                begins.append(start)
                ends.append(place)
        return calls, begins, ends


class Boundaries:
    """The boundaries of the running pass.

    Args:
        pools: events of each device.
        share_ns: two boundaries less than this apart on the host share an event.
        share_data_ns: the same for two that pass one tensor on.
        clock: the host's clock, in nanoseconds.

    Attributes:
        last: the newest boundary, -1 before the first.
        recorded: host time when it had been recorded.
    """

    def __init__(self, pools: Sequence[EventPool], share_ns: int, share_data_ns: int, clock: Callable[[], int]) -> None:
        self._events = tuple(pools)
        self._share_ns, self._share_data_ns, self._now = share_ns, share_data_ns, clock
        self._renew()

    def _renew(self) -> None:
        self.last, self.recorded = -1, 0
        self._lanes: list[list[int]] = [[] for _ in self._events]
        self._marks: list[int] = []
        self._taken: list[Callable[[], Any]] = [_nothing]
        """Weak references to what the open module calls took, innermost last; of modules without submodules none."""
        self._given: Callable[[], Any] = _nothing
        """Weak reference to what the last module call gave, if nothing was entered since."""

    def enter(self, number: int, taken: Any = None, now: int = 0, *, inner: bool = True) -> None:
        """A recorded module call begins.

        Args:
            number: of the call.
            taken: its first input.
            now: reading of the host's clock, if there is one that is less than a microsecond old.
            inner: whether the module has submodules.
        """
        apart = (now or self._now()) - self.recorded
        if apart >= self._share_ns and (
            apart >= self._share_data_ns or type(taken) is not Tensor or (self._given() is not taken and self._taken[-1]() is not taken)
        ):
            self.record()
        self._given = _nothing
        if inner:
            self._taken.append(ref(taken) if type(taken) is Tensor else _nothing)
        self._marks += (number, self.last)

    def leave(self, number: int, given: Any = None, now: int = 0, *, inner: bool = True) -> None:
        """A recorded module call has returned ``given``; the rest is as for ``enter``."""
        apart = (now or self._now()) - self.recorded
        if type(given) is tuple and given:
            given = given[0]
        # Without a submodule since it was entered, a module that returns what it took has changed it in place.
        if apart >= self._share_ns and (apart >= self._share_data_ns or given is None or self._given() is not given):
            self.record()
        self._given = ref(given) if type(given) is Tensor else _nothing
        if inner and len(self._taken) > 1:
            self._taken.pop()
        self._marks += (~number, self.last)

    def record(self) -> None:
        """Record an event on every device: a boundary."""
        for pool, lane in zip(self._events, self._lanes, strict=True):
            lane.append(pool.record())
        self.last += 1
        self.recorded = self._now()

    def cut(self) -> BoundaryEvents:
        """The boundaries so far; what comes belongs to another pass."""
        marks = BoundaryEvents(self._lanes, self._marks)
        self._renew()
        return marks

    def forget(self) -> None:
        """Record nothing from now on."""
        self._events = ()
        self._renew()
