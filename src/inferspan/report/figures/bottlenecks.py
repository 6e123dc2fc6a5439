"""A session -> what limits its phases and modules, by their share of the time.

In comes a ``Session`` whose spans may say what limits them; out come the rows of ``bottlenecks`` in the JSON report, and a line of text for
each phase. Where no span says anything there are none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from inferspan import semconv
from inferspan.explain.bounds import Bound, bound_of, peak_share_of
from inferspan.report.session import MODULE, Session, Span, level_of

__all__ = ["bottleneck_lines", "bottlenecks"]

MOST_MODULES = 20
"""Modules in the report, those with the most time first."""
SHOWN = 3
"""Modules in a line of text."""
_ROOFS = {semconv.BOUND_COMPUTE: "peak FLOP/s", semconv.BOUND_MEMORY: "peak bandwidth"}


class _Group(NamedTuple):
    """Spans of one phase or module."""

    kind: str
    name: str
    phase: str
    spans: list[Span]

    @property
    def seconds(self) -> float:
        """Time of all of them."""
        return sum(span.measured_seconds for span in self.spans)

    @property
    def bound(self) -> Bound | None:
        """What limits most of their time."""
        return bound_of(self.spans)

    @property
    def peak_share(self) -> float | None:
        """Mean share of the nearer roof."""
        return peak_share_of(self.spans)


def _below(spans: Iterable[Span]) -> Iterable[Span]:
    waiting = list(spans)
    while waiting:
        span = waiting.pop()
        if level_of(span) == MODULE:
            yield span
        waiting.extend(span.children)


def _groups(session: Session) -> tuple[list[_Group], list[_Group]]:
    """Phases, and modules by phase and path."""
    phases: dict[str, list[Span]] = defaultdict(list)
    modules: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for request in session.requests:
        for phase in request.phases:
            phases[phase.name].append(phase)
            for module in _below(phase.children):
                modules[phase.name, str(module.attributes.get(semconv.MODULE_NAME, module.name))].append(module)
    return (
        [_Group("phase", name, name, spans) for name, spans in phases.items()],
        [_Group("module", path, phase, spans) for (phase, path), spans in modules.items()],
    )


def bottlenecks(session: Session) -> list[dict[str, Any]]:
    """Rows with ``kind``, ``name``, ``phase``, ``seconds``, ``share`` of the requests' time, ``bound``, ``sure`` and ``peak_share``.

    Phases have their line of text besides. ``sure`` is the part of the time whose spans name the bound. Modules without a bound are left
    out, as are phases of sessions in which nothing has one.
    """
    phases, modules = _groups(session)
    whole = sum(request.span.seconds for request in session.requests)
    named = [group for group in modules if group.bound is not None]
    named.sort(key=lambda group: -group.seconds)
    if not named and all(group.bound is None for group in phases):
        return []
    texts = dict(_texts(phases, modules))
    rows = [_row(group, whole) for group in (*phases, *named[:MOST_MODULES])]
    return [{**row, "text": texts[row["name"]]} if row["kind"] == "phase" and row["name"] in texts else row for row in rows]


def _row(group: _Group, whole: float) -> dict[str, Any]:
    bound = group.bound
    share = min(1.0, group.seconds / whole) if whole > 0 and group.kind == "phase" else None
    return {
        "kind": group.kind, "name": group.name, "phase": group.phase, "seconds": group.seconds, "share": share,
        "bound": None if bound is None else bound.name, "sure": None if bound is None else bound.share, "peak_share": group.peak_share,
    }  # fmt: skip


def bottleneck_lines(session: Session) -> list[str]:
    """A line for each phase that says what limits it, such as ``decode: memory-bound, 43 % of peak bandwidth``."""
    return [text for _, text in _texts(*_groups(session))]


def _texts(phases: list[_Group], modules: list[_Group]) -> Iterable[tuple[str, str]]:
    """Name and line of each phase of which something is known."""
    for phase in phases:
        bound = None if phase.bound is None else phase.bound.name
        share = phase.peak_share
        if bound is None and share is None:
            continue
        near = "" if share is None else f"{share:.0%} of {_ROOFS.get(bound or '', 'the nearer peak')}".replace("%", " %")
        told = [", ".join(part for part in ("" if bound is None else f"{bound}-bound", near) if part)]
        told += _of_modules([group for group in modules if group.phase == phase.name], bound)
        yield phase.name, f"{phase.name}: {'; '.join(told)}"


def _of_modules(modules: list[_Group], bound: str | None) -> list[str]:
    """The modules with the most time and their share of the peak, and those that something else limits."""
    longest = sorted(modules, key=lambda one: -one.seconds)
    found = [(group, None if group.bound is None else group.bound.name, group.peak_share) for group in longest]
    told = [f"{group.name} {share:.0%}".replace("%", " %") for group, _, share in found[:SHOWN] if share is not None]
    others: dict[str, list[str]] = defaultdict(list)
    for group, named, _ in found:
        if named is not None and named != bound:
            kind = str(group.spans[0].attributes.get(semconv.MODULE_TYPE, group.name))
            if kind not in others[named]:
                others[named].append(kind)
    return told + [f"{named}-bound {', '.join(kinds[:SHOWN])}" for named, kinds in others.items()]
