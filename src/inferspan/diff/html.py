"""A comparison as one HTML file without a script, in the style of the report.

Everything from the sessions is escaped; the page's own policy forbids scripts and every connection.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from importlib import resources

from inferspan.diff.compare import FINE, REGRESSION, Comparison
from inferspan.diff.tables import Cell, Table, headline, lines_of, tables
from inferspan.report.terminal import clean
from inferspan.version import version

__all__ = ["render"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = """
svg.interval { display: block; }
.worse { color: var(--bad); } .better { color: var(--c7); }
td.word { font-weight: 600; white-space: nowrap; }
.verdict { font-size: 17px; font-weight: 600; }
@media (prefers-color-scheme: dark) { :root {
  color-scheme: dark; --back: #12161c; --card: #1a2029; --line: #2e3744; --soft: #232b36; --text: #e4e9f0; --dim: #98a4b3;
  --accent: #74a7ff; --prefill: #eba04c; --bad: #ff7a85; --bad-back: #3a1e24; --c7: #6cc983;
} }
"""
_WIDTH, _HEIGHT = 180, 16
_NARROWEST, _WIDEST = math.log(1.02), math.log(1.25)
"""Ends of the pictures of intervals: those of a table, within these bounds."""


def render(found: Comparison) -> str:
    """The page as text."""
    title = f"{found.a.name} and {found.b.name}"
    style = resources.files("inferspan.report").joinpath("assets/report.css").read_text(encoding="utf-8")
    return "\n".join([
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">', '<meta name="referrer" content="no-referrer">',
        f"<title>{_text(title)} - inferspan diff</title>", '<link rel="icon" href="data:,">', f"<style>{style}{_STYLE}</style>", "</head>",
        "<body>", "<main>", *_body(found, title), "</main>", "</body>", "</html>", "",
    ])  # fmt: skip


def _body(found: Comparison, title: str) -> Iterator[str]:
    yield f"<h1>{_text(title)}</h1>"
    kind = "failure" if found.verdict == REGRESSION else "panel" if found.verdict in (None, FINE) else "note"
    reasons = "".join(f"<li>{_text(reason)}</li>" for reason in found.reasons)
    yield f'<div class="{kind}"><div class="verdict">{_text(headline(found))}</div>{f"<ul>{reasons}</ul>" if reasons else ""}</div>'
    for line in lines_of(found):
        yield f'<p class="small">{_text(line)}</p>'
    for table in tables(found):
        yield f"<h2>{_text(table.title)}</h2>"
        if table.rows:
            yield from _table(table)
        for note in table.notes:
            yield f'<p class="small">{_text(note)}</p>'
    for note in found.notes:
        yield f'<p class="note">{_text(note)}</p>'
    yield f'<p class="small dim">inferspan {_text(version())}; bars are intervals of the change about "no change", cut off at 25 %</p>'


def _table(table: Table) -> Iterator[str]:
    known = [cell for cell in table.cells if cell is not None]
    reach = max([_NARROWEST, *(abs(math.log(end)) for cell in known for end in (cell.low, cell.high) if 0 < end < math.inf)])
    reach = min(reach, _WIDEST)
    numbers = len(table.header) > 3
    header = [*table.header[:-1], "", table.header[-1]] if numbers else table.header
    yield '<div class="panel scroll"><table><thead><tr>'
    yield "".join(f'<th class="{"num" if numbers and 0 < place < 5 else ""}">{_text(name)}</th>' for place, name in enumerate(header))
    yield "</tr></thead><tbody>"
    for row, cell in zip(table.rows, table.cells, strict=True):
        tone = cell.tone if cell is not None else ""
        parts = [f'<td class="{"num" if numbers and place else "mono"}">{_text(text)}</td>' for place, text in enumerate(row[:-1])]
        if numbers:
            parts += [f"<td>{_interval(cell, reach)}</td>", f'<td class="word {tone}">{_text(row[-1])}</td>']
        else:
            parts.append(f'<td class="mono">{_text(row[-1])}</td>')
        yield f"<tr>{''.join(parts)}</tr>"
    yield "</tbody></table></div>"


def _interval(cell: Cell | None, reach: float) -> str:
    """The interval as a bar about the line of no change; ends beyond the width are cut off."""
    if cell is None:
        return ""
    low, middle, high = (_place(value, reach) for value in (cell.low, cell.ratio, cell.high))
    colour = {"worse": "var(--bad)", "better": "var(--c7)"}.get(cell.tone, "var(--dim)")
    return (
        f'<svg class="interval" width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="interval of the change">'
        f'<line x1="{_WIDTH / 2}" x2="{_WIDTH / 2}" y1="0" y2="{_HEIGHT}" stroke="var(--dim)" stroke-dasharray="2 2"/>'
        f'<rect x="{low:.1f}" y="6" width="{max(1.0, high - low):.1f}" height="4" rx="2" fill="{colour}" opacity="0.45"/>'
        f'<circle cx="{middle:.1f}" cy="8" r="3.5" fill="{colour}"/></svg>'
    )


def _place(ratio: float, reach: float) -> float:
    share = math.log(ratio) / reach if ratio > 0 else -1.0
    return _WIDTH / 2 + max(-1.0, min(1.0, share)) * (_WIDTH / 2 - 5)


def _text(text: str) -> str:
    return html.escape(clean(text).encode("utf-8", "replace").decode("utf-8"))
