"""The program around the model: stages of it, and requests that wait for a place in the batch."""

from __future__ import annotations

from collections.abc import Iterator

from inferspan import semconv
from inferspan.text.numbers import counted
from inferspan.text.quantities import seconds_text

from ..cause import LIKELY, SURE, Cause, Part, shown_by
from ..figures import Figures
from ..spans import whole
from ..tree import PROGRAM, QUEUE
from ..wording import percent

__all__ = ["preemptions", "queue_time", "slow_stage"]

_STAGE = 0.25
_QUEUE = 0.2


def slow_stage(figures: Figures) -> Iterator[Cause]:
    """Stages of the program that take much of the time outside of the model; tokenizers have their own advice."""
    for stage in figures.stages.values():
        if stage.seconds < _STAGE * figures.total or figures.total <= 0:
            continue
        tokenizer = "token" in stage.name.lower()
        yield Cause(
            rule="tokenizer" if tokenizer else "slow_stage",
            title=f"the stage {stage.name} takes {percent(stage.seconds / figures.total)} of the time outside of the model,"
            f" {seconds_text(stage.seconds / stage.count)} a call",
            place=PROGRAM,
            seconds=stage.seconds,
            gain=stage.seconds,
            basis="at most",
            sure=SURE,
            figures={"stage": stage.name, "seconds": stage.seconds, "calls": stage.count},
            spans=shown_by(stage.spans),
            parts=[Part(stage.name, stage.seconds, f"{stage.count:,} calls")],
            advice="Use the fast tokenizer, tokenize several texts in one call, and do it while the model runs." if tokenizer
            else "Make it faster, or let it run on another thread while the model works on another request.",
            setting="AutoTokenizer.from_pretrained(..., use_fast=True)" if tokenizer else None,
        )  # fmt: skip


def queue_time(figures: Figures) -> Iterator[Cause]:
    """Requests that wait for a place in the batch."""
    waiting = [request for request in figures.requests if request.queue]
    seconds = sum(request.queue for request in waiting)
    if not waiting or seconds < _QUEUE * figures.total:
        return
    steps = [step for batch in figures.batches for step in batch.children]
    queued = [found for step in steps if (found := whole(step, semconv.STEP_WAITING)) is not None]
    rows = [found for step in steps if (found := whole(step, semconv.STEP_ROWS)) is not None]
    yield Cause(
        rule="queue_time",
        title=f"requests wait {percent(seconds / figures.total)} of their time for a place in the batch,"
        f" {seconds_text(seconds / len(waiting))} each",
        place=QUEUE,
        seconds=seconds,
        gain=seconds,
        basis="at most",
        sure=SURE,
        figures={
            "queue_seconds": seconds, "requests": len(waiting), "longest_queue": max(queued, default=None),
            "rows_of_steps": sum(rows) / len(rows) if rows else None,
        },
        spans=shown_by(sorted((request.span for request in waiting), key=lambda span: -span.seconds)),
        advice="Let a step take more tokens and the cache hold more blocks, or add a process; more requests than a batch holds have to"
        " wait.",
        setting="ContinuousBatchingConfig(max_batch_tokens=..., num_blocks=...)",
    )  # fmt: skip


def preemptions(figures: Figures) -> Iterator[Cause]:
    """Requests that lost their place in the batch because the cache was full, and computed their prompt again."""
    found = [(request, times) for request in figures.requests if (times := whole(request.span, semconv.PREEMPTIONS))]
    if not found:
        return
    count = sum(times for _, times in found)
    yield Cause(
        rule="preemption",
        title=f"{len(found):,} of {len(figures.requests):,} requests {'was' if len(found) == 1 else 'were'} taken out of the batch,"
        f" {counted(count, 'time')}: the cache was full",
        place=QUEUE,
        seconds=None,
        level="high" if count > len(figures.requests) / 2 else "medium",
        sure=LIKELY,
        figures={"preemptions": count, "requests": len(found)},
        spans=shown_by(request.span for request, _ in found),
        advice="Give the cache more blocks, or admit fewer requests at a time.",
        setting="ContinuousBatchingConfig(num_blocks=...)",
    )
