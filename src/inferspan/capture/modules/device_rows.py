"""Small result tensors that stay on the device where they were computed until they are read.

In: one ``[rows, columns]`` tensor per measurement, appended on the model's path without waiting for the device. Out: all of them
at once, on the host; this is the one call that may wait. Results of one kind are packed together every few hundred
measurements, so that a long request holds few tensors. An appended tensor is kept as it is and must not be written to afterwards.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeGuard, TypeVar

import torch
from torch import Tensor

__all__ = ["DeviceRows", "Place", "is_plain", "raw_stream"]

PACK_MEASUREMENTS = 256
PACK_ROWS = 4096
FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

K = TypeVar("K", bound=Hashable)


def is_plain(tensor: object) -> TypeGuard[Tensor]:
    """Whether ``tensor`` is an ordinary floating point tensor with values of its own that statistics can be taken of.

    Subclasses (fake, distributed, user-made), wrapped, meta, sparse, nested, quantised, 8-bit and complex tensors are not.
    """
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and isinstance(tensor, Tensor)
        and tensor.dtype in FLOATING
        and not tensor.is_meta
        and not tensor.is_nested
        and tensor.layout is torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def raw_stream(device: torch.device) -> int:
    """Raw handle of the device's current stream: cheaper than a Stream object, and enough to see that it is another one."""
    return int(torch._C._cuda_getCurrentRawStream(device.index)) if device.type == "cuda" else 0


class _Group(NamedTuple):
    """Measurements of one kind, shape, device and stream: only these may be packed without waiting for anything."""

    device: torch.device
    stream: int
    packed: list[Tensor]
    loose: list[Tensor]


# No NamedTuple: before Python 3.11 none can be generic.
@dataclass(frozen=True, slots=True)
class Place(Generic[K]):
    """Index of a measurement in the result of ``read``."""

    group: tuple[K, torch.dtype, torch.device, int]
    order: int

    @property
    def kind(self) -> K:
        """The ``kind`` that the measurement was appended with."""
        return self.group[0]


class DeviceRows(Generic[K]):
    """Holds measurements; ``kind`` names those that may be packed together and must have the same shape.

    Args:
        as_type: what they are read as.
    """

    def __init__(self, as_type: torch.dtype = torch.float64) -> None:
        self._as_type = as_type
        self._groups: dict[tuple[K, torch.dtype, torch.device, int], _Group] = {}
        self._counts: dict[tuple[K, torch.dtype, torch.device, int], int] = {}

    def append(self, kind: K, rows: Tensor) -> Place[K]:
        """Keep ``rows``; launches work on the current stream at most, never waits."""
        key = (kind, rows.dtype, rows.device, raw_stream(rows.device))
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(rows.device, key[3], [], [])
        index = self._counts.get(key, 0)
        self._counts[key] = index + 1
        group.loose.append(rows)
        if len(group.loose) >= PACK_MEASUREMENTS or len(group.loose) * rows.shape[0] >= PACK_ROWS:
            self._pack(group)
        return Place(key, index)

    def read(self) -> dict[tuple[K, torch.dtype, torch.device, int], Tensor]:
        """Everything, by group, as ``[n, ...]`` on the host, with one transfer a group; forgets it. May wait for the device."""
        groups, self._groups, self._counts = self._groups, {}, {}
        result = {}
        for key, group in groups.items():
            if group.stream != raw_stream(group.device):
                # Written on a stream that is not the current one, so nothing here is ordered after it.
                torch.cuda.synchronize(group.device)
            self._pack(group)
            with torch.no_grad():
                whole = group.packed[0] if len(group.packed) == 1 else torch.cat(group.packed)
                result[key] = (whole.cpu() if whole.device.type != "cpu" else whole).to(self._as_type)
        return result

    @staticmethod
    def _pack(group: _Group) -> None:
        if not group.loose:
            return
        with torch.no_grad():
            group.packed.append(torch.stack(group.loose))
        group.loose.clear()
