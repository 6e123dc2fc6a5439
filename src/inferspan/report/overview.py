"""A session's requests -> one row each, and the totals over them: the figures that the terminal and the report both show.

In comes a ``Session``; out come ``RequestRow``s and ``Totals`` with plain numbers, ``None`` where the session does not say. Nothing
here formats, and nothing raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inferspan import semconv
from inferspan.analysis.collectives import collective_share
from inferspan.metrics.summary import percentile
from inferspan.report.session import Request, Session

__all__ = ["RequestRow", "Totals", "request_row", "request_rows", "totals"]


_LARGEST = 2**63


class RequestRow(NamedTuple):
    """The figures of one request; durations are seconds, memory is bytes, energy is joules; ``start_ns`` is 0 if it is not known."""

    name: str
    model: str | None
    start_ns: int
    seconds: float | None
    failed: bool
    error_type: str | None
    batch: int | None
    input_tokens: int | None
    output_tokens: int | None
    ttft: float | None
    tpot: float | None
    tokens_per_second: float | None
    finish_reasons: tuple[str, ...]
    peak_memory: int | None
    energy: float | None
    dropped: int
    collectives: float | None
    """Share of its profiled passes in which collectives with other ranks ran."""
    notes: tuple[str, ...]
    nested: bool


class Totals(NamedTuple):
    """Sums and percentiles over the requests that are not nested in another one, here or on another rank, as in ``handle.summary()``.

    A request that failed counts with the work done until then; times to first token and per token are of those that did not fail.
    """

    requests: int
    failed: int
    models: tuple[str, ...]
    seconds: float | None
    input_tokens: int | None
    output_tokens: int | None
    ttft: tuple[float, float] | None
    tpot: tuple[float, float] | None
    tokens_per_second: float | None
    peak_memory: int | None
    energy: float | None
    dropped: int


def request_rows(session: Session) -> list[RequestRow]:
    """One row for each request, in order of start."""
    return [request_row(request) for request in session.requests]


def request_row(request: Request) -> RequestRow:
    """The figures of one request."""
    share = collective_share((request.span, *request.steps))
    return RequestRow(
        name=request.span.name,
        model=request.model,
        start_ns=request.span.start_ns,
        seconds=request.span.seconds if request.span.timed else None,
        failed=request.span.failed,
        error_type=request.text(semconv.ERROR_TYPE),
        batch=_whole(request.number(semconv.BATCH_SIZE)),
        input_tokens=_whole(request.number(semconv.INPUT_TOKENS)),
        output_tokens=_whole(request.number(semconv.OUTPUT_TOKENS)),
        ttft=request.number(semconv.TTFT),
        tpot=request.number(semconv.TPOT),
        tokens_per_second=request.number(semconv.TOKENS_PER_SECOND),
        finish_reasons=request.texts(semconv.FINISH_REASONS),
        peak_memory=_whole(request.number(semconv.MEMORY_PEAK)),
        energy=request.number(semconv.ENERGY),
        dropped=_whole(request.number(semconv.SPANS_DROPPED)) or 0,
        collectives=share,
        notes=(
            *_rank(request),
            *(() if share is None else (f"{100 * share:.0f} % in collectives",)),
            *(word for key, word in _NOTES if request.flag(key)),
            *request.texts(semconv.HEALTH_KINDS),
            *_decision(request),
        ),
        nested=request.flag(semconv.NESTED) or request.flag(semconv.RANKS_JOINED),
    )


_NOTES = (
    (semconv.REQUEST_STREAM, "streamed"),
    (semconv.WARMUP, "warm-up"),
    (semconv.NESTED, "nested"),
    (semconv.NONFINITE, "NaN/Inf"),
)


def _rank(request: Request) -> tuple[str, ...]:
    number = _whole(request.number(semconv.RANK))
    return () if number is None else (f"rank {number}",)


def _decision(request: Request) -> tuple[str, ...]:
    """The decision about the detail of a request, if the setting ``keep`` required one."""
    kept = request.span.attributes.get(semconv.DETAIL_KEPT)
    if kept is None:
        return ()
    return (f"kept: {request.text(semconv.DETAIL_RULE)}" if kept else "detail not kept",)


def totals(rows: Sequence[RequestRow]) -> Totals:
    """Totals over ``rows``; a sum over rows of which none has the figure is ``None``, not 0."""
    own = [row for row in rows if not row.nested]
    timed = [(row.start_ns, row.seconds, row.output_tokens) for row in own if row.seconds is not None]
    busy = sum(seconds for _, seconds, tokens in timed if tokens)
    produced = _sum(tokens for _, _, tokens in timed)
    return Totals(
        requests=len(own),
        failed=sum(row.failed for row in own),
        models=tuple(dict.fromkeys(row.model for row in own if row.model)),
        seconds=(max(start + round(seconds * 1e9) for start, seconds, _ in timed) - min(start for start, _, _ in timed)) / 1e9
        if timed
        else None if own else 0.0,
        input_tokens=_sum(row.input_tokens for row in own),
        output_tokens=_sum(row.output_tokens for row in own),
        ttft=_middle_and_tail(row.ttft for row in own if not row.failed),
        tpot=_middle_and_tail(row.tpot for row in own if not row.failed),
        tokens_per_second=produced / busy if produced is not None and busy > 0 else None,
        peak_memory=max((row.peak_memory for row in own if row.peak_memory is not None), default=None),
        energy=_sum_of_reals(row.energy for row in own),
        dropped=sum(row.dropped for row in own),
    )


def _middle_and_tail(values: Iterable[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    middle, tail = percentile(known, 0.5), percentile(known, 0.95)
    return None if middle is None or tail is None else (middle, tail)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _sum_of_reals(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(value: float | None) -> int | None:
    """A whole number of 64 bits; anything else is no count of anything."""
    return None if value is None or not -_LARGEST <= value < _LARGEST else int(value)
