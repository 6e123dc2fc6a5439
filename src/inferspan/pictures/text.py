"""What boxes, frames and links say."""

from __future__ import annotations

import re

from inferspan.text.numbers import counted
from inferspan.text.quantities import bytes_text

from .boxes import Box, Frame, Link, Value

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(text: str) -> str:
    """Text on one line, without characters that XML and terminals do not take."""
    return _FORBIDDEN.sub("", re.sub(r"[\r\n\t]+", " ", text))


def box_lines(box: Box) -> list[str]:
    """Path, class, weights and operations of a box."""
    if box.kind in ("input", "output"):
        return [box.path]
    facts = []
    if box.parameter_bytes:
        facts.append(f"{bytes_text(box.parameter_bytes)} of weights")
    if box.kind == "ignored":
        facts.append("ignored")
    if box.operations and box.kind == "module":
        facts.append(counted(box.operations, "operation"))
    return [line for line in (box.path or "(the model itself)", box.module_class, ", ".join(facts)) if line]


def frame_title(frame: Frame) -> str:
    """Which subgraphs a frame stands for, or the title that it has itself."""
    own = frame.title()
    if own is not None:
        return own
    if frame.count > 1:
        steps = f" in steps of {frame.step}" if frame.step > 1 else ""
        return f"subgraphs {frame.index} to {frame.last}{steps}: {frame.target_class} \u00d7 {frame.count}"
    return f"subgraph {frame.index}: {frame.target} ({frame.target_class})" if frame.target else f"subgraph {frame.index}"


def value_text(value: Value) -> str:
    """Name, dtype, shape and bytes of a value."""
    if value.dims is None and value.bytes is None:
        return value.name
    shape = f" {value.dtype or ''}[{', '.join(value.dims)}]" if value.dims is not None else ""
    return f"{value.name}{shape} {bytes_text(value.bytes)}"


def link_lines(link: Link, most: int) -> list[str]:
    """The values of a link, a line each, and how many more there are."""
    lines = [value_text(value) for value in link.values[:most]]
    return lines + ([f"and {len(link.values) - most} more"] if len(link.values) > most else [])
