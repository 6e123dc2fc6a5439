"""Continuous batching as the tests run it: a tiny model, one thread, and a cache of a few blocks.

The default of transformers takes most of the machine's memory for its cache, so every loop here bounds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inferspan import semconv
from tests.cases.telemetry import Telemetry

__all__ = [
    "PROMPTS", "batches", "bounded", "config", "generate_batch", "linked", "manager", "of_request", "requests", "results", "said_by", "steps",
    "together", "tokens",
]

PROMPTS = [[5, 6, 7], [8, 9, 10, 11], [12]]


def bounded(**changes: Any) -> Any:
    """A configuration of the loop with a cache of 16 blocks of 16 positions."""
    from transformers import ContinuousBatchingConfig

    return ContinuousBatchingConfig(**{"num_blocks": 16, "page_size": 16, "max_batch_tokens": 64, **changes})


def config(**changes: Any) -> Any:
    """Greedy generation of five tokens, without an end token."""
    from transformers import GenerationConfig

    return GenerationConfig(**{"max_new_tokens": 5, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0, **changes})


def generate_batch(model: Any, prompts: list[list[int]] = PROMPTS, *, loop: Any = None, **changes: Any) -> list[Any]:
    """Results in the order of the prompts."""
    found = model.generate_batch(
        prompts, generation_config=config(**changes), continuous_batching_config=loop or bounded(), progress_bar=False
    )
    return [*found.values()]


def tokens(found: list[Any]) -> list[list[int]]:
    """Tokens of each result."""
    return [list(one.generated_tokens) for one in found]


@contextmanager
def manager(model: Any, *, loop: Any = None, start: bool = True, **changes: Any) -> Iterator[Any]:
    """A manager whose loop runs, stopped at the end."""
    made = model.init_continuous_batching(generation_config=config(**changes), continuous_batching_config=loop or bounded())
    if start:
        made.start()
    try:
        yield made
    finally:
        if made.is_running():
            made.stop(block=True, timeout=60)
        made.destroy()


def results(loop: Any, number: int) -> dict[str, Any]:
    """The next results of a manager, by id."""
    found: dict[str, Any] = {}
    while len(found) < number:
        result = loop.get_result(timeout=60)
        assert result is not None, f"{len(found)} of {number} results came"
        if result.is_finished():
            found[result.request_id] = result
    return found


def together(model: Any, prompts: list[list[int]] = PROMPTS, *, loop: Any = None, **changes: Any) -> list[Any]:
    """Results of requests that were all queued before the loop began, so that their steps are always the same ones."""
    with manager(model, loop=loop, start=False, **changes) as made:
        names = [made.add_request(prompt) for prompt in prompts]
        made.start()
        found = results(made, len(prompts))
    return [found[name] for name in names]


def said_by(span: Any) -> dict[str, Any]:
    """Attributes of a span."""
    return dict(span.attributes or {})


def requests(telemetry: Telemetry) -> list[Any]:
    """Spans of requests, by start."""
    return [*telemetry.requests()]


def steps(telemetry: Telemetry) -> list[Any]:
    """Spans of steps, by start."""
    return [span for span in telemetry.spans() if span.name in (semconv.SPAN_PREFILL_STEP, semconv.SPAN_DECODE_STEP)]


def of_request(telemetry: Telemetry, request_id: str) -> dict[str, Any]:
    """Attributes of the span of a request."""
    (found,) = [span for span in telemetry.requests() if said_by(span).get(semconv.RESPONSE_ID) == request_id]
    return said_by(found)


def batches(telemetry: Telemetry) -> list[Any]:
    """Spans of batches, in order."""
    return [span for span in telemetry.spans() if span.name.split()[0] == semconv.SPAN_BATCH]


def linked(telemetry: Telemetry, step: Any) -> list[str]:
    """Ids of the requests that a step is linked to, in order."""
    spans = {span.context.span_id: span for span in telemetry.requests() if span.context is not None}
    return [str(said_by(spans[link.context.span_id])[semconv.RESPONSE_ID]) for link in step.links]
