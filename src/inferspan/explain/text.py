"""An explanation as lines of text for a terminal, a log or a report; none is longer than the width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from inferspan.text.quantities import seconds_text

from .bottlenecks import Bottleneck
from .cause import Cause
from .explanation import Explanation
from .tree import Node
from .wording import percent

__all__ = ["explanation_lines"]

_INDENT = "   "
_LABEL = 10


def explanation_lines(found: Explanation, width: int = 100, *, full: bool = True) -> list[str]:
    """The causes in order, then, with ``full``, the tree of the time, bottlenecks and missing data."""
    width = max(50, width)
    if not found.requests:
        lines = ["no request of an instrumented model is in the recording"]
    elif not found.causes:
        lines = ["no rule has found anything to change"]
    else:
        lines = [line for place, cause in enumerate(found.causes, 1) for line in (*_cause(place, cause, found.total, width), "")][:-1]
    if full and found.requests:
        lines += ["", "Where the time went", *_tree(found.tree, width)]
        if found.bottlenecks:
            lines += ["", "What limits it", *_bottlenecks(found.bottlenecks, width)]
    if full and found.missing:
        lines += ["", "Not enough data", *(line for one in found.missing for line in _missing(one.what, one.why, one.setting, width))]
    return lines


def _cause(place: int, cause: Cause, total: float, width: int) -> Iterator[str]:
    share = cause.share(total)
    head = f"{place}. {cause.rule}"
    tail = ", ".join([*([percent(share) + " of the time"] if share is not None else []), cause.severity(total), cause.sure])
    yield head + " " * max(2, width - len(head) - len(tail)) + tail
    yield from _labelled("", cause.title, width)
    yield from _labelled("change", cause.advice, width)
    if cause.setting:
        yield from _labelled("setting", cause.setting, width)
    yield from _labelled("expect", _expected(cause, total), width)
    for part in cause.parts:
        seconds = f", {seconds_text(part.seconds)}" if part.seconds is not None else ""
        yield from _labelled("in", f"{part.name}{seconds}{f', {part.note}' if part.note else ''}", width)
    for number, span in enumerate(cause.spans):
        told = f"{span.name}, {seconds_text(span.seconds)}, trace {span.trace_id}, span {span.span_id}"
        yield from _labelled(" " if number else "spans", told, width)


def _expected(cause: Cause, total: float) -> str:
    if cause.gain is None:
        return "cannot be told from the recording"
    share = f" of {seconds_text(total)}, {percent(min(1.0, cause.gain / total))}" if total > 0 else ""
    basis = {"at most": "at most, if all of it is saved", "measured": "measured", "estimated": "estimated"}[cause.basis]
    return f"{seconds_text(cause.gain)}{share} ({basis})"


def _labelled(label: str, told: str, width: int) -> list[str]:
    told = "".join(sign if sign.isprintable() else "?" for sign in told)
    first = _INDENT + f"{label}:".ljust(_LABEL) if label.strip() else _INDENT + (" " * _LABEL if label else "")
    rest = _INDENT + " " * _LABEL if label else _INDENT
    return textwrap.wrap(told, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False) or [first.rstrip()]


def _tree(node: Node, width: int, depth: int = 0) -> Iterator[str]:
    share = percent(node.share) if node.share is not None else "-"
    seconds = seconds_text(node.seconds) if node.seconds is not None else "-"
    name = f"{node.rule}: {node.name}" if node.rule else node.name
    yield f"{share:>6}  {seconds:>9}   {'  ' * depth}{_line(name, width - 20 - 2 * depth)}"
    for child in node.children:
        yield from _tree(child, width, depth + 1)


def _bottlenecks(found: Sequence[Bottleneck], width: int) -> Iterator[str]:
    for one in found:
        limit = f"{one.bound} ({one.sure}; {one.reason})" if one.bound is not None else one.reason
        yield f"{percent(one.share):>6}  {_line(f'{one.kind} {one.name}: {limit}', width - 8)}"


def _line(told: str, width: int) -> str:
    """One line of printable characters."""
    return textwrap.shorten("".join(sign if sign.isprintable() else "?" for sign in told), max(20, width), placeholder=" ...")


def _missing(what: str, why: str, setting: str | None, width: int) -> list[str]:
    told = f"{what}: {why}" + (f"; set {setting}" if setting else "")
    return textwrap.wrap(told, width, initial_indent=_INDENT, subsequent_indent=_INDENT + "  ", break_on_hyphens=False)
