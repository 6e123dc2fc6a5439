"""Compilations that come again: how many, in which requests, why, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from inferspan import semconv
from inferspan.text.numbers import counted
from inferspan.text.quantities import seconds_text

from ..cause import LIKELY, SURE, Cause, Part, shown_by
from ..figures import Figures
from ..requests import Request, median
from ..spans import number, taken

__all__ = ["recompilation"]

_MOST_REASONS = 5
_LONGEST = 200


def recompilation(figures: Figures) -> Iterator[Cause]:
    """Requests in which something was compiled again: as they say, else all but the first in which something was compiled."""
    told = [request for request in figures.requests if request.recompiles or number(request.span, semconv.COMPILE_TIME)]
    again = [request for request in told if request.recompiles]
    # Recordings that tell of compilations tell of each that came again.
    compiled = again if told else _later(figures.requests)
    if not compiled:
        return
    costs = [(request, _cost(request, figures)) for request in compiled]
    known = [cost for _, cost in costs if cost is not None]
    seconds = sum(known) if known else None
    count = sum(request.recompiles for request in again) or len(compiled)
    reasons = _reasons(compiled)
    last = figures.metrics.last(semconv.COMPILE_RECOMPILES)
    yield Cause(
        rule="recompilation",
        title=f"compiled again {counted(count, 'time')}, in {len(compiled):,} of {counted(len(figures.requests), 'request')}"
        + (f", {seconds_text(seconds)} together" if seconds else "") + (f": {next(iter(reasons))}" if reasons else ""),
        place=_place(compiled),
        seconds=seconds,
        gain=seconds,
        sure=SURE if again else LIKELY,
        level=None if seconds is not None else "high",
        figures={
            "recompilations": count, "requests": len(compiled), "of_the_process": last,
            "reasons": [f"{reason}: {number_of:,}" for reason, number_of in reasons.most_common(_MOST_REASONS)] or None,
        },
        spans=shown_by(request.span for request in compiled),
        parts=[Part(reason, None, counted(number_of, "time")) for reason, number_of in reasons.most_common(_MOST_REASONS)],
        advice="Let shapes that change be dynamic, or pad inputs to a few sizes: each new shape, dtype or flag that a guard sees is"
        " compiled.",
        setting="torch.compile(model, dynamic=True)",
    )  # fmt: skip


def _later(requests: list[Request]) -> list[Request]:
    """Requests with a compilation after the first one of their model; that one compiles in every program."""
    seen: set[tuple[str, int]] = set()
    found = []
    for request in requests:
        key = (request.model, request.span.resource)
        if request.warmup and key in seen:
            found.append(request)
        seen.add(key)
    # A second one may be the first of another phase or shape: what comes again comes more often.
    return found if len(found) >= 2 else []


def _cost(request: Request, figures: Figures) -> float | None:
    """Seconds that compiling took: as recorded, else over the time of like requests in which nothing was compiled."""
    told = number(request.span, semconv.COMPILE_TIME)
    if told is not None:
        return told
    like = [one for one in figures.requests if one.generates == request.generates and not one.warmup and not one.recompiles]
    if like:
        return max(0.0, request.seconds - median(one.seconds for one in like))
    steps = [taken(step) for phase in request.phases for step in phase.steps if step is not request.span]
    usual = median(steps)
    # Without such requests: its steps over its own typical one, where there are enough.
    return sum(max(0.0, one - 3 * usual) for one in steps) if len(steps) >= 4 else None


def _reasons(requests: list[Request]) -> Counter[str]:
    """Guards that failed, or reasons where no guard is told, with the function, as often as events of recompilations tell them."""
    found: Counter[str] = Counter()
    for request in requests:
        for event in request.span.events:
            if event.name != semconv.RECOMPILATION_EVENT:
                continue
            told = [event.attributes.get(key) for key in (semconv.COMPILE_GUARD, semconv.COMPILE_REASON)]
            why = next((" ".join(one.split())[:_LONGEST] for one in told if isinstance(one, str) and one.strip()), "reason not told")
            function = event.attributes.get(semconv.CODE_FUNCTION)
            found[f"{why} ({function})" if isinstance(function, str) and function else why] += 1
    return found


def _place(requests: list[Request]) -> str:
    phases = [phase for request in requests for phase in request.phases]
    return max(phases, key=lambda phase: phase.seconds).name if phases else semconv.PHASE_FORWARD
