"""``generate()`` of each kind of model in each way: outputs as without us, and one request whose numbers are those of the outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferspan import semconv, zero_code
from tests.cases.telemetry import Telemetry

from .kinds import GENERATING
from .marks import marked
from .pairs import GENERATE, ZERO_CODE, Outcome
from .ways import WAYS, Run, prepared


def _rows(result: Any) -> Any:
    return result if isinstance(result, torch.Tensor) else result["sequences"]


def _answers(run: Run, rows: Any) -> list[int]:
    """Tokens of each returned row after the prompt, up to and including the first end token."""
    answers = rows[:, run.start :].tolist()
    return [answer.index(run.eos) + 1 if run.eos in answer else len(answer) for answer in answers]


def _prompt(run: Run) -> int | None:
    """Tokens of the prompt that are not padding; ``None`` if the prompt is sound or a picture."""
    return int(run.given["attention_mask"].sum()) if run.kind.counts_input else None


def _without_us(kind: str, way: str) -> tuple[Any, int]:
    """What is returned without inferspan, and the number of forward passes."""
    run, passes = prepared(GENERATING[kind], WAYS[way]), []
    # A wrapper for adapters has its base model generate.
    runs = getattr(run.model, "get_base_model", lambda: run.model)()
    runs.register_forward_pre_hook(lambda *_: passes.append(1))
    return _rows(WAYS[way].call(run)), len(passes)


@pytest.mark.parametrize(("way", "kind", "outcome"), marked(GENERATE))
def test_generate(telemetry: Telemetry, way: str, kind: str, outcome: Outcome) -> None:
    """Tokens, requests, phases and steps are those of the same call without inferspan; what is not seen is said."""
    for package in WAYS[way].needs:
        pytest.importorskip(package)
    with WAYS[way].around():
        _run(telemetry, way, kind, outcome)


def _run(telemetry: Telemetry, way: str, kind: str, outcome: Outcome) -> None:
    want, passes = _without_us(kind, way)
    run = prepared(GENERATING[kind], WAYS[way])
    telemetry.instrument(run.model)
    got = _rows(WAYS[way].call(run))
    assert torch.equal(got, want), "the output is another one"
    _check(telemetry, run, WAYS[way].rows, got, passes, outcome)


@pytest.mark.parametrize(("way", "kind", "outcome"), marked(ZERO_CODE))
def test_generate_under_zero_code(telemetry: Telemetry, way: str, kind: str, outcome: Outcome) -> None:
    """The same of a model that was built under zero code and that nothing else has instrumented."""
    want, passes = _without_us(kind, way)
    options = {"nvml": False, "host": False, "allocator": False}
    zero_code.activate(options, tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider)
    try:
        run = prepared(GENERATING[kind], WAYS[way])
        got = _rows(WAYS[way].call(run))
    finally:
        zero_code.deactivate()
    assert torch.equal(got, want), "the output is another one"
    _check(telemetry, run, WAYS[way].rows, got, passes, outcome)


def _check(telemetry: Telemetry, run: Run, rows: int, got: Any, passes: int, outcome: Outcome) -> None:
    telemetry.check()
    answers = _answers(run, got)
    assert len(telemetry.roots()) == outcome.requests
    request = telemetry.only(telemetry.requests(nested=None))
    assert request.get(semconv.INPUT_TOKENS) == _prompt(run)
    assert list(request[semconv.SEQUENCE_OUTPUT_TOKENS]) == answers
    assert request[semconv.OUTPUT_TOKENS] == sum(answers)
    assert request[semconv.BATCH_SIZE] == rows
    assert request.get(semconv.ERROR_TYPE) is None
    assert telemetry.metric_sum("gen_ai.client.token.usage", gen_ai__token__type="output") == sum(answers)
    steps = telemetry.steps()
    assert len(steps) == passes
    assert [step.attributes[semconv.STEP_INDEX] for step in steps if step.attributes] == [*range(passes)]
    decode_steps = len(telemetry.spans(semconv.SPAN_DECODE_STEP))
    assert request[semconv.DECODE_STEPS] == decode_steps
    assert len(telemetry.spans(semconv.SPAN_PREFILL)) == 1
    assert len(telemetry.spans(semconv.SPAN_DECODE)) == (1 if decode_steps else 0)
    assert semconv.TTFT in request
    assert request.get(semconv.UNOBSERVED) == outcome.unobserved
