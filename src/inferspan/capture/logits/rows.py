"""Buffers of small result rows: written straight into device memory, one row a step, and copied to the host in few copies.

In: rows ``[batch, columns]`` that a kernel or an operation writes to an address in the buffer. Out: all of them as float64 on the host. A
full chunk is copied through pinned memory without waiting, with an event behind it; the event is queried on the model's own thread, and
waited for in ``read`` only. One stream writes a buffer, so its memory is used again as soon as the copy is launched.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from inferspan.capture.device.driver import leave_captures_alone
from inferspan.capture.modules.device_rows import raw_stream

__all__ = ["PINNED", "CudaLink", "DeviceRowBuffer", "Link", "PinnedBuffers", "Transfer", "link_of"]

CHUNK_STEPS = 256
CHUNK_ROWS = 4096
PINNED_BYTES = 1 << 17
PINNED_COUNT = 8


class PinnedBuffers:
    """Pinned host buffers, allocated once a process on a thread of their own: the allocation may wait for the device."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self._asked = False

    def prepare(self) -> None:
        """Allocate the buffers, unless that has been done before."""
        if not self._asked:
            self._asked = True
            try:
                threading.Thread(target=self._make, name="inferspan-pinned-memory", daemon=True).start()
            except RuntimeError:
                return  # no thread can be started any more; results stay on the device until they are read

    def _make(self) -> None:
        try:
            leave_captures_alone()
            whole = torch.empty(PINNED_BYTES * PINNED_COUNT, dtype=torch.uint8, device="cpu", pin_memory=True)
            self._free.extend(whole.chunk(PINNED_COUNT))
        except (OSError, RuntimeError, AttributeError):
            return  # the same

    def take(self) -> Tensor | None:
        """A buffer of ``PINNED_BYTES``, or ``None`` if there is none now."""
        try:
            return self._free.pop()
        except IndexError:
            return None

    def give(self, buffer: Tensor) -> None:
        """Take back a buffer that no copy writes to any more."""
        self._free.append(buffer)

    def renew(self) -> None:
        """Start again in a forked child, where the pinned memory is not pinned."""
        self._free, self._asked = [], False


PINNED = PinnedBuffers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PINNED.renew)


class Transfer(Protocol):
    """A copy to the host that has been launched."""

    def arrived(self) -> bool:
        """Whether it has arrived; does not wait."""

    def take(self) -> Tensor:
        """The rows as float64, once only; waits for them."""


class Link(Protocol):
    """Copies from one device to the host."""

    def send(self, rows: Tensor) -> Transfer | None:
        """Launch a copy of ``rows`` behind the work of the current stream; ``None`` if none can be launched without waiting."""

    def fetch(self, rows: Tensor) -> Tensor:
        """Copy ``rows`` as float64, waiting for them."""

    def settle(self) -> None:
        """Wait for all streams of the device."""


class _PinnedTransfer:
    """A transfer into a pinned buffer, with an event behind it."""

    __slots__ = ("_buffer", "_event", "_rows")

    def __init__(self, rows: Tensor, buffer: Tensor) -> None:
        size = rows.numel() * rows.element_size()
        self._buffer, self._rows = buffer, buffer[:size].view(rows.dtype).view(rows.shape)
        self._rows.copy_(rows, non_blocking=True)
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(rows.device))

    def arrived(self) -> bool:
        return bool(self._event.query())

    def take(self) -> Tensor:
        self._event.synchronize()
        rows = self._rows.to(torch.float64)
        PINNED.give(self._buffer)
        return rows


class CudaLink:
    """From a CUDA device, through ``PINNED``."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        PINNED.prepare()

    def send(self, rows: Tensor) -> Transfer | None:
        """Launch a copy, if a pinned buffer is free."""
        buffer = PINNED.take() if rows.numel() * rows.element_size() <= PINNED_BYTES else None
        return None if buffer is None else _PinnedTransfer(rows, buffer)

    def fetch(self, rows: Tensor) -> Tensor:
        """Copy through pageable memory, which waits for the stream."""
        return rows.cpu().to(torch.float64)

    def settle(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self._device)


class _Direct:
    """From any other device, or the CPU: copies wait, and are made at the end."""

    def send(self, rows: Tensor) -> Transfer | None:
        return None

    def fetch(self, rows: Tensor) -> Tensor:
        return (rows if rows.device.type == "cpu" else rows.cpu()).to(torch.float64)

    def settle(self) -> None:
        return None


def link_of(device: torch.device) -> Link:
    """The link from ``device`` to the host."""
    return CudaLink(device) if device.type == "cuda" else _Direct()


class DeviceRowBuffer:
    """Rows of one kind on one device and stream.

    Args:
        batch: rows a step.
        columns: numbers a row.
        dtype: of the rows.
        device: where they are written.
        pack: reduces the rows of several steps ``[n, batch, columns]`` to those that are kept, ``[n, ...]``, on the device.
        link: copies to the host.
    """

    __slots__ = ("_link", "_pack", "_parts", "_shape", "base", "chunk", "device", "dtype", "row_bytes", "steps", "stream", "used")

    def __init__(
        self, batch: int, columns: int, dtype: torch.dtype, device: torch.device, *, pack: Callable[[Tensor], Tensor] | None, link: Link
    ) -> None:
        self.row_bytes = batch * columns * dtype.itemsize
        self.steps = max(1, min(CHUNK_STEPS, CHUNK_ROWS // batch, PINNED_BYTES // self.row_bytes))
        """Steps of a chunk."""
        self.device, self.dtype, self.stream = device, dtype, raw_stream(device)
        self.chunk: Tensor | None = None
        self.base = 0
        """Address of the chunk."""
        self.used = 0
        """Steps in it; the next row is written behind them, and counts from ``commit`` on."""
        self._shape = (self.steps, batch, columns)
        self._pack, self._link = pack, link
        self._parts: deque[Tensor | Transfer] = deque()

    def row(self) -> Tensor:
        """The next row to be written, ``[batch, columns]``."""
        return self.open().select(0, self.used)

    def open(self) -> Tensor:
        """The chunk with the next row in it; allocates one if there is none."""
        if self.chunk is None:
            # A tensor made in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                self.chunk = torch.empty(self._shape, dtype=self.dtype, device=self.device)
            self.base = self.chunk.data_ptr()
        return self.chunk

    def commit(self) -> None:
        """The work that writes the next row has been launched."""
        self.used += 1
        if self.used == self.steps:
            self._turn()

    def landed(self) -> list[Tensor]:
        """The rows that have arrived on the host, in order, as float64 ``[n, ...]``; does not wait. Not while the stream captures."""
        found = []
        while self._parts:
            part = self._parts[0]
            if isinstance(part, Tensor):
                sent = self._link.send(part) if raw_stream(self.device) == self.stream else None
                if sent is None:
                    break
                self._parts[0] = part = sent
            if not part.arrived():
                break
            self._parts.popleft()
            found.append(part.take())
        return found

    def read(self) -> list[Tensor]:
        """All rows, in order, which the buffer forgets. Waits."""
        if self.stream != raw_stream(self.device):
            # Written on a stream that is not the current one, so nothing here is ordered after it.
            self._link.settle()
        if self.used:
            self._turn()
        parts, self._parts = self._parts, deque()
        self.chunk, self.base = None, 0
        return [self._link.fetch(part) if isinstance(part, Tensor) else part.take() for part in parts]

    def _turn(self) -> None:
        """Send the chunk, and start it again, or a new one if it could not be sent."""
        rows = self.open().narrow(0, 0, self.used)
        if self._pack is not None:
            with torch.no_grad():
                rows = self._pack(rows)
        sent = self._link.send(rows)
        self._parts.append(rows if sent is None else sent)
        self.used = 0
        if sent is None and self._pack is None:
            self.chunk, self.base = None, 0
