"""How much of its profiled passes each rank spends in collectives with the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferspan import semconv
from inferspan.analysis.collectives import PassTime, profiled_pass, share_of
from inferspan.report.session import Request
from inferspan.text.numbers import counted

__all__ = ["collective_lines"]


def collective_lines(requests: Sequence[Request]) -> list[str]:
    """A line for each rank of which profiled passes have collectives; nothing where no collective was seen."""
    passes: dict[float, list[PassTime]] = {}
    for request in requests:
        passes.setdefault(request.number(semconv.RANK) or 0, []).extend(_profiled(request))
    if all(share_of(found) is None for found in passes.values()):
        return []
    return [_line(rank, found) for rank, found in sorted(passes.items()) if found]


def _line(rank: float, found: Sequence[PassTime]) -> str:
    share, passes = share_of(found) or 0.0, counted(len(found), "profiled pass", "profiled passes")
    return f"rank {rank:.0f}: {100 * share:.0f} % of {passes} in collectives"


def _profiled(request: Request) -> Iterable[PassTime]:
    return [found for span in (request.span, *request.steps) if (found := profiled_pass(span)) is not None]
