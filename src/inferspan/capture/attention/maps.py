"""Attention weights for the session file: eight bits a weight, compressed."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence

from torch import Tensor

from .results import AttentionCall, AttentionMap

__all__ = ["pack"]

LARGEST_MAP = 1 << 20
"""Weights of one call that are written head by head; of more, the mean over the heads is written."""
MOST_BYTES = 8 << 20
"""Of base64 for one request."""


def pack(calls: Sequence[AttentionCall]) -> Iterator[AttentionMap]:
    """The maps of calls whose weights were kept, of the first sequence of a batch each.

    Args:
        calls: the calls.
    """
    room = MOST_BYTES
    for call in calls:
        weights: Tensor | None = call.weights
        if weights is None:
            continue
        some = weights[:1]
        if some.numel() > LARGEST_MAP:
            some = some.mean(1, keepdim=True)
        if some.numel() > LARGEST_MAP:
            continue
        largest = float(some.max()) or 1.0
        levels = (some.double() * (255 / largest)).round().clamp(0, 255).byte().contiguous()
        data = base64.b64encode(zlib.compress(levels.numpy().tobytes(), 6)).decode("ascii")
        room -= len(data)
        if room < 0:
            return
        sequences, heads, queries, keys = some.shape
        yield AttentionMap(
            call.module, call.step, call.time_ns, (sequences, heads, queries, keys), call.shift, largest / 255, data, call.cross
        )
