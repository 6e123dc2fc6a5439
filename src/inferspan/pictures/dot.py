"""A picture in the language of Graphviz."""

from __future__ import annotations

from .boxes import Box, Link, Plan
from .text import box_lines, clean, frame_title, link_lines

_STYLES = {
    "input": 'shape=oval, style=filled, fillcolor="#eef2f7"',
    "output": 'shape=oval, style=filled, fillcolor="#eef2f7"',
    "target": 'shape=box, style=filled, fillcolor="#dbeafe"',
    "ignored": 'shape=box, style="filled,dashed", fillcolor="#f3f4f6"',
    "module": 'shape=box, style="filled,rounded", fillcolor="#ffffff"',
}


def _quoted(lines: list[str]) -> str:
    """A string of DOT: backslashes and quotes are escaped, so that names cannot end it."""
    return '"' + "\\n".join(clean(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


def _node(box: Box) -> str:
    return f"{box.id} [label={_quoted(box_lines(box))}, {_STYLES[box.kind]}];"


def _edge(link: Link) -> str:
    style = ", style=dashed, constraint=false" if link.loop else ', color="#b45309"' if link.skips else ""
    return f"{link.source} -> {link.target} [label={_quoted(link_lines(link, 3))}{style}];"


def dot(picture: Plan) -> str:
    """The picture as a digraph with a cluster for each frame."""
    lines = [
        "digraph graph_picture {",
        f"  label={_quoted([picture.title])};",
        '  node [fontname="sans-serif", fontsize=10];',
        '  edge [fontname="sans-serif", fontsize=8];',
    ]
    lines += [f"  {_node(box)}" for box in picture.boxes if box.frame is None]
    boxes = {box.id: box for box in picture.boxes}
    for frame in picture.frames:
        lines += [f"  subgraph cluster_{frame.index} {{", f"    label={_quoted([frame_title(frame)])};"]
        lines += [f"    {_node(boxes[name])}" for name in frame.boxes]
        lines.append("  }")
    lines += [f"  {_edge(link)}" for link in picture.links]
    return "\n".join((*lines, "}", ""))
