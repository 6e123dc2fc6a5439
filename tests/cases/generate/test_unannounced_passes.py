"""Forward passes inside ``generate()`` that no helper of transformers announces, and loops that lose their helpers half-way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

NEW = 6


def _bare(model: Any, input_ids: Tensor, **_: Any) -> Tensor:
    """A loop with a cache of its own that calls no helper."""
    from transformers import DynamicCache

    cache, ids, feed = DynamicCache(config=model.config), input_ids, input_ids
    for _step in range(NEW):
        feed = model(input_ids=feed, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, feed], 1)
    return ids


def _without_cache(model: Any, input_ids: Tensor, **_: Any) -> Tensor:
    """The same, which computes the whole row each time."""
    ids = input_ids
    for _step in range(NEW):
        ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids


def _in_chunks(model: Any, input_ids: Tensor, **_: Any) -> Tensor:
    """The same with a cache, which computes the prompt in two passes."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model(input_ids=input_ids[:, :4], past_key_values=cache, use_cache=True)
    ids, feed = input_ids, input_ids[:, 4:]
    for _step in range(NEW):
        # Without a mask transformers 4 fails on several rows of a second chunk, with a torch before 2.5.
        mask = torch.ones_like(ids)
        feed = model(input_ids=feed, attention_mask=mask, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, feed], 1)
    return ids


def _asking(model: Any, input_ids: Tensor, stopping_criteria: Any = None, **_: Any) -> Tensor:
    """The same without a cache, which asks the criteria."""
    ids = input_ids
    for _step in range(NEW):
        ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
        stopping_criteria(ids, None)
    return ids


@pytest.mark.parametrize(
    ("loop", "prefill", "lengths"),
    [
        (_bare, 1, [6, 7, 8, 9, 10, 11]),
        (_without_cache, 1, [6, 7, 8, 9, 10, 11]),
        (_in_chunks, 2, [4, 6, 7, 8, 9, 10, 11]),
        (_asking, 1, [6, 7, 8, 9, 10, 11]),
    ],
    ids=["cache of its own", "no cache", "prompt in chunks", "asks the criteria"],
)
def test_a_loop_without_helpers(telemetry: Telemetry, loop: Callable[..., Tensor], prefill: int, lengths: list[int]) -> None:
    """Its passes are its steps, and the first token is known when the next pass begins."""
    model = models.llama()
    ids = models.prompt(2, 6)
    want = loop(model, ids, stopping_criteria=lambda *_: None)
    telemetry.instrument(model)
    got = model.generate(ids, custom_generate=loop, max_new_tokens=NEW)
    assert torch.equal(got, want)
    telemetry.check()
    attributes = telemetry.only()
    steps = telemetry.steps()
    assert [step.name for step in steps] == [semconv.SPAN_PREFILL_STEP] * prefill + [semconv.SPAN_DECODE_STEP] * (NEW - 1)
    assert [(step.attributes or {})[semconv.SEQUENCE_LENGTH] for step in steps] == lengths
    assert attributes[semconv.DECODE_STEPS] == NEW - 1
    (request,) = telemetry.requests()
    first = (request.start_time or 0) + attributes[semconv.TTFT] * 1e9
    assert (steps[prefill - 1].end_time or 0) <= first + 1_000
    assert first <= (steps[prefill].start_time or 0) + 1_000
    statistics = [semconv.LOGITS_CHOSEN_LOGPROB in (step.attributes or {}) for step in steps]
    assert statistics == [loop is _asking] * len(steps)
    assert attributes.get(semconv.UNOBSERVED) == (None if loop is _asking else "logits: chosen tokens not seen")


def test_modules_of_a_loop_without_helpers(telemetry: Telemetry) -> None:
    """Sampled steps have their modules."""
    model = models.llama()
    telemetry.instrument(model)
    model.generate(models.prompt(1, 6), custom_generate=_bare, max_new_tokens=NEW)
    telemetry.check()
    ids = {step.context.span_id for step in telemetry.steps() if step.context is not None}
    layers = [module for module in telemetry.modules() if (module.attributes or {})[semconv.MODULE_NAME] == "model.layers.0"]
    assert {module.parent.span_id for module in layers if module.parent is not None} <= ids
    assert {(module.attributes or {})[semconv.STEP_INDEX] for module in telemetry.modules()} == {0, 1, 2, 4}


def test_a_pass_of_a_loop_without_helpers_that_fails(telemetry: Telemetry) -> None:
    """The step ends with the exception; a loop that goes on after it is followed."""

    def loop(model: Any, input_ids: Tensor, **_: Any) -> Tensor:
        with pytest.raises(IndexError):
            model(torch.full_like(input_ids, 10_000))
        return _without_cache(model, input_ids)

    model = models.llama()
    telemetry.instrument(model)
    model.generate(models.prompt(1, 6), custom_generate=loop, max_new_tokens=NEW)
    telemetry.check()
    assert (telemetry.steps()[0].attributes or {})[semconv.ERROR_TYPE] == "IndexError"
    assert len(telemetry.steps()) == 1 + NEW


def test_a_loop_that_never_calls_the_model(telemetry: Telemetry) -> None:
    """Steps that cannot be seen are absent, and the request says so."""

    def loop(model: Any, input_ids: Tensor, **_: Any) -> Tensor:
        for _step in range(3):
            hidden = model.model(input_ids).last_hidden_state
            input_ids = torch.cat([input_ids, model.lm_head(hidden[:, -1]).argmax(-1, keepdim=True)], 1)
        return input_ids

    model = models.llama()
    telemetry.instrument(model)
    model.generate(models.prompt(1, 6), custom_generate=loop, max_new_tokens=3)
    telemetry.check()
    attributes = telemetry.only()
    assert semconv.DECODE_STEPS not in attributes
    assert semconv.TTFT not in attributes
    assert "steps: no forward pass of the model was seen" in attributes[semconv.UNOBSERVED]


# ------------------------------------------------------------------------------------------------------------- guidance, detaching
@pytest.mark.parametrize("how", ["setting", "processor of the caller's"])
def test_modules_of_both_passes_of_guidance(telemetry: Telemetry, how: str) -> None:
    """In classifier-free guidance the model runs twice a step, and the modules of both passes hang under it."""
    from transformers import UnbatchedClassifierFreeGuidanceLogitsProcessor

    model = models.llama()
    ids = models.prompt(1, 6)
    options: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}

    def run() -> Tensor:
        if how == "setting":
            return model.generate(ids, guidance_scale=1.5, **options)
        return model.generate(ids, logits_processor=[UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, model)], **options)

    want = run()
    telemetry.instrument(model)
    assert torch.equal(run(), want)
    telemetry.check()
    steps: dict[int, Any] = {
        step.context.span_id: (step.attributes or {})[semconv.STEP_INDEX] for step in telemetry.steps() if step.context is not None
    }
    assert len(steps) == 6
    norms = [module for module in telemetry.modules() if (module.attributes or {})[semconv.MODULE_NAME] == "model.layers.0"]
    places = [steps[module.parent.span_id] for module in norms if module.parent is not None]
    assert sorted(places) == [0, 0, 1, 1, 2, 2, 4, 4]
    assert all(module.parent is not None and module.parent.span_id in steps for module in norms)
    assert telemetry.only()[semconv.DECODE_STEPS] == 5


@pytest.mark.parametrize("at", [1, 2, 3, 6])
@pytest.mark.parametrize("beams", [1, 2])
def test_steps_after_uninstrument(telemetry: Telemetry, at: int, beams: int) -> None:
    """The criteria count the steps that are not seen any more; where they do not tell, the number is absent. Both are said."""
    model = models.llama()
    # A class of its own: wrappers stay on a class as long as another model of it is instrumented.
    model.__class__ = type("Alone", (type(model),), {})
    handle = telemetry.instrument(model)
    passes = 0

    def hook(*_: Any) -> None:
        nonlocal passes
        passes += 1
        if passes == at:
            handle.uninstrument()

    mine = model.model.layers[0].register_forward_hook(hook)
    model.generate(models.prompt(1, 6), max_new_tokens=6, min_new_tokens=6, do_sample=False, num_beams=beams)
    mine.remove()
    assert passes == 6
    attributes = telemetry.only()
    assert attributes.get(semconv.DECODE_STEPS) == (5 if beams == 1 else None)
    told = "steps: uninstrumented" in attributes.get(semconv.UNOBSERVED, "")
    assert told is (beams == 2 or at < 6)


# ---------------------------------------------------------------------------------------------------------------- finish reasons
@pytest.mark.parametrize("lengths", [[4, 4], [2, 4], [4, 9]], ids=["all at the end", "one before", "one not at all"])
def test_a_row_that_its_criterion_ends_on_the_last_allowed_token(telemetry: Telemetry, lengths: list[int]) -> None:
    """The reason is ``stop`` for rows that the criterion has ended, and ``length`` for those that the limit has."""
    from transformers import StoppingCriteria

    class Own(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            return torch.tensor([input_ids.shape[1] - 6 >= length for length in lengths])

    model = models.llama(eos_token_id=None)
    ids = models.prompt(2, 6)
    want = model.generate(ids, max_new_tokens=4, do_sample=False, stopping_criteria=[Own()])
    telemetry.instrument(model)
    assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False, stopping_criteria=[Own()]), want)
    telemetry.check()
    attributes = telemetry.only()
    assert list(attributes[semconv.FINISH_REASONS]) == ["stop" if length <= 4 else "length" for length in lengths]
    assert list(attributes[semconv.SEQUENCE_OUTPUT_TOKENS]) == [min(4, length) for length in lengths]
