"""A picture as SVG: inputs above, subgraphs below each other, links that pass over others in lanes at the right side."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from .boxes import Box, Frame, Link, Plan
from .text import box_lines, clean, frame_title, link_lines

_WIDTH, _HEIGHT, _GAP, _ROW = 250, 56, 24, 62
_PAD, _HEAD, _LABEL, _LANE = 18, 24, 250, 14
_FILL = {"input": "#eef2f7", "output": "#eef2f7", "target": "#dbeafe", "ignored": "#f3f4f6", "module": "#ffffff"}
_STYLE = (
    "text{font-family:system-ui,sans-serif;fill:#111827}.p{font-size:11px;font-weight:600}.c{font-size:10px;fill:#374151}"
    ".f{font-size:12px;font-weight:600;fill:#1f2937}.l{font-size:9px;fill:#4b5563;paint-order:stroke;stroke:#fff;stroke-width:3px}"
    ".k{fill:none;stroke:#6b7280;stroke-width:1.2}.s{stroke:#b45309}.r{stroke:#2563eb;stroke-dasharray:5 4}"
)


def _text(value: str) -> str:
    return escape(clean(value), quote=True)


def _short(value: str, most: int) -> str:
    value = clean(value)
    return value if len(value) <= most else f"{value[: most // 2 - 1]}\u2026{value[-(most - most // 2) :]}"


@dataclass
class _Layout:
    """Where everything lies: rows of boxes from top to bottom, and the frames around them."""

    picture: Plan
    rows: list[list[str]] = field(default_factory=list)
    row_of: dict[str, int] = field(default_factory=dict)
    tops: list[float] = field(default_factory=list)
    at: dict[str, tuple[float, float]] = field(default_factory=dict)
    frames: list[tuple[Frame, float, float]] = field(default_factory=list)
    left: float = 60.0
    width: float = 0.0
    bottom: float = 0.0

    def place(self) -> None:
        """Find the place of each box."""
        inputs = [box.id for box in self.picture.boxes if box.kind == "input"]
        groups: list[tuple[Frame | None, list[list[str]]]] = [(None, [inputs])] if inputs else []
        groups += [(frame, self._ranks(frame)) for frame in self.picture.frames]
        groups += [(None, [[box.id]]) for box in self.picture.boxes if box.kind == "output"]
        widest = max((len(row) for _, rows in groups for row in rows), default=1)
        self.width = widest * (_WIDTH + _GAP) - _GAP
        top = 44.0
        for frame, rows in groups:
            start = top
            if frame is not None:
                top += _HEAD + 8
            for row in rows:
                self._row(row, top)
                top += _HEIGHT + _ROW
            if frame is not None:
                top += _PAD - _ROW + 12
                self.frames.append((frame, start, top))
                top += _ROW - 8
        self.bottom = top - _ROW + 20

    def _row(self, row: list[str], top: float) -> None:
        offset = self.left + (self.width - (len(row) * (_WIDTH + _GAP) - _GAP)) / 2
        for number, name in enumerate(row):
            self.at[name] = (offset + number * (_WIDTH + _GAP), top)
            self.row_of[name] = len(self.rows)
        self.rows.append(row)
        self.tops.append(top)

    def _ranks(self, frame: Frame) -> list[list[str]]:
        """The boxes of a frame in rows: each below all that it depends on."""
        own = set(frame.boxes)
        sources: dict[str, list[str]] = {name: [] for name in frame.boxes}
        for link in self.picture.links:
            if link.source in own and link.target in own and not link.loop:
                sources[link.target].append(link.source)
        rank: dict[str, int] = {}
        for name in frame.boxes:
            rank[name] = max((rank.get(source, 0) + 1 for source in sources[name]), default=0)
        rows: dict[int, list[str]] = {}
        for name in frame.boxes:
            rows.setdefault(rank[name], []).append(name)
        return [rows[number] for number in sorted(rows)]


def _box(box: Box, x: float, y: float) -> str:
    lines = box_lines(box)
    radius = 26 if box.kind in ("input", "output") else 5
    dash = ' stroke-dasharray="4 3"' if box.kind == "ignored" else ""
    middle = x + _WIDTH / 2
    start = y + _HEIGHT / 2 - (len(lines) - 1) * 7 + 4
    texts = "".join(
        f'<text class="{"p" if number == 0 else "c"}" x="{middle:.1f}" y="{start + 14 * number:.1f}" text-anchor="middle">'
        f"{_text(_short(line, 36))}</text>"
        for number, line in enumerate(lines)
    )
    return (
        f'<g><title>{_text(" | ".join(lines))}</title><rect x="{x:.1f}" y="{y:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="{radius}" '
        f'fill="{_FILL[box.kind]}" stroke="#4b5563"{dash}/>{texts}</g>'
    )


def _frame(frame: Frame, layout: _Layout, start: float, end: float) -> str:
    x, width = layout.left - _PAD, layout.width + 2 * _PAD
    extra = ' stroke-width="2.5"' if frame.count > 1 else ""
    return (
        f'<rect x="{x:.1f}" y="{start:.1f}" width="{width:.1f}" height="{end - start:.1f}" rx="8" fill="#f9fafb" stroke="#d1d5db"{extra}/>'
        f'<text class="f" x="{x + 10:.1f}" y="{start + 17:.1f}">{_text(_short(frame_title(frame), max(30, int(width / 7))))}</text>'
    )


class _Lanes:
    """Lanes at the right side: the links of one box share one, links of others at the same height take another."""

    def __init__(self) -> None:
        self._ends: list[float] = []
        self._labels: dict[float, int] = {}

    def take(self, top: float, bottom: float) -> int:
        for number, end in enumerate(self._ends):
            if end < top:
                self._ends[number] = bottom
                return number
        self._ends.append(bottom)
        return len(self._ends) - 1

    def label_row(self, top: float) -> int:
        """How many labels stand at this height already."""
        self._labels[top] = self._labels.get(top, -1) + 1
        return self._labels[top]

    @property
    def width(self) -> int:
        return len(self._ends) * _LANE


def _labels(link: Link, x: float, y: float, anchor: str, most: int) -> str:
    return "".join(
        f'<text class="l" x="{x:.1f}" y="{y + 10 * number:.1f}" text-anchor="{anchor}">{_text(_short(line, 52))}</text>'
        for number, line in enumerate(link_lines(link, most))
    )


def _title(link: Link) -> str:
    return f"<title>{_text(' | '.join(link_lines(link, 50)))}</title>"


def _direct(link: Link, layout: _Layout, shift: float) -> str:
    (x1, y1), (x2, y2) = layout.at[link.source], layout.at[link.target]
    x1, y1, x2 = x1 + _WIDTH / 2 + shift, y1 + _HEIGHT, x2 + _WIDTH / 2 + shift
    bend = (y2 - y1) / 2
    return (
        f'<g>{_title(link)}<path class="k" marker-end="url(#a)" d="M{x1:.1f},{y1:.1f} '
        f'C{x1:.1f},{y1 + bend:.1f} {x2:.1f},{y2 - bend:.1f} {x2:.1f},{y2 - 2:.1f}"/>'
        f"{_labels(link, x1 + 6, y1 + 13, 'start', 2)}</g>"
    )


def _loop(link: Link, layout: _Layout, number: int) -> str:
    (x1, y1), (x2, y2) = layout.at[link.source], layout.at[link.target]
    y1, y2, x = y1 + _HEIGHT * 0.7, y2 + _HEIGHT * 0.3, layout.left - _PAD - 10 - 8 * (number % 4)
    return f'<g>{_title(link)}<path class="k r" marker-end="url(#a)" d="M{x1:.1f},{y1:.1f} H{x:.1f} V{y2:.1f} H{x2 - 2:.1f}"/></g>'


def _lanes(links: list[Link], layout: _Layout) -> tuple[list[str], float]:
    """Links that do not go to the next row: out at the right, down a lane, and in again. Those of one box share their lane and label."""
    lanes = _Lanes()
    by_source: dict[str, list[Link]] = {}
    for link in links:
        by_source.setdefault(link.source, []).append(link)
    drawn = []
    right = layout.left + layout.width + _PAD
    per_row: dict[int, int] = {}
    for source, group in by_source.items():
        x, y = layout.at[source]
        number = per_row[layout.row_of[source]] = per_row.get(layout.row_of[source], -1) + 1
        y = y + _HEIGHT + 5 + 3 * number
        ends = [layout.at[link.target][1] for link in group]
        lane = lanes.take(min(y, *ends), max(y, *ends) + _HEIGHT)
        lane_x = right + _LABEL + 10 + lane * _LANE
        shown: set[str] = set()
        for link in group:
            x2, y2 = layout.at[link.target]
            y2 = y2 - 8 - 3 * (lane % 5)
            kind = "k s" if link.skips else "k"
            drawn.append(
                f'<g>{_title(link)}<path class="{kind}" marker-end="url(#a)" '
                f'd="M{x + _WIDTH - 20:.1f},{layout.at[source][1] + _HEIGHT:.1f} V{y:.1f} H{lane_x:.1f} '
                f'V{y2:.1f} H{x2 + _WIDTH - 40:.1f} V{layout.at[link.target][1] - 2:.1f}"/>'
            )
            for line in link_lines(link, 3):
                if line not in shown:
                    shown.add(line)
                    row = lanes.label_row(layout.at[source][1])
                    height = layout.at[source][1] + _HEIGHT - 4 - 10 * row
                    drawn.append(f'<text class="l" x="{right + 6:.1f}" y="{height:.1f}">{_text(_short(line, 50))}</text>')
            drawn.append("</g>")
    return drawn, right + _LABEL + 20 + lanes.width


def svg(picture: Plan) -> str:
    """The picture as one SVG element, which needs nothing else. All names are escaped."""
    layout = _Layout(picture)
    layout.place()
    loops = [link for link in picture.links if link.loop]
    near = [link for link in picture.links if not link.loop and layout.row_of[link.target] - layout.row_of[link.source] == 1]
    direct = {id(link) for link in near}
    far = [link for link in picture.links if not link.loop and id(link) not in direct]
    lanes, width = _lanes(far, layout)
    parts = [_frame(frame, layout, start, end) for frame, start, end in layout.frames]
    parts += lanes
    parts += [_loop(link, layout, number) for number, link in enumerate(loops)]
    parts += [_direct(link, layout, 0.0) for link in near]
    parts += [_box(box, *layout.at[box.id]) for box in picture.boxes]
    height = layout.bottom
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img">'
        f"<title>{_text(picture.title)}</title><style>{_STYLE}</style>"
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#6b7280"/></marker></defs><rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text class="f" x="{layout.left - _PAD:.0f}" y="26">{_text(picture.title)}</text>'
        f"{''.join(parts)}</svg>\n"
    )
