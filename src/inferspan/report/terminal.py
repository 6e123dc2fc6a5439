"""The requests of a session as a compact table of plain text, for terminals, logs and ``handle.summary()``.

In come rows or a whole session; out comes one string without trailing newline. Colour is used only when it is asked for; control
characters of names that come from the file never reach the terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from inferspan.analysis.findings import FINDINGS
from inferspan.report.figures.bottlenecks import bottleneck_lines
from inferspan.report.figures.collectives import collective_lines
from inferspan.report.overview import RequestRow, Totals, request_rows, totals
from inferspan.report.session import Session
from inferspan.summaries.lines import RecordingSummary
from inferspan.text.numbers import counted
from inferspan.text.quantities import bytes_text, count_text, real_text, seconds_text

__all__ = ["MEANINGS", "clean", "events_lines", "legend", "summary", "table", "totals_line"]

_LONGEST_NAME = 44
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"
_HEADERS = ("#", "request", "batch", "in", "out", "TTFT", "TPOT", "tok/s", "duration", "result")
_LEFT = ("request", "result")
MEANINGS = {
    "warm-up": "something was compiled or called for the first time, which takes longer",
    "nested": "inside another request, not in the totals",
    **FINDINGS,
}
"""Of words in the column ``result`` that do not speak for themselves."""


def summary(session: Session, *, colour: bool = False, most: int = 50, width: int | None = None) -> str:
    """Totals and the table of requests of a session, with what its words mean.

    Args:
        session: result of ``read_session``.
        colour: mark failed requests red; pass whether the output is a terminal.
        most: number of requests in the table; of more, the last ones are shown.
        width: characters of a line, by default as many as it takes; names of requests are cut to fit.
    """
    rows = request_rows(session)
    if rows:
        told = totals_line(totals(rows)).split("; ")
        name = clean(str(session.path))
        first = [f"{name}: {'; '.join(told)}"] if width is None else [f"{name}:", *_filled("  ", told, "; ", width)]
        parts = [*first, "", table(rows, colour=colour, most=most, width=width)]
        parts += legend(rows[-most:], width)
        if limits := [*bottleneck_lines(session), *collective_lines(session.requests)]:
            parts += ["", *(line for one in limits for line in textwrap.wrap(clean(one), max(40, width or 140), subsequent_indent="  "))]
    else:
        parts = [f"{clean(str(session.path))}: no request of an instrumented model in this file"]
    if session.notes:
        parts += ["", *(f"note: {note}" for note in session.notes)]
    return "\n".join(parts)


def _filled(start: str, pieces: Sequence[str], between: str, width: int) -> list[str]:
    """The pieces in lines of a width, none of them divided."""
    lines = [start]
    for number, piece in enumerate(pieces):
        told = piece + (between if number + 1 < len(pieces) else "")
        if len(lines[-1]) + len(told.rstrip()) > width and lines[-1].strip():
            lines.append("  ")
        lines[-1] += told
    return [line.rstrip() for line in lines]


def legend(rows: Sequence[RequestRow], width: int | None = None) -> list[str]:
    """What the words in the column ``result`` mean, as far as they occur."""
    words = {word for row in rows for word in row.notes}
    told = [f"{word}: {meaning}" for word, meaning in MEANINGS.items() if word in words]
    return [line for one in told for line in textwrap.wrap(one, max(40, width or 80), subsequent_indent="  ")]


def events_lines(figures: RecordingSummary, width: int = 80) -> list[str]:
    """Events by type in few lines."""
    if not figures.total_events:
        return ["no events"]
    types = [f"{clean(name)} {number:,}" for name, number in figures.event_types.items()]
    return _filled(f"{counted(figures.total_events, 'event')} in {seconds_text(figures.total_duration)}: ", types, ", ", width)


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


def table(rows: Sequence[RequestRow], *, colour: bool = False, most: int = 50, width: int | None = None) -> str:
    """The table alone: a header line, a line for each request, and a line that says how many were left out.

    With a width, the batch where it is 1 everywhere is left out, tok/s if there is no room, and names and results are cut.
    """
    first = max(0, len(rows) - most)
    cells = [_cells(number, row) for number, row in enumerate(rows[first:], first + 1)]
    columns = list(range(len(_HEADERS)))
    if width is not None:
        cells, columns = _within(cells, width)
    widths = _widths(cells)
    lines = [_line(_HEADERS, widths, columns)]
    for row, line in zip(rows[first:], cells, strict=True):
        text = _line(line, widths, columns)
        lines.append(f"{_RED}{text}{_PLAIN}" if colour and row.failed else text)
    if first:
        lines.append(f"{counted(first, 'earlier request is', 'earlier requests are')} not shown")
    return "\n".join(lines)


def _within(cells: list[tuple[str, ...]], width: int) -> tuple[list[tuple[str, ...]], list[int]]:
    """The cells, and the columns of them that fit: columns that say little go first, then names and results are cut."""
    columns = list(range(len(_HEADERS)))

    def over() -> int:
        widths = _widths(cells)
        return sum(widths[at] + 2 for at in columns) - 2 - width

    if all(line[_HEADERS.index("batch")] in ("1", "-") for line in cells):
        columns.remove(_HEADERS.index("batch"))
    if over() > 0:
        columns.remove(_HEADERS.index("tok/s"))
    for header, least in (("request", 15), ("result", 20)):
        place = _HEADERS.index(header)
        room = max(least, _widths(cells)[place] - max(0, over()))
        cells = [(*line[:place], _short(line[place], room), *line[place + 1 :]) for line in cells]
    return cells, columns


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


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[int]) -> str:
    padded = (cells[at].ljust(widths[at]) if _HEADERS[at] in _LEFT else cells[at].rjust(widths[at]) for at in columns)
    return "  ".join(padded).rstrip()


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line[column]) for line in [_HEADERS, *cells]) for column in range(len(_HEADERS))]


def _short(name: str, most: int = _LONGEST_NAME) -> str:
    return name if len(name) <= most else name[: most - 3] + "..."


def clean(text: str) -> str:
    """The text without control characters, which a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
