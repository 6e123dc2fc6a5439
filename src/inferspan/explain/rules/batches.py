"""Batches: padding, rows that have finished while others run, and requests that take far longer than others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from inferspan import semconv
from inferspan.text.quantities import seconds_text

from ..cause import LIKELY, POSSIBLE, SURE, Cause, shown_by
from ..figures import Figures
from ..requests import Request, median
from ..spans import number, shape, whole
from ..wording import percent, times

__all__ = ["padding", "stragglers", "uneven_lengths"]

_WASTE = 0.25
_FINISHED = 0.3
_FEWEST = 8
_SLOW = 2.5
"""Times the typical request."""
_EXCESS, _UNEXPLAINED = 0.15, 0.3
"""Share of the time that the excess of slow requests must have, with and without a figure that explains it."""


def padding(figures: Figures) -> Iterator[Cause]:
    """Positions of prompts that are padding."""
    found = [one for request in figures.steady if (one := _positions(request)) is not None]
    real, padded = sum(one[1] for one in found), sum(one[2] for one in found)
    if not padded or 1 - real / padded < _WASTE:
        return
    waste = 1 - real / padded
    # Time of passes over the positions that they have: what does not grow with these is not saved.
    each = _per_position([(positions, seconds) for _, _, positions, seconds in found])
    used = sum(one[3] for one in found)
    cost = min(used * waste, each * (padded - real)) if each is not None else used * waste
    scale = len(figures.requests) / max(1, len(figures.steady))
    worst = sorted(found, key=lambda one: one[1] - one[2])
    generates = found[0][0].generates
    yield Cause(
        rule="padding",
        title=f"{percent(waste)} of the positions of prompts are padding: rows of a batch differ in length",
        place=semconv.SPAN_PREFILL if generates else semconv.PHASE_FORWARD,
        seconds=cost * scale,
        gain=cost * scale,
        sure=SURE,
        figures={
            "padding_share": waste, "positions": padded, "tokens": real, "pass_seconds": used,
            "seconds_per_position": each,
        },
        spans=shown_by([one[0].span for one in worst[:3]]),
        advice="Sort inputs by length before they are divided into batches, or batch continuously, which has no padding.",
        setting="generate_batch(), or batches of sorted inputs",
    )  # fmt: skip


def _positions(request: Request) -> tuple[Request, float, float, float] | None:
    """Tokens, positions with padding and seconds of the pass over the prompt of a batch; of encoders of the whole pass."""
    if request.generates:
        prefill, width, inputs = request.phase(semconv.SPAN_PREFILL), request.width, request.inputs
        if prefill is None or width is None or len(inputs) < 2 or whole(request.span, semconv.KV_CACHE_REUSED_TOKENS):
            return None
        return request, sum(inputs), float(width * len(inputs)), prefill.step_seconds or 0.0
    tokens, given = number(request.span, semconv.INPUT_TOKENS), shape(request.span, semconv.INPUT_SHAPES)
    if not tokens or len(given) != 2 or given[0] < 2:
        return None
    return request, tokens, float(given[0] * given[1]), request.seconds


def _per_position(found: Sequence[tuple[float, float]]) -> float | None:
    """Seconds for one position more, by a line through the passes; ``None`` if all have about as many positions."""
    count = len(found)
    if count < 4 or max(one for one, _ in found) < 1.3 * min(one for one, _ in found):
        return None
    middle, usual = sum(one for one, _ in found) / count, sum(seconds for _, seconds in found) / count
    spread = sum((one - middle) ** 2 for one, _ in found)
    slope = sum((one - middle) * (seconds - usual) for one, seconds in found) / spread
    return slope if slope > 0 else None


def uneven_lengths(figures: Figures) -> Iterator[Cause]:
    """Rows of batches that have ended and are computed until the longest one ends."""
    useful = computed = seconds = 0.0
    shown = []
    for request in figures.steady:
        outputs, decode = request.outputs, request.phase(semconv.SPAN_DECODE)
        if len(outputs) < 2 or decode is None or not max(outputs):
            continue
        useful += sum(outputs)
        computed += len(outputs) * max(outputs)
        seconds += decode.step_seconds or decode.seconds
        shown.append((sum(outputs) / (len(outputs) * max(outputs)), request.span))
    if not computed or 1 - useful / computed < _FINISHED or seconds < 0.2 * figures.total:
        return
    waste = 1 - useful / computed
    cost = seconds * waste * len(figures.requests) / max(1, len(figures.steady))
    yield Cause(
        rule="uneven_lengths",
        title=f"{percent(waste)} of the rows of decode steps have ended already and wait for the longest one of their batch",
        place=semconv.SPAN_DECODE,
        seconds=cost,
        gain=cost,
        basis="at most",
        sure=SURE,
        figures={"ended_share": waste, "tokens": useful, "row_steps": computed, "decode_seconds": seconds},
        spans=shown_by([span for _, span in sorted(shown, key=lambda one: one[0])[:3]]),
        advice="Batch continuously, so that the place of a row that has ended is taken by the next request.",
        setting="generate_batch()",
    )


_EXPLAINS: Sequence[tuple[str, Callable[[Request], float | None]]] = (
    ("output tokens", lambda request: number(request.span, semconv.OUTPUT_TOKENS)),
    ("input tokens", lambda request: number(request.span, semconv.INPUT_TOKENS)),
    ("rows", lambda request: float(request.rows)),
    ("positions of the input", lambda request: _product(shape(request.span, semconv.INPUT_SHAPES))),
    ("steps", lambda request: float(sum(phase.ran for phase in request.phases))),
    ("calls of modules", lambda request: float(sum(len(step.children) for phase in request.phases for step in phase.steps))),
)


def _product(sizes: list[int]) -> float | None:
    result = 1.0
    for size in sizes:
        result *= size
    return result if sizes else None


def stragglers(figures: Figures) -> Iterator[Cause]:
    """Requests that take far longer than the typical one, and the figure of their data by which they differ."""
    by_kind: dict[tuple[str, bool], list[Request]] = {}
    for request in figures.steady:
        by_kind.setdefault((request.span.name, request.generates), []).append(request)
    for (name, _), requests in by_kind.items():
        times_of = {id(request): request.seconds - request.queue for request in requests}
        usual = median(times_of.values())
        slow = [request for request in requests if times_of[id(request)] > _SLOW * usual]
        others = [request for request in requests if times_of[id(request)] <= _SLOW * usual]
        if len(requests) < _FEWEST or usual <= 0 or not slow or len(slow) > 0.4 * len(requests):
            continue
        excess = sum(times_of[id(request)] - usual for request in slow)
        reason, ratio = _reason(slow, others)
        if excess < (_EXCESS if reason else _UNEXPLAINED) * figures.total:
            continue
        take = "takes" if len(slow) == 1 else "take"
        typical = times(median(times_of[id(request)] for request in slow) / usual)
        because = f", with {times(ratio)} the {reason}" if reason else ", and no recorded figure of their data explains it"
        yield Cause(
            rule="straggler",
            title=f"{len(slow):,} of {len(requests):,} requests ({name}) {take} {typical} as long as the typical"
            f" {seconds_text(usual)}{because}",
            place=_longest_phase(slow),
            seconds=excess,
            gain=excess,
            basis="at most",
            sure=LIKELY if reason else POSSIBLE,
            figures={
                "slow_requests": len(slow), "requests": len(requests), "typical_seconds": usual, "differs_in": reason,
                "ratio": ratio if reason else None,
            },
            spans=shown_by(request.span for request in slow),
            advice=f"Bound the {reason} of a request, or serve these requests apart." if reason
            else "Compare one of these requests with a typical one: other work on the machine, garbage collection, or a path that data"
            " choose.",
            setting="max_new_tokens" if reason in ("output tokens", "steps") else None,
        )  # fmt: skip


def _reason(slow: list[Request], others: list[Request]) -> tuple[str, float]:
    best, most = "", 1.5
    for name, read in _EXPLAINS:
        high = [value for request in slow if (value := read(request)) is not None]
        low = [value for request in others if (value := read(request)) is not None]
        if len(high) == len(slow) and low and median(low) > 0 and median(high) / median(low) >= most * 1.01:
            best, most = name, median(high) / median(low)
    return best, most


def _longest_phase(requests: list[Request]) -> str:
    seconds: dict[str, float] = {}
    for request in requests:
        for phase in request.phases:
            seconds[phase.name] = seconds.get(phase.name, 0.0) + phase.seconds
    return max(seconds, key=lambda name: seconds[name], default=semconv.PHASE_FORWARD)
