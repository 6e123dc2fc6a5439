"""Operations of a session as a table: count, total, average, percentiles, own time and memory, as rich or plain text.

In come rows of ``analysis.operations``; out comes text. Names of operations come from models and files: they reach the terminal without
control characters, and rich without its markup.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Sequence
from typing import Any

from inferspan.analysis.operations import OperationRow
from inferspan.summaries.lines import RecordingSummary
from inferspan.text.numbers import counted

__all__ = ["label_of", "own_notes", "plain_table", "rich_summary", "rich_table"]

_LONGEST_NAME = 48
_MIB = 1024 * 1024


def label_of(row: OperationRow) -> str:
    """Kind and name of an operation; the kind once where the name begins with it."""
    return row.name if row.name.startswith(f"{row.kind} ") else f"{row.kind} {row.name}"


def _memory(value: float | None) -> str:
    return "-" if value is None else f"{value / _MIB:+.1f}"


_COLUMNS = (
    ("operation", lambda row: _clean(label_of(row))),
    ("count", lambda row: f"{row.count:,}"),
    ("total s", lambda row: f"{row.total_duration:.3f}"),
    ("own s", lambda row: f"{row.self_duration:.3f}"),
    ("avg s", lambda row: f"{row.avg_duration:.3f}"),
    ("min s", lambda row: f"{row.min_duration:.3f}"),
    ("p50 s", lambda row: f"{row.p50:.3f}"),
    ("p95 s", lambda row: f"{row.p95:.3f}"),
    ("max s", lambda row: f"{row.max_duration:.3f}"),
    ("memory MiB", lambda row: _memory(row.total_memory_delta)),
    ("avg MiB", lambda row: _memory(row.avg_memory_delta)),
    ("clock", lambda row: row.clock),
)
"""Headings with the text of each row; all but the first and the last are figures."""
_ONLY_WITH_MEMORY = ("memory MiB", "avg MiB")
_TEXTS = ("operation", "clock")
_NARROW = ("operation", "count", "total s", "avg s", "p95 s", "memory MiB")
_WIDE = 132
"""Characters of a terminal from which on all columns have room."""


def _chosen(rows: Sequence[OperationRow], most: int) -> tuple[list[OperationRow], int]:
    """The first ``most`` rows of each kind, and how many are left out."""
    shown: list[OperationRow] = []
    seen: dict[str, int] = {}
    for row in rows:
        seen[row.kind] = seen.get(row.kind, 0) + 1
        if seen[row.kind] <= most:
            shown.append(row)
    return shown, len(rows) - len(shown)


def _cells(rows: Sequence[OperationRow], *, narrow: bool = False) -> tuple[list[str], list[list[str]]]:
    measured = any(row.total_memory_delta is not None for row in rows)
    columns = [
        column for column in _COLUMNS if (measured or column[0] not in _ONLY_WITH_MEMORY) and (column[0] in _NARROW or not narrow)
    ]
    return [title for title, _ in columns], [[text(row) for _, text in columns] for row in rows]


def plain_table(rows: Sequence[OperationRow], most: int = 12, width: int = _WIDE) -> str:
    """A line for each operation, the largest first; empty text of no rows.

    Args:
        rows: of ``Operations.rows()``.
        most: rows of each kind.
        width: characters that there are room for; in few there are fewer columns.
    """
    shown, left = _chosen(rows, most)
    if not shown:
        return ""
    titles, lines = _cells(shown) if width >= _WIDE else _short_cells(shown)
    widths = [max(len(line[place]) for line in [titles, *lines]) for place in range(len(titles))]

    def padded(place: int, cell: str) -> str:
        return cell.ljust(widths[place]) if titles[place] in _TEXTS else cell.rjust(widths[place])

    text = ["  ".join(padded(place, cell) for place, cell in enumerate(line)).rstrip() for line in [titles, *lines]]
    return "\n".join([*text, *([f"{left:,} more in the report"] if left else []), *own_notes(shown)])


def own_notes(rows: Sequence[OperationRow]) -> list[str]:
    """Where own time is of some calls only."""
    some = [row for row in rows if row.self_count is not None]
    if not some:
        return []
    told = ", ".join(f"{_clean(row.name)} {row.self_count:,} of {row.count:,}" for row in some)
    return [f"own time of steps is of those whose modules were recorded: {told}"]


def _short_cells(rows: Sequence[OperationRow]) -> tuple[list[str], list[list[str]]]:
    """Six columns with units, for terminals of 80 characters."""
    titles = ["operation", "count", "total", "own", "average", "p95"]
    clocks = len({row.clock for row in rows}) > 1
    cells = [
        [
            _fitted(_clean(label_of(row)), 24 if clocks else 32), f"{row.count:,}",
            *map(_seconds, (row.total_duration, row.self_duration, row.avg_duration, row.p95)), *([row.clock] if clocks else []),
        ]
        for row in rows
    ]  # fmt: skip
    return [*titles, *(["clock"] if clocks else [])], cells


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:,.2f} {unit}"
    return f"{value * 1e6:,.0f} us" if value else "0 s"


def _fitted(text: str, most: int) -> str:
    """The kind and the end of a name, which tells modules apart."""
    if len(text) <= most:
        return text
    kind, _, name = text.partition(" ")
    return f"{kind} ..{name[-(most - len(kind) - 3):]}"


def rich_table(rows: Sequence[OperationRow], most: int = 12, width: int | None = None) -> Any:
    """The same as a ``rich.table.Table``; ``None`` where rich is not installed.

    Args:
        rows: of ``Operations.rows()``.
        most: rows of each kind.
        width: characters that there are room for, by default those of the terminal; in few there are fewer columns.
    """
    try:
        tables, texts = importlib.import_module("rich.table"), importlib.import_module("rich.text")
    except ImportError:
        return None
    shown, left = _chosen(rows, most)
    titles, lines = _cells(shown, narrow=(shutil.get_terminal_size((_WIDE, 24)).columns if width is None else width) < _WIDE)
    notes = [*([f"{left:,} more in the report"] if left else []), *own_notes(shown)]
    table = tables.Table(title="Operations", caption="\n".join(notes) or None)
    for place, title in enumerate(titles):
        table.add_column(title, justify="left" if title in _TEXTS else "right", overflow="fold", no_wrap=place > 0)
    for line in lines:
        table.add_row(*(texts.Text(cell) for cell in line))
    return table


def rich_summary(summary: RecordingSummary, most: int = 20) -> list[Any]:
    """Events by type and seconds by module as two ``rich.table.Table``; none where rich is not installed.

    Args:
        summary: of ``summary_of``.
        most: modules.
    """
    try:
        tables, texts = importlib.import_module("rich.table"), importlib.import_module("rich.text")
    except ImportError:
        return []
    title = f"{counted(summary.total_events, 'event')}, {summary.total_duration:.3f} s"
    times = [(name, f"{seconds:.3f}") for name, seconds in list(summary.module_times.items())[:most]]
    rows = (
        (title, ("type", "count"), [(name, f"{number:,}") for name, number in summary.event_types.items()]),
        ("Time by module and stage", ("module or stage", "seconds"), times),
    )
    found = []
    for heading, columns, lines in rows:
        table = tables.Table(title=heading)
        for place, column in enumerate(columns):
            table.add_column(column, justify="right" if place else "left")
        for name, figure in lines:
            table.add_row(texts.Text(_clean(name)), figure)
        found.extend([table] if lines else [])
    return found


def _clean(text: str) -> str:
    short = text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 3] + "..."
    return "".join(sign if sign.isprintable() else "?" for sign in short)
