"""Collectives: passes of a model that is divided over ranks, which wait for other ranks and move data between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from inferspan import semconv
from inferspan.analysis.collectives import collective_share, profiled_pass

from ..cause import LIKELY, Cause, Part, shown_by
from ..figures import Figures
from ..modules import kind_of
from ..requests import Request
from ..spans import SpanLike, number, submodules, text, whole
from ..wording import percent

__all__ = ["collectives"]

_MUCH = 0.3
_BALANCED = 0.5
"""Share of the longest time in collectives below which a rank is named as the one that the others wait for."""
_MOST_MODULES = 3
_ADVICE = "Divide the model over fewer ranks, use larger batches, which share each transfer, or a faster link between the devices."
_BALANCE = "Balance the ranks: the one that is in collectives the least does the most work, and the others wait for it. "


@dataclass(slots=True)
class _Rank:
    """Passes of one rank."""

    steps: list[SpanLike] = field(default_factory=list)
    ran: float = 0.0
    """Seconds of all passes."""
    seconds: float = 0.0
    """Of profiled passes."""
    collective: float = 0.0

    @property
    def share(self) -> float:
        return self.collective / self.seconds if self.seconds > 0 else 0.0

    def add(self, request: Request) -> None:
        self.ran += sum(phase.step_seconds or 0.0 for phase in request.phases)
        for step in _steps(request):
            if (found := profiled_pass(step)) is not None:
                self.steps.append(step)
                self.seconds += found.seconds
                self.collective += found.collective


def _steps(request: Request) -> list[SpanLike]:
    return [step for phase in request.phases for step in phase.steps]


def _seen(step: SpanLike) -> bool:
    return bool(number(step, semconv.PROFILER_COLLECTIVE_TIME))


def collectives(figures: Figures) -> Iterator[Cause]:
    """Profiled passes that are in collectives for a third of their time."""
    ranks: dict[int, _Rank] = {}
    divided = {request.model for request in figures.requests if any(map(_seen, _steps(request)))}
    for request in figures.requests:
        if request.model not in divided:
            continue
        ranks.setdefault(whole(request.span, semconv.RANK) or 0, _Rank()).add(request)
    ranks = {rank: found for rank, found in sorted(ranks.items()) if found.seconds > 0}
    steps = [step for found in ranks.values() for step in found.steps]
    share = collective_share(steps) or 0.0
    if share <= _MUCH:
        return
    slow, busiest = (pick(ranks, key=lambda rank: ranks[rank].share) for pick in (min, max))
    least, most = ranks[slow].share, ranks[busiest].share
    uneven = len(ranks) > 1 and least < _BALANCED * most
    seconds = sum(found.ran * found.share for found in ranks.values())
    waits = sum(found.ran * (found.share - least) for found in ranks.values())
    scale = seconds / sum(found.collective for found in ranks.values())
    yield Cause(
        rule="collectives",
        title=f"collectives with other ranks take {percent(share)} of profiled passes"
        + (f"; rank {slow} is in them the least ({percent(least)}), so the others wait for it" if uneven else ""),
        place=max({phase.name for request in figures.requests for phase in request.phases}, key=figures.phase_seconds),
        seconds=seconds,
        gain=waits if uneven else None,
        basis="at most",
        sure=LIKELY,
        figures={
            "collective_share": share, "profiled_passes": len(steps), "ranks": len(ranks), "least_share": least, "most_share": most,
            "least_rank": slow if len(ranks) > 1 else None,
        },
        spans=shown_by(steps),
        parts=[*_ranks(ranks), *_modules(steps, scale)],
        advice=(_BALANCE if uneven else "") + _ADVICE,
        setting="torchrun --nproc-per-node, tp_size",
    )  # fmt: skip


def _ranks(ranks: dict[int, _Rank]) -> Iterable[Part]:
    if len(ranks) > 1:
        for rank, found in sorted(ranks.items(), key=lambda item: -item[1].share):
            yield Part(f"rank {rank}", found.ran * found.share, f"{percent(found.share)} of {len(found.steps)} profiled passes")


def _modules(steps: Iterable[SpanLike], scale: float) -> Iterable[Part]:
    """Modules in which most of it began, without the modules inside them; ``scale``: seconds of all passes for one of profiled ones."""
    seconds: dict[str, float] = {}
    waiting = [module for step in steps for module in submodules(step)]
    while waiting:
        module = waiting.pop()
        inside = submodules(module)
        waiting.extend(inside)
        own = _collective(module) - sum(map(_collective, inside))
        if own > 0:
            kind = kind_of(text(module, semconv.MODULE_NAME) or module.name)
            seconds[kind] = seconds.get(kind, 0.0) + own
    for kind, own in sorted(seconds.items(), key=lambda item: -item[1])[:_MOST_MODULES]:
        yield Part(kind, own * scale, "began there")


def _collective(module: SpanLike) -> float:
    return number(module, semconv.PROFILER_COLLECTIVE_TIME) or 0.0
