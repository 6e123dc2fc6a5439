"""Statistics of module outputs, opt-in: computed on the device now, read at the end of the request.

In: outputs. Out: the ``inferspan.output.stat.*`` attributes of each, plain numbers, over the finite values of its first floating point
tensor, and the ``inferspan.outputs.stat.*`` of all of them where there are several. Nothing before ``OutputStats.read`` waits for the
device, writes to a tensor, keeps it alive, or copies more than ``PIECE`` of its values at once. Tensors without statistics (integers, 8-bit
floats, fake or wrapped tensors, ...) are refused without an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from inferspan import semconv
from inferspan.capture.values import host
from inferspan.capture.values.moments import Piece, moments, piece_of, reduced
from inferspan.capture.values.pieces import LARGEST, PIECE, pieces_of
from inferspan.capture.values.staging import LARGEST_STAGED, Staged, StagedRows
from inferspan.capture.values.unseen import hidden, unseen
from inferspan.records import AttributeValue, ModuleInfo

from .device_rows import DeviceRows, Place, is_plain
from .shapes import all_tensors

__all__ = ["LARGEST", "OutputStats", "pieces_of"]

_functions: Any = torch._C._is_torch_function_mode_enabled
_dispatches: Any = torch._C._len_torch_dispatch_stack


_Found = Piece | tuple[int, Staged] | Place[tuple[int, ...]] | None
"""The statistics of a tensor, or its number of values and where they will be."""


class OutputStats:
    """Statistics of the outputs of one request, bounded, on the device until ``read``.

    Args:
        capacity: most outputs that are kept until the next ``read``.
    """

    def __init__(self, *, capacity: int = 1 << 20) -> None:
        self._capacity = capacity
        self._staged = StagedRows(reduced)
        self._rows: DeviceRows[tuple[int, ...]] = DeviceRows()
        self._places: list[list[_Found]] = []

    @property
    def full(self) -> bool:
        """Whether nothing more is taken until ``read``."""
        return len(self._places) >= self._capacity

    def append(self, output: object, module: ModuleInfo | None = None) -> int | None:
        """Launch the statistics of one output: of its ordinary floating point tensors, if it is a tuple, list, mapping or dataclass.

        Args:
            output: of a module.
            module: which one; not needed here.

        Returns:
            Index in the result of ``read``; None if the output is refused: full, without such a tensor, or too large.
        """
        if _functions() or _dispatches():
            with unseen():
                return self._append(output)
        return self._append(output)

    def _append(self, output: object) -> int | None:
        if self.full:
            return None
        tensors = [output] if is_plain(output) else all_tensors(output, is_plain, [])
        places = [self._launch(tensor) for tensor in tensors if tensor.numel() <= LARGEST]
        if not places:
            return None
        self._places.append(places)
        return len(self._places) - 1

    def _launch(self, tensor: Tensor) -> _Found:
        """The statistics of a tensor, or where they will be; ``None`` of an empty one."""
        number = tensor.numel()
        if not number:
            return None
        if tensor.is_cpu and host.is_freed(tensor):
            return None
        if tensor.is_cpu and (known := host.moments(tensor)) is not None:
            return known
        if number <= LARGEST_STAGED:
            return number, self._staged.append(tensor)
        with torch.no_grad():
            pieces = list(pieces_of(tensor, PIECE))
            rows = torch.cat([reduced(piece.reshape(1, -1)) for piece in pieces])
        return self._rows.append(tuple(piece.numel() for piece in pieces), rows)

    @hidden
    def read(self) -> list[dict[str, AttributeValue]]:
        """The attributes of every output in the order of their ``append``; empties the store. May wait for the device."""
        places, self._places = self._places, []
        staged = self._staged.read()
        groups = {group: rows.tolist() for group, rows in self._rows.read().items()}

        def pieces(found: _Found) -> list[Piece]:
            if isinstance(found, Piece):
                return [found]
            if isinstance(found, Place):
                rows = groups[found.group][found.order]
                return [piece_of(count, row) for count, row in zip(found.kind, rows, strict=True)]
            return [] if found is None else [piece_of(found[0], staged(found[1]))]

        return [_joined([_attributes(pieces(found)) for found in of_output]) for of_output in places]


def _joined(found: list[dict[str, AttributeValue]]) -> dict[str, AttributeValue]:
    """The attributes of an output: those of its first tensor, and arrays with one entry for each tensor where there are several.

    An array in which a value would be missing looks like one of fewer tensors, and is left out.
    """
    if len(found) == 1:
        return found[0]
    arrays: dict[str, Any] = {
        all_of: [one[key] for one in found] for key, all_of in semconv.OUTPUTS_STATS.items() if all(key in one for one in found)
    }
    return {**found[0], **arrays}


def _attributes(pieces: Sequence[Piece]) -> dict[str, AttributeValue]:
    mean, std = moments(pieces)
    finite = [piece for piece in pieces if piece.values > piece.nonfinite]
    largest, smallest = max((piece.max for piece in finite), default=math.nan), min((piece.min for piece in finite), default=math.nan)
    doubles = {
        semconv.OUTPUT_STAT_MEAN: mean,
        semconv.OUTPUT_STAT_STD: std,
        semconv.OUTPUT_STAT_MIN: smallest,
        semconv.OUTPUT_STAT_MAX: largest,
        semconv.OUTPUT_STAT_ABS_MAX: max(abs(smallest), abs(largest)),
        semconv.OUTPUT_STAT_SPARSITY: sum(piece.zeros for piece in pieces) / sum(piece.values for piece in pieces) if pieces else math.nan,
    }
    nan_count = sum(piece.nan_count for piece in pieces)
    return {
        **{key: value for key, value in doubles.items() if math.isfinite(value)},
        semconv.OUTPUT_STAT_NAN_COUNT: int(nan_count),
        semconv.OUTPUT_STAT_INF_COUNT: int(sum(piece.nonfinite for piece in pieces) - nan_count),
        semconv.OUTPUT_STAT_ELEMENT_COUNT: int(sum(piece.values for piece in pieces)),
    }
