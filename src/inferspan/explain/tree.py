"""Where the time of a recording went: its parts, and below each the causes that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferspan import semconv

from .cause import Cause
from .figures import Figures

__all__ = ["MACHINE", "OUTSIDE", "PROGRAM", "QUEUE", "Node", "tree_of"]

QUEUE, PROGRAM, MACHINE = "queue", "program", "machine"
"""Places beside phases: waiting for a place in a batch, stages of the program, and what concerns all parts alike."""
OUTSIDE = "other time of requests"
_LEAST = 0.001


@dataclass(frozen=True, slots=True)
class Node:
    """A part of the time, or a cause; ``share`` is that of all time, ``None`` where nothing measures it."""

    name: str
    seconds: float | None
    share: float | None
    children: Sequence[Node] = ()
    rule: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields under their names."""
        found: dict[str, Any] = {"name": self.name, "seconds": self.seconds, "share": self.share}
        if self.rule is not None:
            found["rule"] = self.rule
        if self.children:
            found["children"] = [child.as_dict() for child in self.children]
        return found


def tree_of(figures: Figures, causes: Sequence[Cause]) -> Node:
    """The tree: phases, the queue, stages of the program, then what concerns all of it; the longest first."""
    parts = {name: seconds for name, seconds in _parts(figures).items() if seconds > _LEAST * figures.total}
    below: dict[str, list[Cause]] = {}
    for cause in causes:
        below.setdefault(cause.place if cause.place in parts else MACHINE, []).append(cause)
    nodes = [
        Node(name, seconds, _share(seconds, figures.total), _causes(below.get(name, ()), figures.total))
        for name, seconds in sorted(parts.items(), key=lambda item: -item[1])
    ]
    if below.get(MACHINE):
        nodes.append(Node("all parts", None, None, _causes(below[MACHINE], figures.total)))
    return Node("time", figures.total, 1.0 if figures.total > 0 else None, nodes)


def _parts(figures: Figures) -> dict[str, float]:
    found: dict[str, float] = {}
    for request in figures.requests:
        inside = request.queue
        if request.queue:
            found[QUEUE] = found.get(QUEUE, 0.0) + request.queue
        for phase in request.phases:
            if phase.name == semconv.PHASE_FORWARD:
                # Stages of a plain call are inside its pass.
                inner = sum(one.seconds for one in request.phases if one is not phase)
                seconds = max(0.0, phase.seconds - inner)
            else:
                seconds = phase.seconds
            found[phase.name] = found.get(phase.name, 0.0) + seconds
            inside += seconds
        found[OUTSIDE] = found.get(OUTSIDE, 0.0) + max(0.0, request.seconds - inside)
    stages = sum(stage.seconds for stage in figures.stages.values())
    if stages:
        found[PROGRAM] = stages
    return found


def _causes(causes: Sequence[Cause], total: float) -> list[Node]:
    return [
        Node(
            cause.title, cause.seconds, cause.share(total),
            [Node(part.name, part.seconds, _share(part.seconds, total)) for part in cause.parts], cause.rule,
        )
        for cause in causes
    ]  # fmt: skip


def _share(seconds: float | None, total: float) -> float | None:
    return min(1.0, seconds / total) if seconds is not None and total > 0 else None
