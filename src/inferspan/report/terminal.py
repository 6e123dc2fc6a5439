"""The requests of a session as a compact table of plain text, for terminals, logs and ``handle.summary()``.

In come rows or a whole session; out comes one string without trailing newline. Colour is used only when it is asked for; control
characters of names that come from the file never reach the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferspan.report.overview import RequestRow, Totals, request_rows, totals
from inferspan.report.quantities import bytes_text, count_text, counted, real_text, seconds_text
from inferspan.report.session import Session

__all__ = ["clean", "summary", "table", "totals_line"]

_LONGEST_NAME = 44
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"
_HEADERS = ("#", "request", "batch", "in", "out", "TTFT", "TPOT", "tok/s", "duration", "result")
_LEFT = ("request", "result")


def summary(session: Session, *, colour: bool = False, most: int = 50) -> str:
    """Totals and the table of requests of a session.

    Args:
        session: result of ``read_session``.
        colour: mark failed requests red; pass whether the output is a terminal.
        most: number of requests in the table; of more, the last ones are shown.
    """
    rows = request_rows(session)
    if rows:
        parts = [f"{clean(str(session.path))}: {totals_line(totals(rows))}", "", table(rows, colour=colour, most=most)]
    else:
        parts = [f"{clean(str(session.path))}: no request of an instrumented model in this file"]
    if session.notes:
        parts += ["", *(f"note: {note}" for note in session.notes)]
    return "\n".join(parts)


def totals_line(figures: Totals) -> str:
    """The totals in one line; unknown figures are omitted."""
    parts = [counted(figures.requests, "request")]
    if figures.failed:
        parts[0] += f" ({figures.failed:,} failed)"
    if figures.input_tokens is not None or figures.output_tokens is not None:
        parts.append(f"{_tokens(figures.input_tokens)} in, {count_text(figures.output_tokens)} out")
    for word, pair in (("TTFT", figures.ttft), ("TPOT", figures.tpot)):
        if pair is not None:
            parts.append(f"{word} p50 {seconds_text(pair[0])}, p95 {seconds_text(pair[1])}")
    if figures.tokens_per_second is not None:
        parts.append(real_text(figures.tokens_per_second, "tok/s"))
    if figures.peak_memory is not None:
        parts.append(f"peak memory {bytes_text(figures.peak_memory)}")
    if figures.energy is not None:
        parts.append(f"energy {real_text(figures.energy, 'J')}")
    return "; ".join(parts)


def table(rows: Sequence[RequestRow], *, colour: bool = False, most: int = 50) -> str:
    """The table alone: a header line, a line for each request, and a line that says how many were left out."""
    first = max(0, len(rows) - most)
    cells = [_cells(number, row) for number, row in enumerate(rows[first:], first + 1)]
    widths = [max(len(line[column]) for line in [_HEADERS, *cells]) for column in range(len(_HEADERS))]
    lines = [_line(_HEADERS, widths)]
    for row, line in zip(rows[first:], cells, strict=True):
        text = _line(line, widths)
        lines.append(f"{_RED}{text}{_PLAIN}" if colour and row.failed else text)
    if first:
        lines.append(f"{counted(first, 'earlier request is', 'earlier requests are')} not shown")
    return "\n".join(lines)


def _cells(number: int, row: RequestRow) -> tuple[str, ...]:
    return (
        str(number),
        _short(clean(row.name)),
        count_text(row.batch),
        count_text(row.input_tokens),
        count_text(row.output_tokens),
        seconds_text(row.ttft),
        seconds_text(row.tpot),
        real_text(row.tokens_per_second),
        seconds_text(row.seconds),
        clean(_result(row)),
    )


def _result(row: RequestRow) -> str:
    if row.failed:
        words = [f"error {row.error_type}" if row.error_type else "error"]
    else:
        # A batch repeats its reasons: "stop x3, length".
        counts = {reason: row.finish_reasons.count(reason) for reason in dict.fromkeys(row.finish_reasons)}
        words = [f"{reason} x{count}" if count > 1 else reason for reason, count in counts.items()] or ["ok"]
    words += row.notes
    if row.dropped:
        words.append(f"{counted(row.dropped, 'span')} dropped")
    return ", ".join(words)


def _tokens(number: int | None) -> str:
    return f"{count_text(number)} tokens" if number is None else counted(number, "token")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.ljust(width) if header in _LEFT else cell.rjust(width) for header, cell, width in zip(_HEADERS, cells, widths, strict=True)
    )
    return "  ".join(padded).rstrip()


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


def clean(text: str) -> str:
    """The text without control characters, which a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
