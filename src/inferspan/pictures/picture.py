"""A picture, and equal frames folded into one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .boxes import Box, Frame, Link, Plan
from .dot import dot
from .folding import folds
from .svg import svg


@dataclass(frozen=True)
class Picture(Plan):
    """A picture of a graph: boxes, frames and links."""

    def as_dict(self) -> dict[str, Any]:
        """The picture as plain values."""
        return {"schema": 1, **asdict(self)}

    def to_json(self, indent: int | None = None) -> str:
        """``as_dict`` as JSON."""
        return json.dumps(self.as_dict(), indent=indent)

    def to_dot(self) -> str:
        """The picture in the language of Graphviz."""
        return dot(self)

    def to_svg(self) -> str:
        """The picture as SVG, laid out by inferspan; Graphviz is not needed."""
        return svg(self)


def folded(title: str, boxes: Mapping[str, Box], frames: Sequence[Frame], links: Sequence[Link], output: str = "") -> Picture:
    """Draw runs of equal frames once, and move what comes from or goes to their copies to the ones that are drawn."""
    runs = folds(frames, boxes, links)
    stand: dict[str, str] = {}
    place = {frame.index: number for number, frame in enumerate(frames)}
    drawn: list[Frame] = []
    skipped: set[int] = set()
    for run in runs:
        for copy in range(run.count):
            for step in range(run.period):
                original, other = frames[run.first + step], frames[run.first + copy * run.period + step]
                stand.update(zip(other.boxes, original.boxes, strict=True))
                if copy:
                    skipped.add(run.first + copy * run.period + step)
    counts = {run.first + step: run for run in runs for step in range(run.period)}
    for number, frame in enumerate(frames):
        if number not in skipped:
            repeated = counts.get(number)
            drawn.append(replace(frame, count=repeated.count, step=repeated.period) if repeated else frame)
    kept = {name for frame in drawn for name in frame.boxes}
    shown = tuple(box for box in boxes.values() if box.frame is None or box.id in kept)
    order = {box.id: number for number, box in enumerate(shown)}
    if output:
        order[output] = len(order)
    merged: dict[tuple[str, str, bool], Link] = {}
    for link in links:
        source, target = stand.get(link.source, link.source), stand.get(link.target, link.target)
        start, end = (boxes[name].frame for name in (link.source, link.target))
        skips = link.skips or (start is not None and end is not None and place[end] - place[start] > 1)
        loop = order[source] >= order[target]
        old = merged.get((source, target, loop))
        skips = skips or (old is not None and old.skips)
        merged[source, target, loop] = replace(old or link, source=source, target=target, skips=skips, loop=loop)
    return Picture(title, shown, tuple(drawn), tuple(merged.values()), tuple(runs))
