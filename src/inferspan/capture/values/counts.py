"""Counts of NaN, Inf and values near the limit, of tensors on any device but the host: launched now, read later."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from inferspan.capture.modules.device_rows import DeviceRows, Place

from .bits import counts_of_rows
from .pieces import pieces_of
from .staging import LARGEST_STAGED, Staged, StagedRows

__all__ = ["Counted", "DeviceCounts"]

Counted = Staged | Place[int]
"""Where the counts of a tensor will be."""


class DeviceCounts:
    """The counts of one request: one launch for a small tensor, and three for 64 of a shape; three for each piece of a large one."""

    def __init__(self) -> None:
        self._small = StagedRows(counts_of_rows)
        self._large: DeviceRows[int] = DeviceRows()

    def add(self, tensor: Tensor) -> Counted:
        """Launch the counts of a tensor that is not empty; waits for nothing."""
        if tensor.numel() <= LARGEST_STAGED:
            return self._small.append(tensor)
        with torch.no_grad():
            found = [counts_of_rows(piece.reshape(1, -1)) for piece in pieces_of(tensor)]
            parts = found[0] if len(found) == 1 else torch.cat(found)
        return self._large.append(parts.shape[0], parts)

    def read(self) -> Callable[[Counted], tuple[int, int, int]]:
        """Read all of them; may wait for the device. Returns what gives NaN, Inf and finite values near the limit of a tensor."""
        small = self._small.read()
        large = {group: rows.sum(1).tolist() for group, rows in self._large.read().items()}

        def numbers(place: Counted) -> tuple[int, int, int]:
            found = large[place.group][place.order] if isinstance(place, Place) else small(place)
            high, nonfinite, nan = map(int, found)
            return nan, nonfinite - nan, high - nonfinite

        return numbers
