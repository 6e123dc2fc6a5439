"""Small tensors of one shape, copied one by one and reduced many at a time: one launch a tensor instead of one for each operation.

In: tensors on any device. Out: a row of numbers for each, read at the end of the request. Nothing waits for the device; a tensor is not
kept, so what the model writes to it afterwards is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inferspan.capture.modules.device_rows import DeviceRows, Place, raw_stream

__all__ = ["LARGEST_STAGED", "Staged", "StagedRows"]

LARGEST_STAGED = 1 << 17
"""Values of the largest tensor that is copied."""
STAGE = 1 << 21
"""Values of one buffer."""
MOST_ROWS = 64
MOST_STAGES = 16
"""Buffers of different shapes that are open at a time."""


class _Stage:
    """A buffer of copies of one shape."""

    __slots__ = ("buffer", "place", "rows", "used")

    def __init__(self, tensor: Tensor) -> None:
        number = max(1, min(MOST_ROWS, STAGE // tensor.numel()))
        # What is made in inference mode could not be written to outside of it.
        with torch.inference_mode(False), torch.no_grad():
            self.buffer: Tensor | None = torch.empty((number, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
            self.rows: tuple[Tensor, ...] = self.buffer.unbind(0)
        self.used = 0
        self.place: Place[int] | None = None


Staged = tuple[_Stage, int]
"""Where the numbers of a tensor will be."""


class StagedRows:
    """Copies of small tensors until they are reduced.

    Args:
        reduce: numbers of each row of ``[n, values]``, as ``[n, numbers]``; must launch only.
    """

    def __init__(self, reduce: Callable[[Tensor], Tensor]) -> None:
        self._reduce = reduce
        self._open: dict[Any, _Stage] = {}
        self._rows: DeviceRows[int] = DeviceRows()

    def append(self, tensor: Tensor) -> Staged:
        """Copy a tensor that is not empty and has at most ``LARGEST_STAGED`` values."""
        device = tensor.device
        key = (tensor.shape, tensor.dtype, device, raw_stream(device))
        stage = self._open.get(key)
        if stage is None:
            if len(self._open) >= MOST_STAGES:
                self._close(next(iter(self._open)))
            stage = self._open[key] = _Stage(tensor)
        index = stage.used
        stage.rows[index].copy_(tensor.detach() if tensor.requires_grad else tensor)
        stage.used = index + 1
        if stage.used == len(stage.rows):
            self._close(key)
        return stage, index

    def _close(self, key: Any) -> None:
        stage = self._open.pop(key)
        if key[3] != raw_stream(key[2]):
            # Copied on another stream than the current one, so nothing here is ordered after it.
            torch.cuda.synchronize(key[2])
        if stage.buffer is not None:
            with torch.no_grad():
                stage.place = self._rows.append(stage.used, self._reduce(stage.buffer[: stage.used].reshape(stage.used, -1)))
        stage.buffer, stage.rows = None, ()

    def read(self) -> Callable[[Staged], list[float]]:
        """Read everything, which may wait for the device, and forget it; returns what gives the numbers of a tensor."""
        for key in list(self._open):
            self._close(key)
        groups = {group: rows.tolist() for group, rows in self._rows.read().items()}

        def numbers(staged: Staged) -> list[float]:
            stage, index = staged
            assert stage.place is not None
            found: list[float] = groups[stage.place.group][stage.place.order][index]
            return found

        return numbers
