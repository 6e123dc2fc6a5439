"""The picture of a data flow: a box for each module call that makes or uses a tensor, a frame for each layer, equal layers as one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from inferspan.pictures.boxes import Box, Frame, Link, Value
from inferspan.pictures.picture import Picture, folded
from inferspan.records import FlowCall, FlowEdge

from .analysis import MODEL, Analysis, Key

__all__ = ["draw"]

MOST_BOXES = 300
_LAYER = re.compile(r"^(?:.*?\.)??\d+(?=\.|$)")
_RESULT: Key = (MODEL, "")
_EARLIER: Key = (MODEL, "~ earlier passes")
"""One box for everything that was made in them, such as what a cache holds."""


@dataclass(frozen=True)
class _Part(Frame):
    """A frame around the modules of a layer, or those between layers."""

    def title(self) -> str | None:
        """What the frame says."""
        if self.target is None:
            return ""
        named = f"{self.target} ({self.target_class})" if self.target_class else self.target
        return named if self.count == 1 else f"{named} and {self.count - 1} more like it"


def _matcher(patterns: Sequence[str]) -> Callable[[FlowCall], bool]:
    expressions = []
    for pattern in patterns:
        if pattern.startswith("re:"):
            try:
                expressions.append(re.compile(pattern[3:]))
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    plain = [pattern for pattern in patterns if not pattern.startswith("re:")]
    return lambda call: (
        any(one.match(call.name) for one in expressions)
        or any(call.name == one or call.type == one or fnmatchcase(call.name, one) for one in plain)
    )


class _Collapsed:
    """Which call stands for each call: itself, or the outermost one around it that is shown as one box."""

    def __init__(self, calls: Sequence[FlowCall], ignored: Callable[[FlowCall], bool], depth: int | None) -> None:
        self.calls = {call.number: call for call in calls}
        self.stands: dict[int, int] = {}
        self.ignored = {call.number for call in calls if ignored(call)}
        for call in sorted(calls, key=lambda one: one.number):
            above = self.stands.get(call.parent)
            whole = above is not None and (above in self.ignored or above != call.parent or self._is_deep(above, depth))
            self.stands[call.number] = above if whole and above is not None else call.number

    def _is_deep(self, number: int, depth: int | None) -> bool:
        return depth is not None and self.calls[number].name.count(".") + 1 >= depth


def draw(
    title: str, calls: Sequence[FlowCall], edges: Sequence[FlowEdge], analysis: Analysis, which: Mapping[int, int],
    ignore: Sequence[str] = (), depth: int | None = None,
) -> Picture:
    """Draw a data flow; see ``DataFlow.picture``.

    Raises:
        ValueError: an argument cannot be used.
    """  # fmt: skip
    if depth is not None and depth < 1:
        raise ValueError("depth is 1 or more")
    matcher = _matcher(ignore)
    found = _draw(title, _Collapsed(calls, matcher, depth), edges, analysis, which)
    deepest = max((call.name.count(".") + 1 for call in calls), default=1)
    while depth is None and len(found.boxes) > MOST_BOXES and deepest > 1:
        deepest -= 1
        found = _draw(title, _Collapsed(calls, matcher, deepest), edges, analysis, which)
    return found


def _draw(title: str, shown: _Collapsed, edges: Sequence[FlowEdge], analysis: Analysis, which: Mapping[int, int]) -> Picture:
    links: dict[tuple[Key, Key], dict[tuple[int, tuple[str, ...]], tuple[FlowEdge, bool]]] = {}
    for place, edge in enumerate(edges):
        if not analysis.final[place]:
            continue
        source, target = analysis.sources[place], (edge.target, "")
        if edge.origin == "earlier" and source[0] == MODEL:
            source = _EARLIER
        source = (shown.stands[source[0]], "") if source[0] in shown.stands else source
        target = (shown.stands[target[0]], "") if target[0] in shown.stands else target
        if source != target:
            links.setdefault((source, target), {}).setdefault((edge.tensor, edge.via), (edge, analysis.skip[place]))
    used = {key for pair in links for key in pair}
    boxes: dict[str, Box] = {}
    names: dict[Key, str] = {}
    for key in sorted(key for key in used if key[0] == MODEL and key != _RESULT):
        _add(boxes, names, key, "input", key[1].partition(" ")[2], "", None)
    frames: list[Frame] = []
    layer: str | None = None
    members: list[str] = []
    for number in analysis.order():
        if (number, "") not in used:
            continue
        call = shown.calls[number]
        match = _LAYER.match(call.name)
        here = match[0] if match else ""
        if here != layer:
            _close(frames, layer, members, shown)
            layer, members = here, []
        kind = "ignored" if number in shown.ignored else "module"
        name = call.name if which[number] == 1 else f"{call.name} #{which[number]}"
        members.append(_add(boxes, names, (number, ""), kind, name, call.type, len(frames)))
    _close(frames, layer, members, shown)
    result = _add(boxes, names, _RESULT, "output", "result", "", None) if _RESULT in used else ""
    drawn = [
        Link(names[source], names[target], tuple(_value(edge) for edge, _ in values.values()), any(skip for _, skip in values.values()))
        for (source, target), values in links.items()
    ]
    return folded(title, boxes, frames, drawn, result)


def _add(boxes: dict[str, Box], names: dict[Key, str], key: Key, kind: str, path: str, module_class: str, frame: int | None) -> str:
    name = names[key] = f"b{len(boxes)}"
    boxes[name] = Box(name, kind, path, module_class, frame)
    return name


def _close(frames: list[Frame], layer: str | None, members: Sequence[str], shown: _Collapsed) -> None:
    if layer is not None and members:
        kind = next((call.type for call in shown.calls.values() if call.name == layer), "")
        frames.append(_Part(len(frames), layer or None, kind, tuple(members)))


def _value(edge: FlowEdge) -> Value:
    dims = None if edge.shape is None else tuple(map(str, edge.shape))
    words = [edge.name] if edge.origin == "earlier" else [] if edge.via else ["tensor"]
    words += [f"via {', '.join(edge.via)}"] if edge.via else []
    return Value(" ".join(words), edge.dtype, dims, edge.bytes)
