"""A CUDA driver made of Python: devices with clocks of their own, streams, events and captures, at the border where ctypes calls it.

Each device counts milliseconds of work that was launched on it. An event holds the count at which it was recorded and is done when the
device has come so far. Calls are counted by name; what a real driver would answer with an error or a broken graph is noted as a fault.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from inferspan.capture.device import clock
from inferspan.capture.device.driver import NOT_READY, RELAXED
from inferspan.capture.device.events import TorchCuda

__all__ = ["FakeCuda"]

INVALID = 400
CONTEXT = 0x1000


_POINTERS = {
    "cuEventRecord": ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    "cuEventElapsedTime": ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_void_p),
}


class _Place:
    """What ``byref`` makes of a variable, as far as this driver looks at it."""

    def __init__(self, pointer: Any) -> None:
        self._obj = pointer.contents


def _as_given(argument: Any) -> Any:
    """An argument as ctypes hands it to a function of Python that is called by its address, turned back."""
    return ctypes.c_void_p(argument) if argument is None or isinstance(argument, int) else _Place(argument)


class FakeCuda:
    """The driver's library and torch's view of it.

    Args:
        devices: how many there are.
        pointers: whether what records and reads events are functions of C, as in a real library, which C code calls by their addresses.

    Attributes:
        calls: number of calls of each function.
        faults: what should not have happened.
        recorded: (device, stream) of each record.
        status: what a function answers instead of doing its work.
        tick: milliseconds that a device works on before each record.
    """

    def __init__(self, devices: int = 1, *, pointers: bool = False) -> None:
        self.pointers = pointers
        self.calls: Counter[str] = Counter()
        self.faults: list[str] = []
        self.recorded: list[tuple[int, int]] = []
        self.status: dict[str, int] = {}
        self.tick = 0.0
        self.work = [0.0] * devices
        self.reached: list[float] | None = None
        """How far each device has come; ``None`` if it is always up to date."""
        self.capturing: set[int] = set()
        """Streams that capture a graph."""
        self.current_stream = [0] * devices
        self.device = 0
        self.recorders: set[int] = set()
        """Threads that have recorded."""
        self.readers: set[int] = set()
        """Threads that have asked for times."""
        self.alive = 0
        self._events: dict[int, tuple[int, float | None]] = {}
        self._contexts: list[int] = []
        self._mode = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of CUDA: every model is on all devices of this."""
        monkeypatch.setattr(clock, "uses_cuda", lambda: True)
        monkeypatch.setattr(clock, "torch_cuda", self.torch_cuda)
        monkeypatch.setattr(clock, "load_driver", lambda devices: self)
        monkeypatch.setattr(clock, "cuda_devices", lambda model: tuple(range(len(self.work))))

    def torch_cuda(self) -> TorchCuda:
        """The answers of torch."""
        return TorchCuda(
            stream=lambda index: self.current_stream[index],
            devices=len(self.work),
            device=lambda: self.device,
            capturing=lambda: self.current_stream[self.device] in self.capturing,
            has_context=lambda index: index < len(self.work),
            guard=self._guard,
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = getattr(type(self), f"_{name}")

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            return self.status.get(name) or function(self, *arguments) or 0

        made = _POINTERS[name](self._contained(call)) if self.pointers and name in _POINTERS else call
        setattr(self, name, made)
        return made

    def _contained(self, call: Any) -> Any:
        """C code has nowhere to raise an exception to."""

        def answer(*arguments: Any) -> int:
            try:
                return int(call(*(_as_given(argument) for argument in arguments)))
            except Exception as error:
                self.faults.append(repr(error))
                return INVALID

        return answer

    @contextmanager
    def _guard(self, index: int) -> Iterator[None]:
        before, self.device = self.device, index
        yield
        self.device = before

    @property
    def _context(self) -> int:
        return self._contexts[-1] if self._contexts else CONTEXT + self.device

    def _cuCtxGetCurrent(self, place: Any) -> None:
        place._obj.value = self._context

    def _cuCtxPushCurrent_v2(self, context: ctypes.c_void_p) -> None:
        assert context.value
        self._contexts.append(context.value)

    def _cuCtxPopCurrent_v2(self, place: Any) -> None:
        place._obj.value = self._contexts.pop()

    def _cuEventCreate(self, place: Any, flags: int) -> None:
        self.alive += 1
        place._obj.value = 1 + len(self._events)
        self._events[place._obj.value] = (self._context - CONTEXT, None)

    def _cuEventDestroy_v2(self, event: ctypes.c_void_p) -> None:
        assert event.value
        self.alive -= 1
        del self._events[event.value]
        self._events[-event.value] = (0, None)

    def _cuStreamIsCapturing(self, stream: ctypes.c_void_p, place: Any) -> None:
        place._obj.value = int((stream.value or 0) in self.capturing)

    def _cuEventRecord(self, event: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        assert event.value
        device, _ = self._events[event.value]
        handle = stream.value or 0
        if handle in self.capturing:
            self.faults.append("recorded into a graph")
        # The default stream is that of the current context; others know theirs.
        if not handle and self._context - CONTEXT != device:
            return INVALID
        self.work[device] += self.tick
        self._events[event.value] = (device, self.work[device])
        self.recorded.append((device, handle))
        self.recorders.add(threading.get_ident())
        return 0

    def _cuEventElapsedTime(self, place: Any, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> int:
        assert begin.value and end.value
        self.readers.add(threading.get_ident())
        if self._mode != RELAXED:
            self.faults.append("asked in a mode that breaks the captures of others")
        if self.capturing:
            self.faults.append("asked while a stream captures")
        (device, first), (other, second) = self._events[begin.value], self._events[end.value]
        if device != other or first is None or second is None:
            return INVALID
        if self.reached is not None and max(first, second) > self.reached[device]:
            return NOT_READY
        place._obj.value = second - first
        return 0

    def _cuThreadExchangeStreamCaptureMode(self, place: Any) -> None:
        place._obj.value, self._mode = self._mode, place._obj.value
