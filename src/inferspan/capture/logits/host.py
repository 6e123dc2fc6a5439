"""Sums and extremes of logits in the memory of the host: by the C extension at once, in three passes over rows that are still in the cache.

In: float32 logits ``[batch, vocabulary]`` and the chosen token ids. Out: what ``reductions.compute`` gives without likely tokens, or word
that this is a case for it: a value is not finite, or there is no extension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inferspan.capture.values.host import address_of
from inferspan.extension import load

__all__ = ["can_reduce", "reduce"]

_extension: Any = load().module
reduce_logits: Any = None if _extension is None else _extension.reduce_logits
"""``(address, rows, vocabulary, stride, address of ids or 0, their stride, address of the result)`` -> done; ``None`` without it."""


def can_reduce(logits: Tensor, chosen: Tensor | None) -> bool:
    """Whether tensors of this kind and layout can be reduced here; ``logits`` is a plain tensor of two dimensions."""
    usual = logits.dtype is torch.float32 and logits.device.type == "cpu" and logits.shape[1] > 1 and logits.stride(1) == 1
    known = chosen is None or (chosen.dtype is torch.int64 and chosen.device.type == "cpu" and type(chosen) is Tensor)
    return reduce_logits is not None and usual and known


def reduce(logits: Tensor, chosen: Tensor | None, out: int) -> bool:
    """Reduce each row.

    Args:
        logits: for which ``can_reduce`` is true, or like those.
        chosen: ``[batch]`` ids of the tokens that were taken.
        out: address of the result, dense float32 ``[batch, 13]``.

    Returns:
        Whether it was done: not if a value is not finite, or the difference of two is not, or there are no values.
    """
    rows, vocabulary = logits.shape
    address = address_of(logits)
    # One that is to be negated when it is read looks like any other.
    if not address or logits.is_neg():
        return False
    ids, step = (0, 0) if chosen is None else (chosen.data_ptr(), chosen.stride(0))
    done: bool = reduce_logits(address, rows, vocabulary, logits.stride(0), ids, step, out)
    return done
