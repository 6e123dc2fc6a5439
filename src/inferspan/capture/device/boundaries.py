"""Boundaries of module calls on a device's time line: which entries and exits get an event, and the times between them.

In: entries and exits of recorded module calls, and pools of events. Out: seconds by number of the call. The C extension has classes of the
same names; ``clock`` chooses between the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from torch import Tensor

from .events import EventPool

__all__ = ["PASS", "Boundaries", "BoundaryEvents"]

PASS = -1
"""Number of the pass itself."""


def _nothing() -> None:
    """Replaces a weak reference if there is no tensor."""


def _longer(one: float, other: float) -> float:
    """The longer of two times; not a number if one of them is unknown."""
    return other if one < other or math.isnan(other) else one


class BoundaryEvents:
    """The boundaries of one pass.

    Args:
        slots: of the events, in order, for each device.
        edges: number of a call and the index of its boundary, in turn; the number is inverted if it is the exit of the call.
    """

    def __init__(self, slots: list[list[int]], edges: list[int]) -> None:
        self._slots = slots
        self._edges = edges

    @property
    def count(self) -> int:
        """Boundaries with an event on each device."""
        return len(self._slots[0])

    def slots(self, device: int) -> list[int]:
        """Slots of the events on the device of that index."""
        return self._slots[device]

    def seconds(self, pools: Sequence[EventPool], begin: int, end: int) -> dict[int, float] | None:
        """Times by number of the call, that of the pass from ``begin`` to ``end`` under ``PASS``, without those that are unknown.

        Returns:
            ``None`` if some device has not reached the last boundary.

        Raises:
            RuntimeError: the driver or torch refused a call.
        """
        calls, begins, ends = self._pairs(begin, end)
        longest: list[float] = []
        for pool, slots in zip(pools, self._slots, strict=True):
            found = pool.seconds([slots[place] for place in begins], [slots[place] for place in ends])
            if found is None:
                return None
            longest = [*map(_longer, longest, found)] if longest else found
        # Boundaries on two streams without an order between them can be reversed, and some are missing.
        return {number: value for number, value in zip(calls, longest, strict=True) if value >= 0}

    def _pairs(self, begin: int, end: int) -> tuple[list[int], list[int], list[int]]:
        """Numbers of the calls with their first and last boundary; the pass itself comes first, because its end is reached last."""
        calls, begins, ends = ([PASS], [begin], [end]) if begin >= 0 else ([], [], [])
        begun: dict[int, int] = {}
        edges = iter(self._edges)
        for number, place in zip(edges, edges, strict=True):
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
        self._pools = tuple(pools)
        self._share_ns, self._share_data_ns, self._now = share_ns, share_data_ns, clock
        self._renew()

    def _renew(self) -> None:
        self.last, self.recorded = -1, 0
        self._slots: list[list[int]] = [[] for _ in self._pools]
        self._edges: list[int] = []
        self._inputs: list[Callable[[], Any]] = [_nothing]
        """Weak references to the inputs of open calls of modules with submodules, innermost last."""
        self._output: Callable[[], Any] = _nothing
        """Weak reference to the output of the last call, if no call has begun since."""

    def enter(self, number: int, input: Any = None, now: int = 0, *, inner: bool = True) -> None:
        """A recorded module call begins.

        Args:
            number: of the call.
            input: its first input.
            now: reading of the host's clock that is less than a microsecond old, 0 without one.
            inner: whether the module has submodules.
        """
        apart = (now or self._now()) - self.recorded
        if apart >= self._share_ns and (
            apart >= self._share_data_ns or type(input) is not Tensor or (self._output() is not input and self._inputs[-1]() is not input)
        ):
            self.record()
        self._output = _nothing
        if inner:
            self._inputs.append(ref(input) if type(input) is Tensor else _nothing)
        self._edges += (number, self.last)

    def leave(self, number: int, output: Any = None, now: int = 0, *, inner: bool = True) -> None:
        """A recorded module call has returned ``output``; the other arguments are those of ``enter``."""
        apart = (now or self._now()) - self.recorded
        if type(output) is tuple and output:
            output = output[0]
        # A module that returns its input without having called a submodule has changed it in place.
        if apart >= self._share_ns and (apart >= self._share_data_ns or output is None or self._output() is not output):
            self.record()
        self._output = ref(output) if type(output) is Tensor else _nothing
        if inner and len(self._inputs) > 1:
            self._inputs.pop()
        self._edges += (~number, self.last)

    def record(self) -> None:
        """Record an event on every device: a boundary."""
        for pool, slots in zip(self._pools, self._slots, strict=True):
            slots.append(pool.record())
        self.last += 1
        self.recorded = self._now()

    def cut(self) -> BoundaryEvents:
        """The boundaries so far; later ones belong to the next pass."""
        events = BoundaryEvents(self._slots, self._edges)
        self._renew()
        return events

    def forget(self) -> None:
        """Record nothing from now on."""
        self._pools = ()
        self._renew()
