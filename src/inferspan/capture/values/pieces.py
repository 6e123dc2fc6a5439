"""Large tensors in pieces, so that temporary memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["LARGEST", "PIECE", "pieces_of"]

PIECE = 1 << 22
"""Values worked on at once: three float copies of so many are the temporary memory."""
LARGEST = 1 << 28
"""Values beyond which a tensor is left alone: it would take seconds on a CPU."""


def pieces_of(tensor: Tensor, most: int = PIECE) -> Iterator[Tensor]:
    """Views of at most ``most`` values; cut along the longest dimension, so no layout needs a copy."""
    if tensor.numel() <= most:
        yield tensor
        return
    longest = max(range(tensor.dim()), key=tensor.shape.__getitem__)
    for half in torch.tensor_split(tensor, 2, longest):
        yield from pieces_of(half, most)
