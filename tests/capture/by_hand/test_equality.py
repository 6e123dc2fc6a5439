"""A decoding loop by hand tells what ``generate()`` tells: the whole trace and all metrics are compared, ids and times apart."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.test_whole_trace import as_text

from .loops import emitted, given, greedy

TOKENS = 7
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "no statistics": {"logits": False},
    "sampled steps": {"steps": "sampled"},
    "all modules": {"every_step": True, "output_stats": True},
    "small budget": {"max_spans_per_trace": 12},
    "entropy": {"entropy_metric": True, "module_metric": True},
}


def _generate(model: Any, prompt: Any, **options: Any) -> Any:
    return model.generate(**prompt, do_sample=False, max_new_tokens=TOKENS, **options)


def _same(model: Any, prompt: Any, settings: dict[str, Any], *, attach: bool = True, generate: Any = None, **loop: Any) -> tuple[Telemetry, Telemetry]:
    want, theirs = emitted(partial(_generate, prompt=prompt, **(generate or {})), model, **settings)
    got, by_hand = emitted(partial(greedy, prompt=prompt, limit=TOKENS, **loop), model, attach=attach, **settings)
    assert torch.equal(got, want)
    assert as_text(by_hand.spans()) == as_text(theirs.spans())
    assert _of_requests(by_hand) == _of_requests(theirs)
    return theirs, by_hand


def _of_requests(telemetry: Telemetry) -> dict[str, list[tuple[str, Any]]]:
    """Its metrics, without the time of readings of the machine: whether there was one by then is not up to the request."""
    return {name: rows for name, rows in telemetry.metrics().items() if name != semconv.M_SAMPLING_TIME}


@pytest.mark.parametrize("attach", [True, False], ids=["instrumented", "not instrumented"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_greedy_loop(settings: dict[str, Any], attach: bool) -> None:
    """Spans, their tree and attributes and the metrics are equal, whether the model is instrumented or not."""
    _, by_hand = _same(models.llama(eos_token_id=None), given(models.prompt(2, 6)), settings, attach=attach)
    assert by_hand.usage() == [(12, 2 * TOKENS)] * 2


def test_statistics_are_those_of_generate() -> None:
    """Numbers that the text of a trace masks are the same as well."""
    keys = (semconv.LOGITS_ENTROPY, semconv.LOGITS_CHOSEN_RANK, semconv.LOGITS_CHOSEN_LOGPROB, semconv.LOGITS_MARGIN)
    seen = []
    for telemetry in _same(models.llama(eos_token_id=None), given(models.prompt(2, 6)), {}):
        seen.append([[(step.attributes or {})[key] for key in keys] for step in telemetry.steps()])
    assert len(seen[0]) == 2 * TOKENS
    for theirs, by_hand in zip(*seen, strict=True):
        assert by_hand == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("settings", [{}, {"logits": False}], ids=["default", "no statistics"])
@pytest.mark.parametrize("told", [True, False], ids=["prompt told", "prompt seen"])
def test_rows_that_end_early(settings: dict[str, Any], told: bool) -> None:
    """Tokens, reasons, running rows and means are of the rows up to their end tokens; padding is no input."""
    model, prompt = models.llama(), given(models.prompt(3, 6), padding=2)
    answers = model.generate(**prompt, do_sample=False, max_new_tokens=TOKENS)[:, 6:]
    model.generation_config.eos_token_id = int(answers[1, 2])
    _, by_hand = _same(model, prompt, settings, told=told)
    request: dict[str, Any] = dict(by_hand.requests()[0].attributes or {})
    assert "stop" in request[semconv.FINISH_REASONS]
    assert len(set(request[semconv.SEQUENCE_OUTPUT_TOKENS])) > 1
    assert request[semconv.INPUT_TOKENS] == 16


def test_without_a_cache() -> None:
    """A loop that passes the whole row each time has the lengths of such a ``generate()``."""
    model = models.llama(eos_token_id=None)
    theirs, by_hand = (
        emitted(partial(_generate, prompt=given(models.prompt(2, 6)), use_cache=False), model)[1],
        emitted(partial(greedy, prompt=given(models.prompt(2, 6)), limit=TOKENS, cached=False), model)[1],
    )
    keys = (semconv.STEP_TOKENS, semconv.SEQUENCE_LENGTH, semconv.INPUT_SHAPES)
    lengths = [[[(step.attributes or {})[key] for key in keys] for step in one.steps()] for one in (theirs, by_hand)]
    assert lengths[0] == lengths[1]
    assert by_hand.usage() == theirs.usage()


@pytest.mark.parametrize("told", [True, False], ids=["prompt told", "prompt seen"])
def test_a_prompt_in_parts(told: bool) -> None:
    """Several passes of the prompt are several prefill steps, and their positions add up."""
    _, by_hand = emitted(partial(greedy, prompt=given(models.prompt(2, 6)), limit=3, chunk=2, told=told), models.llama(eos_token_id=None))
    steps = [step for step in by_hand.steps() if step.name == semconv.SPAN_PREFILL_STEP][::2]
    assert [(step.attributes or {})[semconv.STEP_TOKENS] for step in steps] == [2, 2, 2]
    assert [(step.attributes or {})[semconv.SEQUENCE_LENGTH] for step in steps] == [2, 4, 6]
    assert [name.name for name in by_hand.spans(semconv.SPAN_PREFILL)] == [semconv.SPAN_PREFILL] * 2
    assert by_hand.usage() == [(12, 6)] * 2


def test_encoder_and_decoder() -> None:
    """The tokens of an encoder's prompt are the input, and the loop's shapes those of the decoder."""
    model, ids = models.t5(), models.prompt(2, 6)
    model.generation_config.eos_token_id = None

    def by_hand(model: Any) -> Any:
        import inferspan

        from .loops import LOOP_KNOWS

        rows, cache = torch.zeros(2, 1, dtype=torch.long), None
        with torch.no_grad(), inferspan.context(**LOOP_KNOWS), inferspan.generation(model, input_tokens=ids, max_new_tokens=TOKENS) as g:
            encoded = model.get_encoder()(ids)
            for step in range(TOKENS):
                with g.step() if step else g.prefill():
                    output = model(encoder_outputs=encoded, decoder_input_ids=rows[:, -1:], past_key_values=cache, use_cache=True)
                chosen = output.logits[:, -1].argmax(-1)
                g.token(output.logits, chosen)
                cache, rows = output.past_key_values, torch.cat([rows, chosen[:, None]], 1)
            g.finish("length")
        return rows

    # The encoder of the loop runs outside of its passes, so nobody knows what the request costs.
    settings: dict[str, Any] = {"modules": "none", "roofline": "none"}
    want, theirs = emitted(partial(_generate, prompt={"input_ids": ids}), model, **settings)
    got, mine = emitted(by_hand, model, **settings)
    assert torch.equal(got, want)
    assert as_text(mine.spans()) == as_text(theirs.spans())
    assert mine.metrics() == theirs.metrics()


def test_images_in_the_first_pass() -> None:
    """A prompt with images has its tokens by modality, and the operation of one."""
    model = models.llava()
    model.generation_config.eos_token_id = None
    ids = torch.cat([torch.full((2, 4), 63), models.prompt(2, 5)], dim=1)
    prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(2, 3, 8, 8)}

    def by_hand(model: Any) -> Any:
        import inferspan

        from .loops import LOOP_KNOWS

        rows, cache, pixels = ids, None, {"pixel_values": prompt["pixel_values"]}
        with torch.no_grad(), inferspan.context(**LOOP_KNOWS), inferspan.generation(model, input_tokens=prompt, max_new_tokens=TOKENS) as g:
            for step in range(TOKENS):
                with g.step() if step else g.prefill():
                    output = model(input_ids=rows[:, -1:] if step else rows, attention_mask=torch.ones_like(rows), past_key_values=cache, logits_to_keep=1, **({} if step else pixels))
                chosen = output.logits[:, -1].argmax(-1)
                g.token(output.logits, chosen)
                cache, rows = output.past_key_values, torch.cat([rows, chosen[:, None]], 1)
            g.finish("length")
        return rows

    # Stages apart: generate() of transformers runs the encoder before the first pass, this loop in it.
    want, theirs = emitted(partial(_generate, prompt=prompt), model, modules="none", stages=())
    got, mine = emitted(by_hand, model, modules="none", stages=())
    assert torch.equal(got, want)
    assert as_text(mine.spans()) == as_text(theirs.spans())
    assert mine.metrics() == theirs.metrics()
    assert dict(mine.requests()[0].attributes or {})[semconv.IMAGE_INPUT_TOKENS] == 8
    stages = [
        [(span.name, (span.attributes or {}).get(semconv.STAGE_TOKENS)) for span in emitted(loop, model, modules="none")[1].spans()
         if semconv.STAGE_NAME in (span.attributes or {})]
        for loop in (by_hand, partial(_generate, prompt=prompt))
    ]
    assert sorted(stages[0], key=str) == sorted(stages[1], key=str) != []
