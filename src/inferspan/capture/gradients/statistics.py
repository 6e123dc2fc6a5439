"""Statistics of the gradients of one backward pass: reduced on the device now, sent to the host at its end, read once they have arrived.

In: gradients. Out: ``GradientFigures``. Nothing here waits for the device but ``read``, keeps a gradient, or writes to one.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.inside.watch import reason_of
from inferspan.capture.modules.device_rows import is_plain, raw_stream
from inferspan.capture.values.moments import moments, piece_of, reduced, scale_of
from inferspan.capture.values.pieces import LARGEST, pieces_of
from inferspan.capture.values.unseen import hidden

from .figures import GradientFigures

__all__ = ["GradientRows", "Spot"]

_Key = tuple[torch.device, torch.dtype, int]
Spot = tuple[_Key, int, tuple[int, ...]]
"""Where the statistics of a gradient are: device, type and stream, the first row there, and the values of each piece."""

_PART = 1 << 16
"""Values that are converted to float64 at once."""


class _Group:
    """Statistics on one device and stream."""

    __slots__ = ("count", "event", "host", "rows", "values")

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self.values: list[list[float]] = []
        """Those that are numbers already."""
        self.count = 0
        self.host: Tensor | None = None
        self.event: Any = None


def _reduced(piece: Tensor) -> Tensor:
    return reduced(piece.reshape(1, -1))[0]


def _on_cpu(piece: Tensor) -> list[float]:
    """What ``_reduced`` returns, in fewer operations where all values are finite; on a CPU nothing has to be waited for."""
    x = piece if piece.dtype is torch.float64 else piece.float()
    low, high = (float(one) for one in torch.aminmax(x))
    if not (math.isfinite(low) and math.isfinite(high)):
        found: list[float] = _reduced(piece).tolist()
        return found
    scale = scale_of(max(high, -low), x.dtype) if low or high else 1.0
    if scale != 1.0:
        x = x * scale
    # Less than half the time of ``var_mean``, which works on one value after the other. Positive and negative values may cancel, so they
    # are added up in float64, a part at a time, because each is copied for that.
    mean = 0.0
    for part in torch.split(x.reshape(-1), _PART):
        mean += float(part.sum(dtype=torch.float64))
    mean /= x.numel()
    near = float(torch.tensor(mean, dtype=x.dtype))
    off = x - near
    if x.dtype is torch.float64:
        mean += float(off.sum()) / x.numel()
    return [high, low, scale, -near, -mean, float(off.mul_(off).sum()), 0.0, 0.0, 0.0]


class GradientRows:
    """The statistics of one backward pass.

    Attributes:
        left_out: gradients that are not looked at, by reason.
    """

    def __init__(self) -> None:
        self._groups: dict[_Key, _Group] = {}
        self._values: dict[_Key, list[list[float]]] = {}
        self.left_out: Counter[str] = Counter()

    @hidden
    def add(self, gradient: Tensor) -> Spot | None:
        """Launch the statistics of a gradient; ``None`` if it cannot be looked at."""
        if not is_plain(gradient):
            self.left_out[reason_of(gradient)] += 1
            return None
        if gradient.numel() > LARGEST or (gradient.is_cuda and is_capturing()):
            self.left_out["too large" if gradient.numel() > LARGEST else "in a CUDA graph"] += 1
            return None
        key = (gradient.device, torch.float64 if gradient.dtype is torch.float64 else torch.float32, raw_stream(gradient.device))
        group = self._groups.setdefault(key, _Group())
        if not gradient.numel():
            return key, group.count, ()
        with torch.no_grad():
            pieces = list(pieces_of(gradient.detach()))
            if gradient.device.type == "cpu":
                group.values += [_on_cpu(piece) for piece in pieces]
            else:
                group.rows.append(torch.stack([_reduced(piece) for piece in pieces]))
        first = group.count
        group.count += len(pieces)
        return key, first, tuple(piece.numel() for piece in pieces)

    @hidden
    def send(self) -> None:
        """Copy everything to the host, behind what computes it; waits for nothing."""
        for (device, _, stream), group in self._groups.items():
            rows, group.rows = group.rows, []
            if not rows or group.host is not None:
                continue
            with torch.no_grad():
                if device.type != "cuda":
                    # Read when it is wanted, which waits.
                    group.host = torch.cat(rows)
                elif stream == raw_stream(device):
                    self._copy(device, group, rows)
                else:
                    with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):  # type: ignore[no-untyped-call]
                        self._copy(device, group, rows)

    @staticmethod
    def _copy(device: torch.device, group: _Group, rows: list[Tensor]) -> None:
        whole = torch.cat(rows)
        group.host = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=True)
        group.host.copy_(whole, non_blocking=True)
        with torch.cuda.device(device):
            group.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            group.event.record()

    def arrived(self) -> bool:
        """Whether ``read`` would not wait."""
        return all(group.event is None or group.event.query() for group in self._groups.values())

    @hidden
    def read(self) -> None:
        """Wait for what has been sent, and keep it as numbers."""
        groups, self._groups = self._groups, {}
        for key, group in groups.items():
            if group.event is not None:
                group.event.synchronize()
            self._values[key] = group.values if group.host is None else group.host.tolist()

    def figures(self, spots: list[Spot]) -> GradientFigures | None:
        """Of gradients together, after ``read``; ``None`` of none."""
        if not spots:
            return None
        pieces = [
            piece_of(float(count), self._values[key][first + index]) for key, first, counts in spots for index, count in enumerate(counts)
        ]
        elements = int(sum(piece.values for piece in pieces))
        nan = int(sum(piece.nan_count for piece in pieces))
        inf = int(sum(piece.nonfinite for piece in pieces)) - nan
        mean, std = moments(pieces)
        finite = [piece for piece in pieces if piece.values > piece.nonfinite]
        if not finite:
            return GradientFigures(elements, None, None, None, None, None, nan, inf)
        norm = math.sqrt(elements - nan - inf) * math.hypot(mean, std)
        smallest, largest = min(piece.min for piece in finite), max(piece.max for piece in finite)
        return GradientFigures(elements, mean, std, smallest, largest, norm if math.isfinite(norm) else None, nan, inf)
