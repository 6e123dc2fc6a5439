"""Timing events of one CUDA device: created in bulk, recorded and read without waiting, used again.

An event is named by its slot, a small integer. ``EventPool`` keeps the slots; ``driver.DriverEvents`` creates and records events through
the CUDA driver, ``TorchEvents`` through torch. Recording happens on the device's current stream, which the user may change at any time, and
never while that stream captures a graph. Reading happens on the thread that recorded.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from inferspan.guard import report

__all__ = ["MOST_EVENTS", "NOTHING", "UNKNOWN", "EventPool", "TorchCuda", "TorchEvents", "torch_cuda", "uses_cuda"]

NOTHING = -1
"""Slot of a boundary that could not be recorded."""
FIRST_EVENTS = 128
MOST_EVENTS = 16_384
"""Events that one device may have for one model; boundaries beyond are not measured."""
FAILURES = 8
"""Refused calls after which a device is left alone."""
UNKNOWN = float("nan")


class TorchCuda(NamedTuple):
    """Functions of torch: handle of a device's current stream, current device, number of devices, whether its stream captures, ..."""

    stream: Callable[[int], int]
    device: Callable[[], int]
    devices: int
    capturing: Callable[[], bool]
    has_context: Callable[[int], bool]
    guard: Callable[[int], Any]


def uses_cuda() -> bool:
    """Whether the program has initialised CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def torch_cuda() -> TorchCuda | None:
    """The functions of the running torch; ``None`` until the program initialises CUDA, which is never done here.

    Raises:
        AttributeError: this torch was built without CUDA, or has other names for them.
    """
    if not uses_cuda():
        return None
    inner: Any = torch._C
    return TorchCuda(
        inner._cuda_getCurrentRawStream,
        inner._cuda_getDevice,
        torch.cuda.device_count(),
        inner._cuda_isCurrentStreamCapturing,
        inner._cuda_hasPrimaryContext,
        torch.cuda.device,
    )


class EventPool:
    """Slots of one device, free and in use; several threads may take from it."""

    def __init__(self, index: int, cuda: TorchCuda) -> None:
        self.index = index
        self.cuda = cuda
        self.events: list[Any] = []
        """By slot."""
        self.handles: list[int] = []
        """By slot, the driver's addresses of its events."""
        self.free: list[int] = []
        self.native: Any = None
        """``NativeEvents`` of the C extension, which record and read these events; ``None`` without the extension."""
        # While events are created, the garbage collector may run a module of the program that is timed.
        self._lock = threading.RLock()
        self._closed = False
        self._failures = 0

    def reserve(self) -> None:
        """Make the first events before they are needed."""
        if not self.events:
            slot = self._grow()
            if slot >= 0:
                self.free.append(slot)

    def release(self, slots: Iterable[int]) -> None:
        """Take back slots that will not be read any more; the device need not have reached them."""
        self.free.extend([slot for slot in slots if slot >= 0])
        if self._closed:
            self._destroy_free()

    def close(self) -> None:
        """Destroy all events; those in use as soon as they are released."""
        self._closed = True
        self._destroy_free()

    def record(self) -> int:
        """Record an event on the device's current stream; its slot, or ``NOTHING``. Raises nothing."""
        raise NotImplementedError

    def seconds(self, begins: Iterable[int], ends: Iterable[int]) -> list[float] | None:
        """Times between pairs of slots; not a number where one is ``NOTHING``.

        Returns:
            One time for each pair, or ``None`` at once if the device has not reached one of them.

        Raises:
            RuntimeError: the driver or torch has refused a call.
        """
        raise NotImplementedError

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around calls of ``seconds``."""
        yield

    def _make(self, count: int) -> list[Any]:
        raise NotImplementedError

    def _destroy(self, events: list[Any]) -> None:
        raise NotImplementedError

    def _grow(self) -> int:
        """Double the number of events; one of the new slots, or ``NOTHING``."""
        with self._lock:
            count = min(max(FIRST_EVENTS, len(self.events)), MOST_EVENTS - len(self.events))
            if count <= 0 or self._closed:
                return NOTHING
            made = self._make(count)
            first = len(self.events)
            # C code reads the handle of a slot, so handles come first.
            self.handles.extend(event.value or 0 for event in made if isinstance(event, ctypes.c_void_p))
            self.events.extend(made)
        self.free.extend(range(first + 1, first + len(made)))
        return first if made else NOTHING

    def _destroy_free(self) -> None:
        slots = []
        # One at a time: another thread may take or release in the same moment.
        while self.free:
            try:
                slots.append(self.free.pop())
            except IndexError:
                break
        self._destroy([self.events[slot] for slot in slots])

    def _failed(self, error: Exception) -> int:
        report("device clock", error)
        self._failures += 1
        if self._failures >= FAILURES:
            self.record = lambda: NOTHING  # type: ignore[method-assign]
            if self.native is not None:
                self.native.enabled = False
        return NOTHING


class TorchEvents(EventPool):
    """Events of torch, which cost more and work wherever ``torch.cuda`` does."""

    def record(self) -> int:
        """Record on the device's current stream; see ``EventPool``."""
        try:
            if self.cuda.capturing():
                return NOTHING
            slot = self.free.pop() if self.free else self._grow()
            if slot >= 0:
                self.events[slot].record(torch.cuda.current_stream(self.index))
            return slot
        except Exception as error:
            return self._failed(error)

    def seconds(self, begins: Iterable[int], ends: Iterable[int]) -> list[float] | None:
        """Times between pairs of slots; see ``EventPool``."""
        found = []
        for begin, end in zip(begins, ends, strict=True):
            if begin < 0 or end < 0:
                found.append(UNKNOWN)
                continue
            first, last = self.events[begin], self.events[end]
            if not (first.query() and last.query()):
                return None
            found.append(first.elapsed_time(last) * 1e-3)
        return found

    def _make(self, count: int) -> list[Any]:
        return [torch.cuda.Event(enable_timing=True) for _ in range(count)]  # type: ignore[no-untyped-call]

    def _destroy(self, events: list[Any]) -> None:
        """They die with the pool."""
