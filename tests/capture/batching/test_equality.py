"""A batch of one, ``generate()`` and a greedy loop written by hand say the same of the same request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inferspan import semconv
from inferspan.capture import recording
from inferspan.capture.recording import Outcome
from inferspan.capture.target import target_of
from tests.capture.batching.loops import said_by, steps, together
from tests.cases import models
from tests.cases.telemetry import Telemetry

PROMPT = [5, 6, 7, 8, 9, 10]
TOKENS = 6


def batched(model: Any) -> list[int]:
    """Continuous batching with nothing else in the batch."""
    (found,) = together(model, [PROMPT], max_new_tokens=TOKENS)
    return list(found.generated_tokens)


def generated(model: Any) -> list[int]:
    """The loop of transformers for one call."""
    ids = torch.tensor([PROMPT])
    found: list[int] = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)[0, 6:].tolist()
    return found


def greedy(model: Any) -> list[int]:
    """A loop by hand."""
    owner = target_of(model)
    assert owner is not None
    request = recording.start("generate", owner, root=model, operation=semconv.OPERATION_TEXT_COMPLETION)
    ids, cache, chosen = torch.tensor([PROMPT]), None, []
    with torch.no_grad():
        request.begin_phase(semconv.SPAN_PREFILL, then=semconv.SPAN_DECODE)
        for _ in range(TOKENS):
            request.begin_step(inputs=ids)
            outputs = model(ids, past_key_values=cache, use_cache=True)
            ids, cache = outputs.logits[:, -1].argmax(-1, keepdim=True), outputs.past_key_values
            request.end_step(outputs.logits[:, -1:], ids)
            chosen.append(int(ids))
    request.finish(Outcome(input_tokens=[len(PROMPT)], output_tokens=[TOKENS], finish_reasons=["length"], tokens_of_first_row=True))
    return chosen


WAYS = {"continuous batching": batched, "generate()": generated, "greedy loop": greedy}
COMPARED = (
    semconv.OPERATION_NAME,
    semconv.INPUT_TOKENS,
    semconv.OUTPUT_TOKENS,
    semconv.TEXT_INPUT_TOKENS,
    semconv.TEXT_OUTPUT_TOKENS,
    semconv.FINISH_REASONS,
    semconv.DECODE_STEPS,
    semconv.BATCH_SIZE,
    semconv.SEQUENCE_INPUT_TOKENS,
    semconv.SEQUENCE_OUTPUT_TOKENS,
    semconv.WARMUP,
)
LATENCIES = (semconv.TTFT, semconv.TPOT, semconv.TOKENS_PER_SECOND, semconv.PREFILL_TOKENS_PER_SECOND)
COUNTED = (
    semconv.M_SERVER_DURATION,
    semconv.M_SERVER_TTFT,
    semconv.M_SERVER_TPOT,
    semconv.M_INFERENCE_DURATION,
    semconv.M_USAGE_INPUT,
    semconv.M_USAGE_OUTPUT,
    semconv.M_OPERATION_INPUT,
    semconv.M_OPERATION_OUTPUT,
    semconv.M_LEGACY_USAGE,
    semconv.M_STEP_DURATION,
    semconv.M_BATCH_SIZE,
    semconv.M_STEP_ROWS,
    semconv.M_ACTIVE,
)


def _observed(way: Callable[[Any], list[int]]) -> tuple[list[int], Telemetry]:
    telemetry = Telemetry()
    model = models.llama(eos_token_id=None)
    telemetry.instrument(model, modules="none")
    found = way(model)
    telemetry.close()
    telemetry.check()
    return found, telemetry


@pytest.fixture(scope="module")
def seen() -> dict[str, tuple[list[int], Telemetry]]:
    """Tokens and telemetry of each way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {name: _observed(way) for name, way in WAYS.items()}
    torch.set_num_threads(threads)
    return found


def _same(values: dict[str, Any]) -> None:
    assert values["continuous batching"] == values["generate()"]
    assert values["greedy loop"] == values["generate()"]


def test_tokens(seen: dict[str, tuple[list[int], Telemetry]]) -> None:
    """The three give the same tokens."""
    _same({name: found for name, (found, _) in seen.items()})


@pytest.mark.parametrize("key", COMPARED)
def test_attributes_of_the_request(seen: dict[str, tuple[list[int], Telemetry]], key: str) -> None:
    """What does not depend on time is equal, and none of the three lacks it."""
    values = {name: telemetry.only()[key] for name, (_, telemetry) in seen.items()}
    _same(values)


@pytest.mark.parametrize("key", LATENCIES)
def test_latencies_of_the_request(seen: dict[str, tuple[list[int], Telemetry]], key: str) -> None:
    """Each of the three has them."""
    assert all(telemetry.only()[key] > 0 for _, telemetry in seen.values())


def test_phases_under_the_request(seen: dict[str, tuple[list[int], Telemetry]]) -> None:
    """The same phases, in order, without an error."""
    values = {}
    for name, (_, telemetry) in seen.items():
        (request,) = telemetry.requests()
        assert request.context is not None
        own = request.context.span_id
        values[name] = [span.name for span in telemetry.spans() if span.parent is not None and span.parent.span_id == own]
    assert values["generate()"] == ["prefill", "decode"]
    _same(values)


def test_steps(seen: dict[str, tuple[list[int], Telemetry]]) -> None:
    """The same number of steps of the same phases and rows, though those of a batch have a trace of their own."""
    keys = (semconv.PHASE, semconv.STEP_INDEX, semconv.STEP_ROWS)
    values = {name: [(step.name, *(said_by(step)[key] for key in keys)) for step in steps(telemetry)] for name, (_, telemetry) in seen.items()}
    assert len(values["generate()"]) == TOKENS
    _same(values)


@pytest.mark.parametrize("name", COUNTED)
def test_metrics(seen: dict[str, tuple[list[int], Telemetry]], name: str) -> None:
    """The same labels and counts."""
    _same({way: telemetry.metrics()[name] for way, (_, telemetry) in seen.items()})
