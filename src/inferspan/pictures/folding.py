"""Runs of equal frames: the same boxes, taking the same kinds of values from the same kinds of boxes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MOST_FRAMES = 16


@dataclass(frozen=True)
class Fold:
    """A run of frames that repeats: ``period`` frames, ``count`` times, from the frame at position ``first``."""

    first: int
    period: int
    count: int


def _general(path: str) -> str:
    """A path without its numbers."""
    return re.sub(r"\d+", "#", path)


def _signature(frame: Any, boxes: Mapping[str, Any], coming: Mapping[str, list[Any]]) -> Any:
    position = {name: number for number, name in enumerate(frame.boxes)}
    described = []
    for name in frame.boxes:
        box = boxes[name]
        taken = sorted(
            (
                str(position[link.source]) if link.source in position else f"{boxes[link.source].kind} {_general(boxes[link.source].path)}",
                str([(value.dtype, value.dims) for value in link.values]),
            )
            for link in coming.get(name, ())
        )
        described.append((box.kind, _general(box.path), box.module_class, box.parameter_bytes, box.operations, tuple(taken)))
    return tuple(described)


def folds(frames: Sequence[Any], boxes: Mapping[str, Any], links: Sequence[Any]) -> list[Fold]:
    """Runs that repeat at least twice, the longest first at each place."""
    coming: dict[str, list[Any]] = {}
    for link in links:
        coming.setdefault(link.target, []).append(link)
    signatures = [_signature(frame, boxes, coming) for frame in frames]
    found: list[Fold] = []
    start = 0
    while start < len(frames):
        best = Fold(start, 1, 1)
        for period in range(1, min(_MOST_FRAMES, (len(frames) - start) // 2) + 1):
            block = signatures[start : start + period]
            count = 1
            while signatures[start + count * period : start + (count + 1) * period] == block:
                count += 1
            if count > 1 and count * period > best.count * best.period:
                best = Fold(start, period, count)
        if best.count > 1:
            found.append(best)
        start += best.period * best.count
    return found
