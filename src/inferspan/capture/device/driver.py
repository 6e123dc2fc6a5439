"""The CUDA driver's library: events through it, and the capture mode of threads.

An event through the driver costs a fifth of ``torch.cuda.Event.record()``. In: the functions of the library as ctypes sees them. Out: slots
and times, as ``events.EventPool`` states. ``load_driver`` returns ``None`` if the library cannot be loaded, as on ROCm.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .events import NOTHING, UNKNOWN, EventPool, TorchCuda

__all__ = ["NOT_READY", "RELAXED", "DriverError", "DriverEvents", "leave_captures_alone", "load_driver"]

MOST_STREAMS = 256
NOT_READY = 600
RELAXED = 2
TIMING = 0
_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

_log = logging.getLogger("inferspan")


class DriverError(RuntimeError):
    """The driver has refused a call; the text names the call and the driver's number for the reason."""


def load_driver(devices: int) -> Any:
    """The driver's library as ctypes sees it, or ``None`` where there is none (ROCm has other names, and torch's events work).

    With several ``devices`` its functions release the interpreter lock: a call that waits for a full queue must not keep out the threads
    that could empty it, by launching the work that another device waits for. With one device they keep the lock, as torch's do.
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
    """Let the calling thread allocate and load code while another captures a graph; otherwise CUDA ends the capture with an error.

    Raises:
        OSError: there is no CUDA driver.
        RuntimeError: the driver refuses.
    """
    driver = ctypes.CDLL(_LIBRARY)
    status = driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(RELAXED)))
    if status:
        raise RuntimeError(f"cuThreadExchangeStreamCaptureMode: {status}")


def _address(function: Any) -> int:
    """Address of a function of the driver's library; 0 if it is not a C function."""
    try:
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    except (ctypes.ArgumentError, TypeError):
        return 0


class DriverEvents(EventPool):
    """Events through the CUDA driver's library.

    Args:
        index: the device.
        cuda: what is asked of torch.
        library: the driver's functions.
        native: ``NativeEvents`` of the C extension, to record and read these events; ``None`` without the extension.

    Raises:
        DriverError: the device's context cannot be found.
    """

    def __init__(self, index: int, cuda: TorchCuda, library: Any, native: Callable[..., Any] | None = None) -> None:
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
        if native is not None and record and elapsed:
            self.native = native(
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
        """Let this thread read times while others capture: in the driver's default mode that would break their graphs."""
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
