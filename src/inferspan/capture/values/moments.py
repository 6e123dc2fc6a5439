"""Extremes, mean and standard deviation of floating point values of any size, by torch operations that wait for nothing.

In: rows of values. Out: ``reduced``, a row of numbers for each on the same device, of which the host makes a ``Piece``, and ``moments`` of
several pieces. Values are scaled by a power of two before they are squared, which is exact: squares of float32 values over 1e19 or under
1e-19 are none. Squares are those about the mean as far as the dtype has it, and the host corrects for what that is off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from inferspan.module_records import joined_moments

__all__ = ["Piece", "moments", "piece_of", "reduced", "scale_of"]

INF = math.inf
_LAYOUTS = {torch.float32: (torch.int32, 0x7F800000), torch.float64: (torch.int64, 0x7FF0000000000000)}
"""An integer type of the same width, and the bits of the exponent."""


class Piece(NamedTuple):
    """Figures of some values; NaN where none is finite."""

    values: float
    max: float
    min: float
    mean: float
    std: float
    nonfinite: float
    nan_count: float
    zeros: float


def reduced(rows: Tensor) -> Tensor:
    """Of each row of ``[n, values]`` what ``piece_of`` takes, as ``[n, 9]``.

    Three copies of the values are the temporary memory.
    """
    x = rows if rows.dtype is torch.float64 else rows.float()
    width, exponent = _LAYOUTS[x.dtype]
    buffer = torch.empty((3, *x.shape), dtype=x.dtype, device=x.device)
    first, second, third = buffer.unbind(0)
    largest = torch.nan_to_num(x, nan=-INF, posinf=-INF, neginf=-INF, out=third).amax(1)
    smallest = torch.nan_to_num(x, nan=INF, posinf=INF, neginf=INF, out=first).amin(1)
    # Comparisons go to float buffers that are no longer needed: far faster to sum on a CPU than booleans, and no new memory.
    torch.eq(third, -INF, out=third)
    torch.ne(x, x, out=first)
    torch.eq(x, 0, out=second)
    counts = buffer.sum(2)  # NaN, zeros, not finite
    # The power of two that takes the largest magnitude to between 2 and 4: its own exponent, the other way round.
    limits = torch.finfo(x.dtype)
    size = torch.maximum(largest, smallest.neg()).clamp_(limits.tiny, limits.max)
    scale = (exponent - (size.view(width) & exponent)).view(x.dtype)
    minus = counts[2] - x.shape[1]
    addends = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0, out=third).mul_(scale.unsqueeze(1))
    if x.dtype is torch.float32 and x.device.type != "mps":  # Metal has no float64
        # Positive and negative values may cancel, so they are added up in float64, in the memory of two copies.
        addends = buffer[:2].view(-1).view(torch.float64).view(x.shape).copy_(addends)
    mean = addends.sum(1) / minus  # its negative, as of all means here
    near = mean.to(x.dtype)
    off = torch.addcmul(near.unsqueeze(1), x, scale.unsqueeze(1), out=first).nan_to_num_(0.0, 0.0, 0.0)
    if x.dtype is torch.float64:
        mean = torch.addcdiv(near, off.sum(1), minus)
    parts = [largest, smallest, scale, near, mean, off.square_().sum(1)]
    return torch.cat([*(part.unsqueeze(0) for part in parts), counts]).t()


def scale_of(size: float, dtype: torch.dtype) -> float:
    """The scale of ``reduced`` for a largest magnitude that is not zero; 1 where squares are far from the limits of float32."""
    if 1e-8 < size < 1e15:
        return 1.0
    least = 1022 if dtype is torch.float64 else 126
    return math.ldexp(1.0, max(-least, min(least, -math.frexp(size)[1])))


def piece_of(values: float, row: Sequence[float]) -> Piece:
    """The figures of so many values, of a row of ``reduced``."""
    largest, smallest, scale, near, mean, square, nan, zeros, nonfinite = row
    finite = values - nonfinite
    if not finite:
        return Piece(values, math.nan, math.nan, math.nan, math.nan, nonfinite, nan, zeros)
    off = mean - near
    # Neither can be outside of these, but for rounding: of equal values the deviation is exactly 0.
    std = min(math.sqrt(max(square / finite - off * off, 0.0)) / scale, largest / 2 - smallest / 2)
    mean = min(max(-mean / scale, smallest), largest)
    return Piece(values, largest, smallest, mean, std, nonfinite, nan, zeros)


def moments(pieces: Sequence[Piece]) -> tuple[float, float]:
    """Mean and population standard deviation over the finite values of all pieces, NaN if there are none."""
    known = (0.0, math.nan, math.nan)
    for piece in pieces:
        known = joined_moments(known, (piece.values - piece.nonfinite, piece.mean, piece.std))
    return known[1], known[2]
