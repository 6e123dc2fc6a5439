"""How a generation by hand begins and ends, and what its passes, tokens and models are."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

import inferspan
from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry
from tests.test_whole_trace import as_text

from .loops import engine, given, greedy, providers, some_logits

IDS = models.prompt(1, 4)
ENGINE = """\
text_completion small.onnx
  | gen_ai.operation.name = text_completion
  | gen_ai.provider.name = _OTHER
  | gen_ai.request.max_tokens = 3
  | gen_ai.request.model = small.onnx
  | gen_ai.response.finish_reasons = [length]
  | gen_ai.response.model = small.onnx
  | gen_ai.usage.input_tokens = 4
  | gen_ai.usage.output_tokens = 3
  | gen_ai.usage.text.input_tokens = 4
  | gen_ai.usage.text.output_tokens = 3
  | inferspan.analysis.avg_logits_mean = <number>
  | inferspan.analysis.avg_logits_std = <number>
  | inferspan.analysis.chosen_probability.average = <number>
  | inferspan.analysis.chosen_probability.deviation = <number>
  | inferspan.analysis.chosen_probability.maximum = <number>
  | inferspan.analysis.chosen_probability.minimum = <number>
  | inferspan.analysis.confidence.average = <number>
  | inferspan.analysis.confidence.deviation = <number>
  | inferspan.analysis.confidence.maximum = <number>
  | inferspan.analysis.confidence.minimum = <number>
  | inferspan.analysis.distinct_ratio = <number>
  | inferspan.analysis.repetition_rate = <number>
  | inferspan.analysis.repetition_rate_recent = <number>
  | inferspan.analysis.token_entropy = <number>
  | inferspan.analysis.unique_tokens = <tokens>
  | inferspan.batch.size = 1
  | inferspan.decode.steps = 2
  | inferspan.health.kinds = [low]
  | inferspan.memory.end = <By>
  | inferspan.memory.peak = <By>
  | inferspan.memory.peak_exact = <boolean>
  | inferspan.memory.start = <By>
  | inferspan.model.name = small.onnx
  | inferspan.prefill.tokens_per_second = <tokens/s>
  | inferspan.sequences.input_tokens = [4]
  | inferspan.sequences.output_tokens = [3]
  | inferspan.time_per_output_token = <s>
  | inferspan.time_to_first_token = <s>
  | inferspan.tokens.entropies = [<number>, <number>, <number>]
  | inferspan.tokens.intervals = [<s>, <s>, <s>]
  | inferspan.tokens.logprobs = [<number>, <number>, <number>]
  | inferspan.tokens_per_second = <tokens/s>
  | inferspan.warmup = True
    prefill
      | inferspan.phase = prefill
        prefill_step
          | inferspan.input.dtypes = [int64]
          | inferspan.input.shapes = [1x4]
          | inferspan.logits.chosen_logprob = <number>
          | inferspan.logits.chosen_rank = 1
          | inferspan.logits.entropy = <number>
          | inferspan.logits.inf_count = 0
          | inferspan.logits.margin = <number>
          | inferspan.logits.max = <number>
          | inferspan.logits.mean = <number>
          | inferspan.logits.min = <number>
          | inferspan.logits.nan_count = 0
          | inferspan.logits.std = <number>
          | inferspan.logits.top1_probability = <number>
          | inferspan.output.dtypes = [float32]
          | inferspan.output.shapes = [1x16]
          | inferspan.phase = prefill
          | inferspan.sequence.length = 4
          | inferspan.step.index = 0
          | inferspan.step.rows = 1
          | inferspan.step.tokens = 4
    decode
      | inferspan.phase = decode
        decode_step
"""
"""The beginning of the trace of an engine that is no module."""


def _names(telemetry: Telemetry) -> list[str]:
    return [span.name for span in telemetry.spans()]


def _request(telemetry: Telemetry) -> dict[str, Any]:
    return telemetry.only(telemetry.requests(nested=None))


# ------------------------------------------------------------------------------------------------------- another engine
def test_the_trace_of_anotherengine(telemetry: Telemetry) -> None:
    """An engine that is no module has the same request, phases and steps, from arrays of numpy."""
    ids = numpy.arange(4, dtype=numpy.int64)[None]
    with engine(telemetry, input_tokens=ids, max_new_tokens=3) as g:
        for step in range(3):
            with g.step() if step else g.prefill(inputs=ids):
                logits = some_logits()
            g.token(logits, int(logits.argmax()))
        g.finish("length")
    assert as_text(telemetry.spans()).startswith(ENGINE)
    assert _names(telemetry).count(semconv.SPAN_DECODE_STEP) == 2
    telemetry.check()


@pytest.mark.parametrize(
    "token",
    [5, numpy.int64(5), [5], (5,), torch.tensor([5]), torch.tensor([[5]]), torch.tensor(5), numpy.array([5]), numpy.array([[5]], numpy.int32)],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'shape', '')}",
)
def test_forms_of_a_token(telemetry: Telemetry, token: Any) -> None:
    """A token is a number, a list, a tensor or an array, of one row or of several."""
    with engine(telemetry, input_tokens=4) as g:
        with g.prefill():
            logits = some_logits()
        g.token(logits, token)
    (step,) = telemetry.steps()
    want = torch.from_numpy(logits).log_softmax(-1)[0, 5].item()
    assert (step.attributes or {})[semconv.LOGITS_CHOSEN_LOGPROB] == pytest.approx(want, rel=1e-4)
    assert telemetry.usage() == [(4, 1)]


@pytest.mark.parametrize(
    "form",
    [lambda x: x, lambda x: x[0], lambda x: x[:, None].repeat(3, 1), torch.from_numpy, lambda x: torch.from_numpy(x)[:, None], lambda x: x.astype(numpy.float16)],
    ids=["array", "array of one row", "array with positions", "tensor", "tensor with positions", "half precision"],
)
def test_forms_of_logits(telemetry: Telemetry, form: Any) -> None:
    """Logits have a dimension of positions or none, and the last position counts."""
    logits = some_logits()
    with engine(telemetry, input_tokens=4) as g:
        with g.prefill():
            pass
        g.token(form(logits), 5)
    want = torch.distributions.Categorical(logits=torch.from_numpy(logits)).entropy().item()
    assert (telemetry.steps()[0].attributes or {})[semconv.LOGITS_ENTROPY] == pytest.approx(want, rel=2e-3)


def test_an_array_that_cannot_be_written(telemetry: Telemetry) -> None:
    """Logits that an engine lends for reading are copied, and torch has nothing to warn of."""
    logits = some_logits()
    logits.flags.writeable = False
    with engine(telemetry, input_tokens=4) as g:
        with g.prefill():
            pass
        g.token(logits, 5)
    assert semconv.LOGITS_ENTROPY in (telemetry.steps()[0].attributes or {})


def test_logits_that_the_engine_writes_again(telemetry: Telemetry) -> None:
    """Statistics are of the logits at the choice, also if the engine uses the same memory for the next step."""
    logits, token = some_logits(), torch.zeros(1, 1, dtype=torch.long)
    want = torch.distributions.Categorical(logits=torch.from_numpy(logits)).entropy().item()
    with engine(telemetry, input_tokens=4, tokenizer=_Tokenizer(eos=9)) as g:
        for step in range(3):
            with g.step() if step else g.prefill():
                pass
            g.token(logits, token)
            logits[:] = 0
            token[:] = 9 if step == 1 else 7
    assert (telemetry.steps()[0].attributes or {})[semconv.LOGITS_ENTROPY] == pytest.approx(want, rel=1e-4)
    assert _request(telemetry)[semconv.SEQUENCE_OUTPUT_TOKENS] == (3,)


def test_without_logits(telemetry: Telemetry) -> None:
    """Tokens without logits count, and the request says that there are no statistics."""
    with engine(telemetry, input_tokens=4) as g:
        for step in range(2):
            with g.step() if step else g.prefill():
                pass
            g.token(None, 5)
    assert telemetry.usage() == [(4, 2)]
    assert _request(telemetry)[semconv.UNOBSERVED] == "logits: not given"
    assert len(_request(telemetry)[semconv.TOKEN_INTERVALS]) == 2


def test_several_tokens_of_one_pass(telemetry: Telemetry) -> None:
    """A pass after which several tokens are chosen is one step, and each token counts."""
    with engine(telemetry, input_tokens=4) as g:
        for step in range(2):
            with g.step() if step else g.prefill():
                pass
            g.token(some_logits(), 5)
            g.token(some_logits(), 6)
    assert len(telemetry.steps()) == 2
    assert telemetry.usage() == [(4, 4)]
    assert len(_request(telemetry)[semconv.TOKEN_INTERVALS]) == 4


@pytest.mark.parametrize(
    ("prompt", "want"),
    [
        (4, (4, 4)), ([3, 5], (3, 5)), ([[1, 2, 3], [4, 5]], (3, 2)), (torch.zeros(2, 5, dtype=torch.long), (5, 5)),
        (numpy.zeros((2, 5), numpy.int64), (5, 5)), (given(models.prompt(2, 6), padding=2), (4, 6)), (None, None),
    ],
    ids=["number", "number a row", "ids as lists", "ids as tensor", "ids as array", "tokenizer's output", "not told"],
)  # fmt: skip
def test_forms_of_the_prompt(telemetry: Telemetry, prompt: Any, want: Any) -> None:
    """The prompt is told as a number, one a row, or as ids; if it is not told it is not guessed."""
    with engine(telemetry, input_tokens=prompt) as g:
        with g.prefill():
            pass
        g.token(some_logits(2), [5, 6])
    assert _request(telemetry).get(semconv.SEQUENCE_INPUT_TOKENS) == want


# ------------------------------------------------------------------------------------------------------------- its end
class _Tokenizer:
    def __init__(self, eos: int) -> None:
        self.eos_token_id = eos

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        """The ids as text."""
        return " ".join(f"t{one}" for one in (ids if isinstance(ids, list) else [ids]))


@pytest.mark.parametrize(
    ("reason", "want"),
    [(None, ("stop", "stop")), ("length", ("stop", "length")), ("cut off", ("stop", "cut off")), (["x", "y"], ("stop", "y"))],
    ids=["none", "length", "own text", "one a row"],
)
def test_reasons(telemetry: Telemetry, reason: Any, want: tuple[str, ...]) -> None:
    """A row ends with its end token, the others for the reason that the loop gives, else with the block."""
    with engine(telemetry, input_tokens=4, tokenizer=_Tokenizer(eos=9)) as g:
        for step, tokens in enumerate([[5, 6], [9, 6], [0, 6]]):
            with g.step() if step else g.prefill():
                pass
            g.token(some_logits(2), tokens)
        if reason is not None:
            g.finish(reason)
    assert _request(telemetry)[semconv.FINISH_REASONS] == want
    assert _request(telemetry)[semconv.SEQUENCE_OUTPUT_TOKENS] == (2, 3)
    assert [(step.attributes or {})[semconv.STEP_ROWS] for step in telemetry.steps()] == [2, 2, 1]


def test_rows_that_the_loop_ends(telemetry: Telemetry) -> None:
    """A row for which the loop gives -1 has ended before, also without a known end token."""
    with engine(telemetry, input_tokens=4) as g:
        for step, tokens in enumerate([[5, 6], [7, -1], [8, -1]]):
            with g.step() if step else g.prefill():
                pass
            g.token(some_logits(2), tokens)
        g.finish("length")
    assert _request(telemetry)[semconv.SEQUENCE_OUTPUT_TOKENS] == (3, 1)
    assert _request(telemetry)[semconv.FINISH_REASONS] == ("length", "stop")
    assert [(step.attributes or {})[semconv.STEP_ROWS] for step in telemetry.steps()] == [2, 1, 1]


def test_many_tokens(telemetry: Telemetry) -> None:
    """The tokens of a long loop are counted whatever their number."""
    with engine(telemetry, input_tokens=4, tokenizer=_Tokenizer(eos=9)) as g:
        for step in range(1300):
            with g.step() if step else g.prefill():
                pass
            g.token(None, 9 if step == 1200 else 5)
    assert telemetry.usage() == [(4, 1201)]


def test_an_exception(telemetry: Telemetry) -> None:
    """An exception passes; request, phase and step have its type, and the steps so far are there."""

    def loop() -> None:
        with engine(telemetry, input_tokens=4) as g:
            with g.prefill():
                pass
            g.token(some_logits(), 5)
            with g.step():
                raise LookupError("theirs")

    with pytest.raises(LookupError, match="theirs"):
        loop()
    request, prefill, first, decode, second = telemetry.spans()
    assert [(span.attributes or {}).get(semconv.ERROR_TYPE) for span in (request, decode, second)] == ["LookupError"] * 3
    assert [(span.attributes or {}).get(semconv.ERROR_TYPE) for span in (prefill, first)] == [None, None]
    assert not request.status.is_ok
    assert _request(telemetry)[semconv.OUTPUT_TOKENS] == 1
    assert _request(telemetry)[semconv.FINISH_REASONS] == ("error",)
    telemetry.check()


def test_a_failed_step_that_the_loop_survives(telemetry: Telemetry) -> None:
    """An exception that the loop catches stays with its step."""
    with engine(telemetry, input_tokens=4) as g:
        with pytest.raises(LookupError), g.prefill():
            raise LookupError
        with g.prefill():
            pass
        g.token(some_logits(), 5)
    failures = [(span.name, (span.attributes or {}).get(semconv.ERROR_TYPE)) for span in telemetry.spans()]
    assert failures == [("text_completion small.onnx", None), ("prefill", None), ("prefill_step", "LookupError"), ("prefill_step", None)]
    telemetry.check()


def test_time_ends_with_finish(telemetry: Telemetry) -> None:
    """What follows finish() in the block is no part of the request, and no child of it."""
    with engine(telemetry, input_tokens=4) as g:
        with g.prefill():
            pass
        g.token(some_logits(), 5)
        g.finish("stop")
        with telemetry.tracer_provider.get_tracer("user").start_as_current_span("decoding"):
            pass
    request, later = telemetry.spans("text_completion small.onnx")[0], telemetry.spans("decoding")[0]
    assert (request.end_time or 0) <= (later.start_time or 0)
    assert later.parent is None
    telemetry.check()


def test_content(telemetry: Telemetry) -> None:
    """Prompt, answer and ids are recorded only if content is captured, with the tokenizer of the generation."""
    for mode in ("NO_CONTENT", "SPAN_ONLY"):
        options = providers(telemetry, capture_content=mode)
        with inferspan.generation("small.onnx", input_tokens=IDS, tokenizer=_Tokenizer(eos=9), **options) as g:
            with g.prefill():
                pass
            g.token(some_logits(), 5)
    without, captured = (dict(span.attributes or {}) for span in telemetry.requests())
    assert [key for key in without if key in (*semconv.MESSAGES, semconv.TOKEN_IDS)] == []
    assert "t5" in str(captured[semconv.OUTPUT_MESSAGES])
    assert f"t{int(IDS[0, 0])}" in str(captured[semconv.INPUT_MESSAGES])
    assert captured[semconv.TOKEN_IDS] == (5,)


# ------------------------------------------------------------------------------------------------------------ the model
def test_nothing_stays_on_a_model_that_is_not_instrumented(telemetry: Telemetry) -> None:
    """After the block the model is as it was, and its plain passes and generate() calls are no requests, in the block neither."""
    model = models.llama(eos_token_id=None)
    before = dict(model.__dict__), type(model).generate, len(model._forward_hooks), len(model._forward_pre_hooks)
    with torch.no_grad(), inferspan.generation(model, **providers(telemetry)) as g:
        model(IDS)
        with g.prefill():
            model(IDS)
        g.token(None, 5)
    with torch.no_grad():
        model(IDS)
    model.generate(IDS, max_new_tokens=2)
    assert (dict(model.__dict__), type(model).generate, len(model._forward_hooks), len(model._forward_pre_hooks)) == before
    assert len(telemetry.roots()) == 1
    assert telemetry.forwards() == []
    assert telemetry.usage() == [(4, 1)]
    telemetry.check()


def test_a_pass_between_the_steps_of_an_instrumented_model(telemetry: Telemetry) -> None:
    """A pass outside of the steps is a request of its own, inside the generation."""
    model = models.llama(eos_token_id=None)
    telemetry.instrument(model, modules="none")
    with torch.no_grad(), inferspan.generation(model) as g:
        with g.prefill():
            model(IDS)
        g.token(None, 5)
        model(IDS)
    (forward,) = telemetry.forwards()
    assert forward.parent is not None
    assert forward.parent.span_id == telemetry.roots()[0].context.span_id
    telemetry.check()


def test_a_draft_model_inside(telemetry: Telemetry) -> None:
    """A generate() inside the block is nested, so that its tokens are not counted twice."""
    model, draft = models.llama(eos_token_id=None), models.llama(seed=1, eos_token_id=None)
    telemetry.instrument(model, modules="none")
    telemetry.instrument(draft, modules="none")
    with torch.no_grad(), inferspan.generation(model) as g:
        with g.prefill():
            model(IDS)
        g.token(None, 5)
        draft.generate(IDS, max_new_tokens=2)
    assert telemetry.usage() == [(4, 1)]
    assert len(telemetry.requests(nested=True)) == 1
    assert len(telemetry.roots()) == 1
    telemetry.check()


def test_a_loop_with_the_helpers_of_transformers(telemetry: Telemetry) -> None:
    """The helpers that generate() calls can be called in a loop by hand."""
    model = models.llama(eos_token_id=None)
    telemetry.instrument(model, modules="none")
    kwargs: dict[str, Any] = {"attention_mask": torch.ones_like(IDS), "use_cache": True}
    if hasattr(model, "_get_initial_cache_position"):  # transformers 4
        kwargs = model._get_initial_cache_position(IDS.shape[1], IDS.device, kwargs)
    ids = IDS
    with torch.no_grad(), inferspan.generation(model, input_tokens=IDS) as g:
        for step in range(3):
            with g.step() if step else g.prefill():
                output = model(**model.prepare_inputs_for_generation(ids, **kwargs))
                kwargs = model._update_model_kwargs_for_generation(output, kwargs)
            chosen = output.logits[:, -1].argmax(-1)
            g.token(output.logits, chosen)
            ids = torch.cat([ids, chosen[:, None]], 1)
    assert telemetry.usage() == [(4, 3)]
    assert len(telemetry.steps()) == 3
    telemetry.check()


def test_instrumented_later(telemetry: Telemetry) -> None:
    """A model may be instrumented between two generations, and taken off again."""
    model, prompt = models.llama(eos_token_id=None), given(models.prompt(2, 6))
    options = providers(telemetry, modules="none")
    greedy(model, prompt, 3, **options)
    handle = telemetry.instrument(model, modules="none")
    greedy(model, prompt, 3)
    handle.uninstrument()
    greedy(model, prompt, 3, **options)
    assert telemetry.usage() == [(12, 6)] * 3
    assert len(telemetry.roots()) == 3
    telemetry.check()


def test_a_model_is_collected(telemetry: Telemetry) -> None:
    """A generation does not keep a model alive."""
    import gc
    import weakref

    model = torch.nn.Linear(2, 2)
    gone = weakref.ref(model)
    with inferspan.generation(model, **providers(telemetry)) as g:
        with g.prefill():
            model(torch.zeros(1, 2))
        g.token(None, 5)
    del model, g
    gc.collect()
    assert gone() is None
