"""Figures and requests as HTML for notebooks: a few tables, and a timeline of phases and steps as an inline SVG.

In: plain values. Out: HTML without scripts, style sheets and anything that is loaded. Colours are those of the notebook, light or dark, and
middle tones that can be seen on both. Every text is escaped: names come from models and programs.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from .table import label_of

__all__ = ["HasHtml", "page", "request_html", "status_html", "summary_html"]

_FONT = "font:13px/1.45 system-ui,-apple-system,'Segoe UI',sans-serif"
_LINE = "1px solid rgba(128,128,128,.35)"
_CELL = f"padding:2px 9px;border:0;border-bottom:{_LINE};background:transparent"
_COLOURS = {"prefill": "#d98324", "decode": "#4f86f0", "stage": "#2a9d8f", "request": "#8a94a3", "failed": "#d2414e"}
_WIDTH, _LANE, _BAR = 900, 24, 16
_LEFT = 70
"""Room for the names of the lanes, of ``_WIDTH`` units."""
_LONGEST = 120
_MOST_ROWS = 8
"""Of operations of one kind, types and modules."""


class HasHtml(Protocol):
    """What a notebook shows."""

    def _repr_html_(self) -> str: ...


class TimedBar(Protocol):
    """A phase, stage or step, in seconds since its request began."""

    @property
    def level(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


def page(title: str, summary: HasHtml, requests: Sequence[HasHtml]) -> str:
    """A handle or session: its name, its figures, and its last request."""
    parts = [f'<div style="{_FONT}"><b>{_text(title)}</b></div>']
    if requests:
        parts.append(requests[-1]._repr_html_())
    return "".join([*parts, summary._repr_html_()])


# -------------------------------------------------------------------------------------------------------------- figures
def summary_html(line: str, operations: Sequence[Any], events: Mapping[str, int], modules: Sequence[Any]) -> str:
    """Totals, and tables of operations, events and outputs of modules.

    Args:
        line: the totals.
        operations: rows of ``analysis.operations``.
        events: number by type.
        modules: rows of ``summaries.activations``; those without values of outputs are not shown.
    """
    parts = [f'<div style="margin:4px 0">{_text(line)}</div>']
    if operations:
        parts.append(_operations(operations))
    if events:
        parts.append(_folded("Events", _table(("type", "count"), ([name, f"{number:,}"] for name, number in events.items()))))
    told = [row for row in modules if row.outputs is not None]
    if told:
        lines = ([f"{row.name} ({row.type})", ", ".join(row.output_shapes), str(row.outputs), f"{row.calls:,}"] for row in told[:100])
        parts.append(_folded("Outputs of modules", _table(("module", "shape", "values", "calls"), lines)))
    return f'<div style="{_FONT};overflow-x:auto">{"".join(parts)}</div>'


def status_html(line: str, rows: Iterable[Sequence[str]]) -> str:
    """What is attached to a model.

    Args:
        line: in one line.
        rows: a title and its words each.
    """
    cells = "".join(f'<tr style="background:transparent"><td style="{_CELL}">{_text(title)}</td>'
                    f'<td style="{_CELL};text-align:left">{_text(words)}</td></tr>' for title, words in rows)  # fmt: skip
    table = f'<table style="border-collapse:collapse;margin:4px 0;color:inherit;font:inherit"><tbody>{cells}</tbody></table>'
    return f'<div style="{_FONT};overflow-x:auto"><div style="margin:4px 0">{_text(line)}</div>{table if cells else ""}</div>'


def _operations(rows: Sequence[Any]) -> str:
    seen: dict[str, int] = {}
    shown = []
    for row in rows:
        seen[row.kind] = seen.get(row.kind, 0) + 1
        if seen[row.kind] <= _MOST_ROWS:
            shown.append(row)
    memory = any(row.total_memory_delta is not None for row in shown)
    heads = ["operation", "count", "total", "own", "average", "p50", "p95", "max", *(["memory"] if memory else []), "clock"]
    lines = []
    for row in shown:
        times = (row.total_duration, row.self_duration, row.avg_duration, row.p50, row.p95, row.max_duration)
        delta = row.total_memory_delta
        lines.append(
            [label_of(row), f"{row.count:,}", *map(_seconds, times)]
            + ([("" if delta is None else f"{delta / 2**20:+.1f} MiB")] if memory else [])
            + [row.clock]
        )
    left = len(rows) - len(shown)
    more = f'<div style="opacity:.7">{left:,} more in .operations</div>' if left else ""
    return _table(heads, lines) + more


def _folded(title: str, body: str) -> str:
    return f'<details style="margin:4px 0"><summary style="cursor:pointer">{_text(title)}</summary>{body}</details>'


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text, and the others figures."""

    def row(cells: Sequence[str], tag: str) -> str:
        sides = ["left" if not place else "right;white-space:nowrap" for place in range(len(cells))]
        made = (f'<{tag} style="{_CELL};text-align:{side}">{_text(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True))
        return f'<tr style="background:transparent">{"".join(made)}</tr>'

    body = "".join(row(line, "td") for line in lines)
    style = "border-collapse:collapse;margin:4px 0;color:inherit;font:inherit"
    return f'<table style="{style}"><thead>{row(heads, "th")}</thead><tbody>{body}</tbody></table>'


# ------------------------------------------------------------------------------------------------------------- timeline
def request_html(line: str, name: str, seconds: float, first: float | None, bars: Sequence[TimedBar], *, failed: bool) -> str:
    """One request: its figures in a line, and its timeline.

    Args:
        line: the figures.
        name: of the request.
        seconds: its duration.
        first: time to first token in seconds.
        bars: its phases, stages and steps.
        failed: whether an exception ended it.
    """
    drawn = _timeline(name, seconds, first, bars, failed=failed) if seconds > 0 else ""
    return f'<div style="{_FONT};margin:6px 0"><div>{_text(line)}</div>{drawn}</div>'


def _timeline(name: str, seconds: float, first: float | None, bars: Sequence[TimedBar], *, failed: bool) -> str:
    whole = max([seconds, *(bar.end for bar in bars)])
    scale = (_WIDTH - _LEFT) / whole
    lanes: list[tuple[str, list[str]]] = [("request", [_bar(0, seconds, scale, name, "failed" if failed else "request", words=True)])]
    for title, level in (("phases", "phase"), ("stages", "stage"), ("steps", "step")):
        made = [_bar(bar.start, bar.end, scale, bar.name, _colour(bar), words=level != "step") for bar in bars if bar.level == level]
        if made:
            lanes.append((title, made))
    drawn = []
    for place, (title, made) in enumerate(lanes):
        label = f'<text x="0" y="{_BAR - 4}" opacity=".7">{title}</text>'
        drawn.append(f'<g transform="translate(0,{place * _LANE})">{label}{"".join(made)}</g>')
    height = len(lanes) * _LANE
    if first is not None and first <= seconds:
        at = _LEFT + first * scale
        mark = f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}" stroke="currentColor" stroke-dasharray="3 3"/>'
        drawn.append(f"<g>{mark}<title>first token after {_seconds(first)}</title></g>")
    ends = f'<text x="{_LEFT}" y="{height + 8}" opacity=".7">0 s</text>'
    ends += f'<text x="{_WIDTH}" y="{height + 8}" opacity=".7" text-anchor="end">{_seconds(whole)}</text>'
    return (
        f'<svg role="img" aria-label="{_text(f"timeline of {name}")}" viewBox="0 -2 {_WIDTH} {height + 16}" '
        f'style="width:100%;max-width:{_WIDTH}px;height:auto;display:block" font-size="11" fill="currentColor">{"".join(drawn)}{ends}</svg>'
    )


def _bar(start: float, end: float, scale: float, name: str, colour: str, *, words: bool) -> str:
    left, width = _LEFT + max(0.0, start) * scale, max(0.75, (end - start) * scale)
    title = f"<title>{_text(name)}: {_seconds(max(0.0, end - start))}</title>"
    box = f'<rect x="{left:.2f}" y="0" width="{width:.2f}" height="{_BAR}" rx="2" fill="{_COLOURS[colour]}"/>'
    fits = words and width > 7.0 * len(name[:_LONGEST]) + 12
    text = f'<text x="{left + 5:.1f}" y="{_BAR - 4}" fill="#fff">{_text(name)}</text>' if fits else ""
    return f"<g>{title}{box}{text}</g>"


def _colour(bar: TimedBar) -> str:
    if bar.level == "stage":
        return "stage"
    return "prefill" if bar.name.startswith("prefill") else "decode"


def _seconds(value: float) -> str:
    if value >= 1 or value == 0:
        return f"{value:.2f} s"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.1f} µs"


def _text(value: object) -> str:
    """A value as escaped text, without control characters and not endless."""
    text = "".join(sign if sign.isprintable() else "?" for sign in str(value))
    return html.escape(text if len(text) <= 2_000 else text[:2_000] + "...", quote=True)
