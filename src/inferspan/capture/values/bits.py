"""NaN, Inf and values near the limit of their dtype, told by the bits of the values: a magnitude is ordered as its bits are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from inferspan.capture.modules.device_rows import raw_stream

__all__ = ["counts_of_rows", "counts_of_stack"]


class _Format(NamedTuple):
    """Bits of a dtype as whole numbers: those of a magnitude, of half the largest value, and of infinity."""

    whole: torch.dtype
    magnitude: int
    limit: int
    infinity: int


_FORMATS = {
    torch.float16: _Format(torch.int16, 0x7FFF, 0x77FF, 0x7C00),
    torch.bfloat16: _Format(torch.int16, 0x7FFF, 0x7EFF, 0x7F80),
    torch.float32: _Format(torch.int32, 0x7FFFFFFF, 0x7EFFFFFF, 0x7F800000),
    torch.float64: _Format(torch.int64, 0x7FFFFFFFFFFFFFFF, 0x7FDFFFFFFFFFFFFF, 0x7FF0000000000000),
}


MOST_LIMITS = 64
_limits: dict[tuple[torch.dtype, torch.device, int], Tensor] = {}


def _limits_of(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The smallest bits that are near the limit, not finite, and NaN, as ``[3, 1]`` on the current stream of a device.

    Made there, once for each stream: a copy from the host would wait, and other streams could come before what makes it.
    """
    key = (dtype, device, raw_stream(device))
    found = _limits.get(key)
    if found is None:
        if len(_limits) >= MOST_LIMITS:
            _limits.clear()
        known = _FORMATS[dtype]
        # What is made in inference mode could not be used outside of it.
        with torch.inference_mode(False):
            numbers = (known.limit, known.infinity, known.infinity + 1)
            found = _limits[key] = torch.cat([torch.full((1, 1), one, dtype=known.whole, device=device) for one in numbers])
    return found


def counts_of_rows(rows: Tensor) -> Tensor:
    """Of each row of ``[n, values]``: values near the limit or not finite, values that are not finite, and NaN, as ``[n, 3]`` int64.

    Near the limit is at least half the largest value of the dtype. Launches three operations and waits for none.
    """
    known = _FORMATS[rows.dtype]
    size = torch.bitwise_and(rows.resolve_neg().view(known.whole), known.magnitude)
    return (size.unsqueeze(1) >= _limits_of(rows.dtype, rows.device)).sum(2)


def counts_of_stack(stack: Tensor) -> Tensor:
    """The same of each tensor in ``[n, ...]``, which is written to; ``torch.stack`` keeps the order in which tensors lie in memory."""
    known = _FORMATS[stack.dtype]
    size = stack.view(known.whole).bitwise_and_(known.magnitude)
    return (size.reshape(len(stack), 1, -1) >= _limits_of(stack.dtype, stack.device)).sum(2)
