"""Logits that come step after step: their shape and layout, the buffer that their statistics go to, and steps held for one batch of work.

In: the logits of a step and the chosen token ids. Out: whether they are like those of the last step, and the numbers that the fused kernel
is called with. ``ring`` decides what to do with them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .kernel_cache import KernelCall, Variant
from .reductions import COLUMNS
from .rows import DeviceRowBuffer, Link
from .statistics import Kind, StepLogits, pack, to_steps

__all__ = ["LogitSource", "StepBuffer", "is_forked"]

HELD_BYTES = 2 << 20
HELD_STEPS = 16
"""Logits on a CPU that are held until their statistics are taken in one go."""

_in_child = False
"""Whether this process was forked while this module was loaded."""

_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: 0)
_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
_is_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor


def _forked() -> None:
    global _in_child
    _in_child = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def is_forked() -> bool:
    """Whether this process is a forked child of the one that loaded this module."""
    return _in_child


class StepBuffer(DeviceRowBuffer):
    """Rows of one kind, and those of its steps that have been read."""

    __slots__ = ("detailed", "done", "kind", "top_k")

    def __init__(self, kind: Kind, top_k: int, dtype: torch.dtype, device: torch.device, link: Link) -> None:
        self.kind, self.top_k = kind, top_k
        self.detailed = kind.batch > 1 and not kind.compact
        """Whether more rows than one of each step are kept."""
        self.done: deque[StepLogits] = deque()
        packing = partial(pack, kind, top_k) if kind.compact else None
        super().__init__(kind.batch, COLUMNS + 2 * top_k, dtype, device, pack=packing, link=link)

    def collect(self, rows: list[Tensor]) -> None:
        """Make steps out of ``rows``, which are float64 on the host."""
        if rows:
            whole = rows[0] if len(rows) == 1 else torch.cat(rows)
            self.done.extend(to_steps(self.kind, self.top_k, whole))


class HeldLogits:
    """Logits of successive steps on a CPU, copied until there are enough for one go.

    The thirty operations cost as much for one row as for three.

    Args:
        logits: like those that will come.
        chosen: the same.
        steps: how many are held.
    """

    __slots__ = ("_chosen_rows", "_rows", "chosen", "count", "logits", "steps")

    def __init__(self, logits: Tensor, chosen: Tensor | None, steps: int) -> None:
        self.steps, self.count = steps, 0
        # A tensor made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            self.logits = torch.empty((steps, *logits.shape), dtype=logits.dtype, device="cpu")
            self.chosen = None if chosen is None else torch.empty((steps, *chosen.shape), dtype=chosen.dtype, device="cpu")
            self._rows = self.logits.unbind()
            self._chosen_rows = None if self.chosen is None else self.chosen.unbind()

    def put(self, logits: Tensor, chosen: Tensor | None) -> bool:
        """Copy one step; returns whether there is no room for another."""
        # A context of torch's costs more than the copies.
        if torch.is_grad_enabled():
            logits = logits.detach()
        self._rows[self.count].copy_(logits)
        if self._chosen_rows is not None and chosen is not None:
            self._chosen_rows[self.count].copy_(chosen)
        self.count += 1
        return self.count == self.steps

    def take(self) -> tuple[Tensor, Tensor | None]:
        """The rows of all steps, one below the other, and their ids; forgets them."""
        count, self.count = self.count, 0
        return self.logits[:count].flatten(0, 1), None if self.chosen is None else self.chosen[:count].flatten(0, 1)


class LogitSource:
    """Shape, layout and placement of the logits of the last step, and all that follows from them."""

    __slots__ = (
        "aligned",
        "batch",
        "buffer",
        "call",
        "chosen_shape",
        "device",
        "dtype",
        "held",
        "ids",
        "ids_bytes",
        "index",
        "last_shape",
        "on_host",
        "scratch",
        "scratch_at",
        "shape",
        "stride",
        "strides",
        "variant",
    )

    def __init__(self, logits: Tensor, chosen: Tensor | None, buffer: StepBuffer, variant: Variant | None) -> None:
        self.shape, self.strides, self.dtype, self.device = logits.shape, logits.stride(), logits.dtype, logits.device
        self.batch, vocabulary = logits.shape
        # The shape with its dimension of positions, if that has the same layout in memory.
        packed = self.strides == (vocabulary, 1) or (self.batch == 1 and self.strides[1] == 1)
        self.last_shape = torch.Size((self.batch, 1, vocabulary)) if packed else None
        self.ids = None if chosen is None else chosen.dtype
        self.ids_bytes = 0 if chosen is None else chosen.element_size()
        self.chosen_shape = None if chosen is None else chosen.shape
        self.index = logits.device.index if logits.device.type == "cuda" else -1
        self.buffer, self.variant = buffer, variant
        self.aligned = variant is not None and variant.aligned
        self.stride = logits.stride(0) if logits.shape[0] > 1 else 0
        self.call: KernelCall | None = None
        self.scratch: Tensor | None = None
        self.scratch_at = 0
        self.held: HeldLogits | None = None
        self.on_host = False
        """Whether each step is reduced by the C extension at once."""

    def hold(self, logits: Tensor, chosen: Tensor | None) -> None:
        """Do several steps of logits like these in one go, if they are on a CPU and small enough.

        Not in a forked child: over several rows torch wants the threads that only the parent has, and waits for them forever. A child
        that gets through a forward pass of one row gets through the statistics of one.
        """
        if _in_child:
            return
        steps = min(HELD_STEPS, HELD_BYTES // (logits.numel() * logits.element_size()))
        if steps > 1 and logits.device.type == "cpu" and (chosen is None or chosen.device.type == "cpu"):
            self.held = HeldLogits(logits, chosen, steps)

    def holds(self, logits: Tensor, chosen: Tensor | None) -> bool:
        """Whether these tensors are like those of the last step."""
        if chosen is None:
            like = self.ids is None
        else:
            like = chosen.dtype is self.ids and chosen.shape == self.chosen_shape
            # A kernel and the C extension read the ids where their address says.
            like = like and (self.variant is None or chosen.device == self.device)
            like = like and (not self.on_host or (chosen.device == self.device and type(chosen) is Tensor))
        return (
            like
            and type(logits) is Tensor
            and logits.shape == self.shape
            and logits.dtype is self.dtype
            and logits.device == self.device
            and logits.stride() == self.strides
            and not _is_wrapped(logits)
            and (self.index < 0 or _raw_stream(self.index) == self.buffer.stream)
            and not (self.aligned and logits.data_ptr() & 15)
        )

    def numbers(self, logits: Tensor, ids: Tensor | None) -> tuple[int, ...] | None:
        """The kernel's arguments for the only position of ``logits`` and the last of ``ids``; ``holds`` would be true for these.

        ``None`` if they have to be looked at more closely.
        """
        index = self.index
        if (
            type(logits) is not Tensor
            or logits.shape != self.last_shape
            or logits.dtype is not self.dtype
            or logits.device != self.device
            or not logits.is_contiguous()
            or _is_wrapped(logits)
        ):
            return None
        address = logits.data_ptr()
        if ids is None:
            if self.ids is not None:
                return None
            chosen, step = address, 1
        else:
            shape = ids.shape
            if ids.dtype is not self.ids or len(shape) != 2 or shape[0] != self.batch:
                return None
            if ids.device != self.device or not ids.is_contiguous():
                return None
            step = shape[1]
            chosen = ids.data_ptr() + (step - 1) * self.ids_bytes
        buffer = self.buffer
        stream = buffer.stream
        if self.aligned and address & 15:
            return None
        # The default stream, which has no handle, cannot capture.
        if index >= 0 and (_raw_stream(index) != stream or _current_device() != index or (stream and _capturing())):
            return None
        if buffer.chunk is None:
            buffer.open()
        return self.batch, stream, address, self.stride, chosen, step, self.scratch_at, buffer.base + buffer.used * buffer.row_bytes
