"""Timing events of one CUDA device: made in bulk, recorded and read without waiting for anything, used again.

Events go through the driver's library, which costs a fifth of what ``torch.cuda.Event.record()`` does; where that library cannot be
loaded (ROCm) they are torch's. An event is named by its slot, a small integer. Recording happens on the device's current stream,
which the user may change at any time, and never while that stream captures a graph. Reading happens on the thread that recorded.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from inferspan.capture.modules.recorder import driver_events
from inferspan.guard import report

__all__ = [
    "MOST_EVENTS",
    "NOTHING",
    "DriverError",
    "DriverEvents",
    "EventPool",
    "TorchCuda",
    "TorchEvents",
    "leave_captures_alone",
    "load_driver",
    "torch_cuda",
]

NOTHING = -1
"""Slot of a boundary that could not be recorded."""
FIRST_EVENTS = 128
MOST_EVENTS = 16_384
"""Events that one device may have for one model; boundaries beyond are not measured."""
MOST_STREAMS = 256
FAILURES = 8
"""Refused calls after which a device is left alone."""
NOT_READY = 600
UNKNOWN = float("nan")
RELAXED = 2
TIMING = 0

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

_log = logging.getLogger("inferspan")


class DriverError(RuntimeError):
    """The driver has refused a call; the text names the call and the driver's number for the reason."""


class TorchCuda(NamedTuple):
    """What is asked of torch: handle of a device's current stream, current device, number of devices, whether its stream captures, ..."""

    stream: Callable[[int], int]
    device: Callable[[], int]
    devices: int
    capturing: Callable[[], bool]
    has_context: Callable[[int], bool]
    guard: Callable[[int], Any]


def torch_cuda() -> TorchCuda | None:
    """The functions of the running torch; ``None`` as long as the program has not begun to use CUDA, which we never do for it.

    Raises:
        AttributeError: this torch was built without CUDA, or has other names for them.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
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


def load_driver(devices: int) -> Any:
    """The driver's library as ctypes sees it, or ``None`` where there is none (ROCm has other names, and torch's events work).

    With several ``devices`` its functions give the interpreter away while they run: one that waits for room in a device's queue would
    else keep those out that could make room, by launching what another device waits for. With one they keep it, as torch's do.
    """
    if torch.version.hip is not None:
        return None
    try:
        kind = ctypes.CDLL if devices > 1 else ctypes.PyDLL
        library = kind(_LIBRARY)
        for name in _FUNCTIONS:
            getattr(library, name)
    except (OSError, AttributeError) as error:
        _log.info("device times are measured with torch's events: the CUDA driver's library cannot be used (%s)", type(error).__name__)
        return None
    return library


_FUNCTIONS = (
    "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventElapsedTime", "cuCtxGetCurrent", "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2", "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode",
)  # fmt: skip


def leave_captures_alone() -> None:
    """Let the calling thread allocate and load code while another captures a graph; CUDA would end the capture with an error.

    Raises:
        OSError: there is no CUDA driver.
        RuntimeError: the driver refuses.
    """
    driver = ctypes.CDLL(_LIBRARY)
    status = driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(RELAXED)))
    if status:
        raise RuntimeError(f"cuThreadExchangeStreamCaptureMode: {status}")


def _address(function: Any) -> int:
    """Where a function of the driver's library lies in memory; 0 if it is none of C."""
    try:
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    except (ctypes.ArgumentError, TypeError):
        return 0


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
        self.fast: Any = None
        """What records and reads in C, where that can be."""
        # The garbage collector may run a module of the program's that is timed, while events are made.
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
        """Take slots back that nobody will read any more; the device need not have reached them."""
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
        """Make as many events again as there are; one of the new slots, or ``NOTHING``."""
        with self._lock:
            count = min(max(FIRST_EVENTS, len(self.events)), MOST_EVENTS - len(self.events))
            if count <= 0 or self._closed:
                return NOTHING
            made = self._make(count)
            first = len(self.events)
            # What C code takes by slot comes first.
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
            if self.fast is not None:
                self.fast.enabled = False
        return NOTHING


class DriverEvents(EventPool):
    """Events through the CUDA driver's library.

    Args:
        index: the device.
        cuda: what is asked of torch.
        library: the driver's functions.

    Raises:
        DriverError: the device's context cannot be found.
    """

    def __init__(self, index: int, cuda: TorchCuda, library: Any) -> None:
        super().__init__(index, cuda)
        self._library = library
        self._device, self._capturing, self._stream = cuda.device, cuda.capturing, cuda.stream
        self._several = cuda.devices > 1
        self._record = library.cuEventRecord
        self._elapsed = library.cuEventElapsedTime
        self._handles: dict[int, ctypes.c_void_p] = {}
        self._context = ctypes.c_void_p()
        with cuda.guard(index):
            self._check("cuCtxGetCurrent", ctypes.byref(self._context))
        record, elapsed = _address(self._record), _address(self._elapsed)
        if record and elapsed:
            self.fast = driver_events(
                free=self.free,
                handles=self.handles,
                stream=cuda.stream,
                capturing=cuda.capturing,
                device=cuda.device,
                index=index,
                record=record,
                elapsed=elapsed,
                several=self._several,
            )

    def record(self) -> int:
        """Record on the device's current stream; see ``EventPool``."""
        try:
            if self._several and self._device() != self.index:
                return self._record_elsewhere()
            stream = self._stream(self.index)
            # The default stream, which has no handle, cannot capture.
            if stream and self._capturing():
                return NOTHING
            return self._record_on(stream)
        except Exception as error:
            return self._failed(error)

    def _record_on(self, stream: int) -> int:
        free = self.free
        try:
            slot = free.pop()
        except IndexError:
            slot = self._grow()
            if slot < 0:
                return NOTHING
        # The default stream's handle is false.
        handle = self._handles.get(stream)
        status = self._record(self.events[slot], self._handle(stream) if handle is None else handle)
        if status:
            free.append(slot)
            raise DriverError(f"cuEventRecord: {status}")
        return slot

    def _record_elsewhere(self) -> int:
        """Another device is the current one, as between the layers of a model that is spread over several."""
        capturing = ctypes.c_int()
        with self._current():
            stream = self._stream(self.index)
            self._check("cuStreamIsCapturing", self._handle(stream), ctypes.byref(capturing))
            return NOTHING if capturing.value else self._record_on(stream)

    def _handle(self, stream: int) -> ctypes.c_void_p:
        if len(self._handles) >= MOST_STREAMS:
            self._handles.clear()
        handle = self._handles[stream] = ctypes.c_void_p(stream)
        return handle

    def seconds(self, begins: Iterable[int], ends: Iterable[int]) -> list[float] | None:
        """Times between pairs of slots; see ``EventPool``."""
        elapsed, events = self._elapsed, self.events
        milliseconds = ctypes.c_float()
        place = ctypes.byref(milliseconds)
        found = []
        for begin, end in zip(begins, ends, strict=True):
            if begin < 0 or end < 0:
                found.append(UNKNOWN)
            elif begin == end:
                found.append(0.0)
            else:
                status = elapsed(place, events[begin], events[end])
                if status == NOT_READY:
                    return None
                if status:
                    raise DriverError(f"cuEventElapsedTime: {status}")
                found.append(milliseconds.value * 1e-3)
        return found

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let this thread ask for times whoever else captures: in the driver's default mode that would break their graph."""
        mode = ctypes.c_int(RELAXED)
        self._check("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self._check("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def _make(self, count: int) -> list[Any]:
        events = []
        with self._current():
            for _ in range(count):
                event = ctypes.c_void_p()
                self._check("cuEventCreate", ctypes.byref(event), TIMING)
                events.append(event)
        return events

    def _destroy(self, events: list[Any]) -> None:
        if events:
            with self._current():
                for event in events:
                    self._check("cuEventDestroy_v2", event)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device's context this thread's current one; events and the default stream belong to it."""
        self._check("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _check(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise DriverError(f"{name}: {status}")


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
