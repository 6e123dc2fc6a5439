"""Device time between two boundaries of a request, by events on its streams; nothing here waits for the device.

The times are elapsed device time, gaps included: the kernels' time if the device is always busy (prefill, large batches), more if it waits
for launches (small decode steps). Boundaries are those of steps, of recorded module calls, and of the request and its phases. They are
read on the model's thread when the loop has waited for the device anyway; boundaries that the device has not reached by the end of the
request are dropped, and their times are unknown. A model on several devices has each boundary on each of them; the longest time counts.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from inferspan.extension import load
from inferspan.guard import contain, pass_on, read_attribute, report

from . import boundaries
from .boundaries import PASS, BoundaryEvents
from .driver import DriverEvents, load_driver
from .events import EventPool, TorchCuda, TorchEvents, torch_cuda, uses_cuda
from .place import first_parameter

__all__ = ["SHARE_DATA_NS", "SHARE_NS", "CallClock", "DeviceClock", "Measured", "cuda_devices"]

SHARE_NS = 3_000
"""Two boundaries less than this apart on the host share an event: no kernel can have been launched through torch in between.

The worst error is work that was launched faster than that: it counts after the two boundaries instead of between them. Without such work,
up to this much idle time of the device is left out.
"""
SHARE_DATA_NS = 40_000
"""The same for boundaries that pass one tensor on: a module whose input is the output of the last module or the input of the enclosing
one, and a module that returns the output of its last submodule. A recorded event costs 3 to 8 us, and this saves half of the boundaries of
a transformer.

The worst error is work on something else, launched between the two in less than this time (eight launches at most): as above.
"""
MOST_DEVICES = 8
READ_AT = 1024
"""Boundaries that are collected before they are read: on an H200 a reading takes 0.1 ms beside 1.5 us for each boundary."""
MOST_WAITING = 1024
"""Passes that may wait for the device; if the loop runs further ahead, the oldest ones are dropped."""
_log = logging.getLogger("inferspan")
_extension: Any = load().module
_native_events = None if _extension is None else _extension.NativeEvents
if TYPE_CHECKING or _extension is None:
    Boundaries = boundaries.Boundaries
else:
    Boundaries = _extension.Boundaries


def cuda_devices(model: nn.Module) -> tuple[int, ...]:
    """Indices of the CUDA devices that a model computes on: those it was spread over, else that of its first parameter."""
    spread = read_attribute(model, "hf_device_map")
    places: set[Any] = set(spread.values()) if isinstance(spread, dict) else set()
    if len(places) < 2:
        parameter = first_parameter(model)
        places = set() if parameter is None else {parameter.device}
    found = set()
    for place in places:
        device = torch.device("cuda", place) if isinstance(place, int) else None if place == "disk" else torch.device(place)
        if device is not None and device.type == "cuda":
            found.add(0 if device.index is None else device.index)
    return tuple(sorted(found))


class Measured:
    """Boundaries of one forward pass, and the times between them once they are read.

    Attributes:
        events: of the boundaries, until they have been read.
        modules: seconds by number of the module call.
        seconds: of the whole pass, once known.
    """

    __slots__ = ("_begin", "_end", "events", "modules", "seconds")

    def __init__(self, events: BoundaryEvents, begin: int, end: int) -> None:
        self.events = events
        self._begin = begin
        self._end = end
        self.modules: dict[int, float] = {}
        self.seconds: float | None = None

    def read(self, pools: Sequence[EventPool]) -> bool:
        """Read the times; false if the device has not reached the last boundary."""
        found = self.events.seconds(pools, self._begin, self._end)
        if found is None:
            return False
        seconds = found.pop(PASS, None)
        # The batch of the pass refers to this object.
        self.modules.update(found)
        if seconds is not None:
            self.seconds = seconds
        return True


class CallClock(Boundaries):
    """The boundaries of one request, on the thread that runs it.

    Args:
        pools: events of each device.
    """

    def __init__(self, pools: Sequence[EventPool]) -> None:
        super().__init__(pools, SHARE_NS, SHARE_DATA_NS, perf_counter_ns)
        self._pools = tuple(pools)
        self._thread = threading.get_ident()
        self._begin = self._end = -1
        self._waiting: deque[Measured] = deque()
        self._boundaries = 0
        self._anchors: list[list[int]] = []
        self._closed = False

    # --------------------------------------------------------------------------------------------------------- boundaries
    def begin(self) -> None:
        """A forward pass begins."""
        self.record()
        self._begin, self._end = self.last, -1

    def end(self) -> None:
        """The forward pass has returned; a second call changes nothing."""
        if self._begin >= 0 > self._end:
            if perf_counter_ns() - self.recorded >= SHARE_NS:
                self.record()
            self._end = self.last

    def anchor(self) -> None:
        """Record a boundary of phases; the first one is the beginning of the first pass, wanted or not."""
        if self._anchors:
            self._anchors.append([pool.record() for pool in self._pools])

    def end_pass(self, *, wanted: bool = True) -> Measured | None:
        """End the pass, to be read when the device is done; ``None`` if nothing was recorded, or it is not wanted."""
        if self.last < 0 or self._closed:
            return None
        if self._begin >= 0 > self._end:
            self.end()
        measured = Measured(self.cut(), self._begin, self._end)
        self._begin = self._end = -1
        if not self._anchors:
            self._anchors.append([measured.events.slots(place)[0] for place in range(len(self._pools))])
        if not wanted:
            self._release(measured)
            return None
        self._waiting.append(measured)
        self._boundaries += measured.events.count
        return measured

    # ------------------------------------------------------------------------------------------------------------ reading
    def read_some(self) -> None:
        """Read if enough boundaries are waiting; called when the loop has waited for the device."""
        if self._boundaries >= READ_AT:
            self.read()

    def read(self, *, leave: int = MOST_WAITING) -> None:
        """Read the passes that the device has finished, oldest first; keep the newest of the others and drop the rest.

        Args:
            leave: unfinished passes that may go on waiting.
        """
        if not self._waiting or threading.get_ident() != self._thread:
            return
        try:
            if not self._pools[0].cuda.capturing():
                with self._pools[0].reading():
                    while self._waiting and self._waiting[0].read(self._pools):
                        self._forget_oldest()
        except Exception as error:
            report("device clock", error)
            leave = 0
        while len(self._waiting) > leave:
            self._forget_oldest()

    def between(self, first: int, second: int) -> float | None:
        """Seconds between two anchors, ``None`` if they are unknown now."""
        if self._closed or max(first, second) >= len(self._anchors) or self._pools[0].cuda.capturing():
            return None
        ends = zip(self._anchors[first], self._anchors[second], strict=True)
        measured = Measured(BoundaryEvents([[*pair] for pair in ends], []), 0, 1)
        with self._pools[0].reading():
            measured.read(self._pools)
        return measured.seconds

    @property
    def anchors(self) -> int:
        """Boundaries of phases so far."""
        return len(self._anchors)

    def close(self) -> None:
        """Give every event back; on another thread than the request's they are kept until the process ends."""
        if self._closed or threading.get_ident() != self._thread:
            return
        self.end_pass()
        while self._waiting:
            self._forget_oldest()
        for anchor in self._anchors:
            for pool, slot in zip(self._pools, anchor, strict=True):
                pool.release((slot,))
        self.abandon()

    def abandon(self) -> None:
        """Record and read nothing from now on, even if a running module call still holds this clock."""
        self._closed = True
        self._pools = ()
        self.forget()
        self._waiting.clear()

    # ---------------------------------------------------------------------------------------------------------- internals
    def _forget_oldest(self) -> None:
        measured = self._waiting.popleft()
        self._boundaries -= measured.events.count
        self._release(measured)
        # Steps hold it for its times.
        del measured.events

    def _release(self, measured: Measured) -> None:
        for place, pool in enumerate(self._pools):
            slots = measured.events.slots(place)
            # The first anchor is where the first pass began.
            pool.release(slots[1:] if self._anchors and slots[:1] == self._anchors[0][place : place + 1] else slots)


class DeviceClock:
    """The events of one instrumented model, kept from request to request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[int, EventPool] = {}
        self._of_parent: dict[int, EventPool] = {}
        self._closed = False
        self._useless = False

    def start(self, model: nn.Module) -> CallClock | None:
        """A clock for a request that begins on this thread; ``None`` if only the host's can be used. Never initialises CUDA."""
        if self._useless or self._closed or not uses_cuda():
            return None
        devices = cuda_devices(model)
        if not 0 < len(devices) <= MOST_DEVICES:
            return None
        try:
            cuda = torch_cuda()
            # A device that nothing has run on yet would be initialised by us.
            if cuda is None or not all(map(cuda.has_context, devices)):
                return None
            with self._lock:
                pools = [self._pools.get(index) or self._open(index, cuda) for index in devices]
                for pool in pools:
                    pool.reserve()
        except Exception as error:
            pass_on(error)
            self._useless = True
            _log.warning("device times cannot be measured (%s); times are the host's", type(error).__name__)
            _log.debug("device times cannot be measured", exc_info=True)
            return None
        return CallClock(pools)

    def _open(self, index: int, cuda: TorchCuda) -> EventPool:
        library = load_driver(cuda.devices)
        pool: EventPool = TorchEvents(index, cuda) if library is None else DriverEvents(index, cuda, library, _native_events)
        self._pools[index] = pool
        return pool

    def close(self) -> None:
        """Give the events back to the driver."""
        self._closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            with contain("device clock"):
                pool.close()

    def forked(self) -> None:
        """Called in a forked child, where CUDA cannot be used: touch none of the parent's events."""
        self._lock = threading.Lock()
        self._of_parent, self._pools = self._pools, {}
