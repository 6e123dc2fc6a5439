"""A comparison as lines for the terminal and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from inferspan.diff.compare import Comparison
from inferspan.diff.tables import headline, lines_of, tables
from inferspan.report.terminal import clean

__all__ = ["markdown_lines", "text_lines"]

_REFERENCE = re.compile(r"(?<=@)(?=\w)|(?<=[#!])(?=\d)|(?<=\bGH-)(?=\d)", re.IGNORECASE)
"""Where ``@name``, ``#1``, ``!1`` (a merge request of GitLab) and ``GH-1`` are divided."""
_NOTHING = "\u200b"
"""A space without width."""


def text_lines(found: Comparison) -> Iterator[str]:
    """The verdict, what was compared, and the tables."""
    yield headline(found)
    for reason in found.reasons:
        yield f"  {clean(reason)}"
    yield ""
    yield from lines_of(found)
    for table in tables(found):
        yield ""
        yield table.title
        if table.rows:
            yield from _columns(table.header, table.rows)
        for note in table.notes:
            yield f"  {clean(note)}"
    if found.notes:
        yield ""
    for note in found.notes:
        yield f"note: {clean(note)}"


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]
    left = (0, len(header) - 1) if len(header) > 3 else range(len(header))
    for row in (header, *rows):
        padded = zip(row, widths, strict=True)
        cells = (cell.ljust(width) if place in left else cell.rjust(width) for place, (cell, width) in enumerate(padded))
        yield f"  {'  '.join(cells)}".rstrip()


def markdown_lines(found: Comparison) -> Iterator[str]:
    """The same for a comment on a change, or a job's summary."""
    yield f"### {_escaped(headline(found))}"
    yield ""
    for reason in found.reasons:
        yield f"- {_escaped(reason)}"
    if found.reasons:
        yield ""
    for line in lines_of(found):
        yield f"- {_escaped(line)}"
    for table in tables(found):
        yield ""
        yield f"**{_escaped(table.title)}**"
        if table.rows:
            yield ""
            yield f"| {' | '.join(map(_escaped, table.header))} |"
            numbers = len(table.header) > 3
            marks = ["---:" if numbers and 0 < place < len(table.header) - 1 else "---" for place in range(len(table.header))]
            yield f"|{'|'.join(marks)}|"
            for row in table.rows:
                yield f"| {' | '.join(map(_escaped, row))} |"
        for note in table.notes:
            yield ""
            yield _escaped(note)
    if found.notes:
        yield ""
    for note in found.notes:
        yield f"- {_escaped(note)}"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, and that names no account, issue or change of a forge."""
    # Backslashes and entities do not keep GitHub from finding names: it looks at the text that is shown.
    text = _REFERENCE.sub(_NOTHING, clean(text))
    for mark in "\\`*_[]|":
        text = text.replace(mark, "\\" + mark)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("~", "&#126;").replace(_NOTHING, "&#8203;")
