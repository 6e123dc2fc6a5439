"""A comparison -> headline, paragraphs and tables of words, which text, Markdown and HTML only lay out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inferspan.diff.compare import FINE, REGRESSION, SHOWN, UNDECIDED, Comparison, GroupDiff, Row
from inferspan.report.terminal import clean
from inferspan.text.numbers import counted
from inferspan.text.quantities import ABSENT, bytes_text, change_text, interval_text, real_text, seconds_text

__all__ = ["Cell", "Table", "headline", "lines_of", "tables"]

_MODULES = 20
"""Modules that are listed, those with the largest difference."""
_WORDS = {"time": ("slower", "faster"), "module": ("slower", "faster"), "memory": ("more", "less"), "energy": ("more", "less")}
_HEADLINES = {FINE: "no regression", REGRESSION: "REGRESSION", UNDECIDED: "cannot be judged"}


@dataclass(slots=True)
class Cell:
    """Ends of an interval of a ratio and the ratio, for a picture; ``tone`` is ``worse``, ``better`` or empty."""

    low: float
    ratio: float
    high: float
    tone: str


@dataclass(slots=True)
class Table:
    """Rows of words under a title; the first column begins at the left. ``cells`` are intervals by row, where there are any."""

    title: str
    header: Sequence[str]
    rows: list[Sequence[str]]
    cells: list[Cell | None]
    notes: list[str]


def headline(found: Comparison) -> str:
    """The verdict, or what changed."""
    if found.verdict is not None:
        gate = f"{100 * (found.gate or 0):g} %"
        about = f": a slow-down of {gate} or more is excluded" if found.verdict == FINE else f" (gate {gate})"
        return _HEADLINES[found.verdict] + about
    moved = [(diff, row) for diff in found.groups for row in diff.rows if row.direction(found.alpha)]
    if not moved:
        if all(row.change is None for diff in found.groups for row in diff.rows):
            return "too few requests to tell a change from noise"
        return "no change that can be told from noise"
    worse = sum(row.direction(found.alpha) > 0 for _, row in moved)
    return f"{counted(worse, 'figure')} grew and {len(moved) - worse} shrank beyond the noise"


def lines_of(found: Comparison) -> Iterator[str]:
    """What was compared, in sentences: both sides, and the reasons for the verdict."""
    yield f"A  {clean(str(found.a))}"
    yield f"B  {clean(str(found.b))}"


def tables(found: Comparison) -> Iterator[Table]:
    """The environment, then figures and modules of each group."""
    rows: list[Sequence[str]] = [tuple(clean(text or ABSENT) for text in fact) for fact in found.facts]
    if rows:
        yield Table("Environment: what differs", ("", "A", "B"), rows, [None] * len(rows), [])
    else:
        yield Table("Environment: no difference known", (), [], [], [])
    for diff in found.groups:
        yield _figures(diff, found)
        if diff.modules:
            yield _modules(diff, found)


def _figures(diff: GroupDiff, found: Comparison) -> Table:
    group = diff.group
    unpaired = f"{sum(map(len, group.a))} and {sum(map(len, group.b))}, not paired"
    number = counted(len(group.pairs), "pair") if group.paired else unpaired
    table = Table(f"{clean(diff.title)}: {number}", _header(found), [], [], list(_sentences(diff)))
    for row in diff.rows:
        _add(table, row, found, row.name)
    return table


def _modules(diff: GroupDiff, found: Comparison) -> Table:
    table = Table(f"Modules of {clean(diff.title)}, time of a call", _header(found), [], [], [])
    for row in diff.modules[:_MODULES]:
        _add(table, row, found, f"{row.name} ({row.phase})" if row.phase else row.name)
    left = len(diff.modules) - _MODULES
    if left > 0:
        table.notes.append(f"{counted(left, 'module')} with smaller differences: in the JSON form")
    return table


def _header(found: Comparison) -> Sequence[str]:
    return ("", "A", "B", "change", f"interval ({100 * (1 - 2 * found.alpha):.2f} %)", "")


def _add(table: Table, row: Row, found: Comparison, name: str) -> None:
    word, cell = "too few", None
    change = interval = ABSENT
    if row.change is not None:
        low, high = row.change.interval(found.alpha)
        direction = row.direction(found.alpha)
        change, interval = change_text(row.change.ratio), interval_text(low, high)
        word = _WORDS[row.kind][0 if direction > 0 else 1] if direction else ""
        tone = ("worse" if direction > 0 else "better") if direction else ""
        cell = Cell(low, row.change.ratio, high, tone)
    if row.judgement == REGRESSION:
        word = "REGRESSION"
    elif row.judgement == UNDECIDED and row.change is not None and not word:
        word = "undecided"
    elif row.role == SHOWN and row.kind != "module" and found.gate is not None and not word:
        word = "not judged"
    table.rows.append((clean(name), _value(row.a, row.unit), _value(row.b, row.unit), change, interval, word))
    table.cells.append(cell)


def _sentences(diff: GroupDiff) -> Iterator[str]:
    tokens, logits = diff.tokens, diff.logits
    if tokens is not None:
        told = f"output tokens, median: {_number(tokens.a)} in A, {_number(tokens.b)} in B"
        if tokens.differ is not None:
            told += f"; the number differs in {tokens.differ} of {counted(len(diff.group.pairs), 'pair')}"
        yield told
    if logits is not None:
        told = "logits of the first step: "
        if logits.differ:
            told += (
                f"differ in {logits.differ} of {counted(logits.pairs, 'pair')}, by at most {real_text(logits.largest)} deviations of A;"
                f" entropy by at most {real_text(logits.entropy)} nats"
            )
        else:
            told += f"equal in {counted(logits.pairs, 'pair')}"
        yield told


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,g}"


def _value(value: float, unit: str) -> str:
    return seconds_text(value) if unit == "s" else bytes_text(value) if unit == "By" else real_text(value, unit)
