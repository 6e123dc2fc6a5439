"""The largest logits of every row and position of a pass, as the language head returns them, where content may be captured.

In: outputs of the head. Out: ids, raw logits and texts, read when the request ends. Nothing before that waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.modules.device_rows import DeviceRows, Place, is_plain
from inferspan.capture.values.unseen import hidden
from inferspan.guard import contain, read_attribute

from .results import PositionLogits, TopLogits

__all__ = ["PositionLog", "head_of"]

MOST_OF_PASS = 1024
"""Rows and positions of a pass that are kept: of each row the last ones."""
MOST_OF_REQUEST = 4096


def head_of(root: nn.Module) -> str | None:
    """Path of the language head of a model, if it has one and says so."""
    with contain("largest logits"):
        asked = read_attribute(root, "get_output_embeddings")
        head = asked() if callable(asked) else None
        return next((path for path, module in root.named_modules() if module is head and path), None) if head is not None else None
    return None


class PositionLog:
    """The largest logits of one request.

    Args:
        k: how many of a position; 0 for none.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._rows: DeviceRows[tuple[int, int]] = DeviceRows()
        self._passes: list[tuple[int | None, int, tuple[int, ...], int, int, Place[tuple[int, int]] | None]] = []
        self._taken = 0

    @hidden
    def add(self, step: int | None, time: int, output: Any) -> None:
        """Launch the largest logits ``[rows, positions, vocabulary]`` of a pass; anything else is passed over."""
        if not is_plain(output) or output.dim() not in (2, 3) or not output.numel() or (output.is_cuda and is_capturing()):
            return
        logits = output if output.dim() == 3 else output.unsqueeze(1)
        rows, positions, vocabulary = logits.shape
        left = min(MOST_OF_PASS, MOST_OF_REQUEST - self._taken)
        kept_rows = min(rows, left)
        width = min(positions, left // kept_rows) if kept_rows else 0
        place = None
        if width:
            k = min(self._k, vocabulary)
            with torch.no_grad():
                place = self._rows.append((kept_rows * width, k), _largest(logits[:kept_rows, positions - width :], k))
            self._taken += kept_rows * width
        self._passes.append((step, time, tuple(output.shape), positions - width, width, place))

    @hidden
    def read(self, offset: int, decode: Callable[[int], str] | None) -> list[TopLogits]:
        """Everything, which may wait for the device.

        Args:
            offset: added to a time, gives nanoseconds since the epoch.
            decode: text of a token id; ``None`` without a tokenizer.
        """
        passes, self._passes = self._passes, []
        if not passes:
            return []
        groups = {group: rows.tolist() for group, rows in self._rows.read().items()}
        texts: dict[int, str] = {}

        def text(token: int) -> str:
            found = texts.get(token)
            if found is None:
                found = texts[token] = "" if decode is None else decode(token)
            return found

        found = []
        for step, time, shape, first, width, place in passes:
            kept = []
            for number, values in enumerate(groups[place.group][place.order] if place is not None else ()):
                k = len(values) // 2
                ids = tuple(int(one) for one in values[k:])
                words = tuple(map(text, ids)) if decode is not None else None
                kept.append(PositionLogits(number // width, first + number % width, ids, tuple(values[:k]), words))
            total = shape[0] * (shape[1] if len(shape) == 3 else 1)
            found.append(TopLogits(step, time + offset, shape, tuple(kept), total - len(kept)))
        return found


def _largest(logits: Tensor, k: int) -> Tensor:
    """The ``k`` largest of each position and their ids, as ``[positions, 2 k]`` float64; what is not finite as the limit of the dtype."""
    values, ids = torch.nan_to_num(logits.flatten(0, 1), nan=torch.finfo(logits.dtype).min).topk(k, -1)
    return torch.cat([values.double(), ids.double()], 1)
