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
from inferspan.capture.modules.output_stats import LARGEST, Piece, moments, pieces_of, reduce_piece
from inferspan.capture.values.unseen import hidden

from .figures import GradientFigures

__all__ = ["GradientRows", "Spot"]

_Key = tuple[torch.device, torch.dtype, int]
Spot = tuple[_Key, int, tuple[int, ...]]
"""Where the statistics of a gradient are: device, type and stream, the first row there, and the values of each piece."""


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


def _on_cpu(piece: Tensor) -> list[float]:
    """What ``reduce_piece`` returns, in fewer operations where all values are finite; on a CPU nothing has to be waited for."""
    x = piece if piece.dtype is torch.float64 else piece.float()
    low, high = (float(one) for one in torch.aminmax(x))
    if math.isfinite(low) and math.isfinite(high):
        # A fifth of the time of ``var_mean``, which works on one value after the other.
        mean = float(x.mean())
        about = x - mean
        square = float(about.mul_(about).sum())
        if math.isfinite(square):
            return [high, low, mean, square, 0.0, 0.0, 0.0]
    found: list[float] = reduce_piece(piece).tolist()
    return found


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
                group.rows.append(torch.stack([reduce_piece(piece) for piece in pieces]))
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
            Piece(float(count), *self._values[key][first + index])
            for key, first, counts in spots
            for index, count in enumerate(counts)
        ]
        elements = int(sum(piece.values for piece in pieces))
        nan = int(sum(piece.nan_count for piece in pieces))
        inf = int(sum(piece.nonfinite for piece in pieces)) - nan
        mean, std = moments(pieces)
        finite = [piece for piece in pieces if piece.values > piece.nonfinite]
        if not finite:
            return GradientFigures(elements, None, None, None, None, None, nan, inf)
        squares = sum(piece.square + (piece.values - piece.nonfinite) * piece.mean**2 for piece in finite)
        norm = math.sqrt(squares) if math.isfinite(squares) and squares >= 0 else None
        smallest, largest = min(piece.min for piece in finite), max(piece.max for piece in finite)
        return GradientFigures(elements, mean, None if math.isnan(std) else std, smallest, largest, norm, nan, inf)
