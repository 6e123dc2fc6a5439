"""``generate()`` in every way that transformers offers: what is counted is what was fed and what came back."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig, LlamaForCausalLM, StaticCache, StoppingCriteria, StoppingCriteriaList

from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

GREEDY: dict[str, Any] = {"do_sample": False}
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
"""The argument's name, which has changed with transformers 5."""


def _exactly(tokens: int, **more: Any) -> dict[str, Any]:
    return {**GREEDY, "max_new_tokens": tokens, "min_new_tokens": tokens, **more}


def _generate(model: Any, *arguments: Any, **options: Any) -> Any:
    with torch.no_grad():
        return model.generate(*arguments, **options)


def _after(rows: Tensor, width: int, eos: int = 2) -> list[int]:
    """Tokens of each row after the prompt, up to and including the first end token."""
    counts = []
    for row in rows[:, width:].tolist():
        counts.append(row.index(eos) + 1 if eos in row else len(row))
    return counts


def _biased(model: Any, token: int, by: float) -> Any:
    """Make a token likelier."""
    head = model.get_output_embeddings()
    bias = torch.zeros(head.out_features)
    bias[token] = by
    head.bias = nn.Parameter(bias)
    return model


# ------------------------------------------------------------------------------------------------------------------------- stopping
def test_pad_equals_eos(telemetry: Telemetry) -> None:
    """With one token for padding and end, rows that end early count up to their end, and left padding of the prompt does not count."""
    model = _biased(models.llama(pad_token_id=2), 2, 3.0)
    ids = models.prompt(4, 6)
    ids[0, :3] = 2
    mask = (ids != 2).long()
    mask[0, :3] = 0
    torch.manual_seed(3)
    want = _generate(model, ids, attention_mask=mask, max_new_tokens=12, do_sample=True)
    telemetry.instrument(model)
    torch.manual_seed(3)
    got = _generate(model, ids, attention_mask=mask, max_new_tokens=12, do_sample=True)
    assert torch.equal(want, got)
    counts = _after(got, 6)
    assert len(set(counts)) > 1, "the situation needs rows of several lengths"
    telemetry.check()
    attributes = telemetry.only()
    assert telemetry.usage() == [(int(mask.sum()), sum(counts))]
    assert attributes[semconv.SEQUENCE_OUTPUT_TOKENS] == tuple(counts)
    assert attributes[semconv.SEQUENCE_INPUT_TOKENS] == (3, 6, 6, 6)


class RowStop(StoppingCriteria):
    """Ends each row at a length of its own."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = torch.tensor(lengths)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return input_ids.shape[1] >= self.lengths


@pytest.mark.parametrize("pad", [0, 2], ids=["pad", "pad is eos"])
def test_rows_ended_by_a_criterion(telemetry: Telemetry, pad: int) -> None:
    """Rows that a criterion of the user ends at different steps count up to there, with the reason ``stop``."""
    model = models.llama(pad_token_id=pad, eos_token_id=2)
    telemetry.instrument(model)
    criteria = StoppingCriteriaList([RowStop([8, 9, 99])])
    got = _generate(model, models.prompt(3, 6), max_new_tokens=7, suppress_tokens=[0, 2], do_sample=False, stopping_criteria=criteria)
    assert got.shape[1] == 13
    telemetry.check()
    attributes = telemetry.only()
    assert attributes[semconv.SEQUENCE_OUTPUT_TOKENS] == (2, 3, 7)
    assert attributes[semconv.FINISH_REASONS] == ("stop", "stop", "length")
    assert len(criteria) == 1, "the user's list was changed"


def test_no_end_token_at_all(telemetry: Telemetry) -> None:
    """Without an end token, rows run to the length and all of it counts."""
    model = models.llama(eos_token_id=None, pad_token_id=None)
    model.generation_config.eos_token_id = None
    telemetry.instrument(model)
    _generate(model, models.prompt(2, 5), attention_mask=torch.ones(2, 5), max_new_tokens=6, **GREEDY)
    telemetry.check()
    assert telemetry.usage() == [(10, 12)]
    assert telemetry.only()[semconv.FINISH_REASONS] == ("length", "length")


def test_several_end_tokens(telemetry: Telemetry) -> None:
    """Each of several end tokens ends a row."""
    model = _biased(_biased(models.llama(eos_token_id=[2, 7]), 7, 9.0), 7, 9.0)
    telemetry.instrument(model)
    _generate(model, models.prompt(2, 5), max_new_tokens=6, **GREEDY)
    telemetry.check()
    assert telemetry.usage() == [(10, 2)]
    assert telemetry.only()[semconv.FINISH_REASONS] == ("stop", "stop")


def test_max_time(telemetry: Telemetry) -> None:
    """A time limit ends the request early; tokens are those returned."""
    model = models.llama()
    telemetry.instrument(model)
    got = _generate(model, models.prompt(2, 5), max_time=0.0, **_exactly(20))
    telemetry.check()
    assert telemetry.usage() == [(10, 2 * (got.shape[1] - 5))] and got.shape[1] < 25
    assert telemetry.only()[semconv.FINISH_REASONS] == ("length", "length")


def test_end_at_the_first_token(telemetry: Telemetry) -> None:
    """A request of one token has a time to the first one, no time per output token, and no decode phase."""
    model = _biased(models.llama(), 2, 99.0)
    telemetry.instrument(model)
    _generate(model, models.prompt(1, 5), max_new_tokens=6, **GREEDY)
    telemetry.check()
    attributes = telemetry.only()
    assert telemetry.usage() == [(5, 1)] and attributes[semconv.FINISH_REASONS] == ("stop",)
    assert semconv.TTFT in attributes and semconv.TPOT not in attributes
    assert telemetry.spans(semconv.SPAN_DECODE) == [] and len(telemetry.steps()) == 1


# --------------------------------------------------------------------------------------------------------------- beams, several results
@pytest.mark.parametrize("returned", [1, 3])
@pytest.mark.parametrize("early", [True, False])
def test_beams(telemetry: Telemetry, returned: int, early: bool) -> None:
    """Beams: input once, output of the returned rows only, without filler."""
    model = _biased(models.llama(), 2, 0.4)
    ids = models.prompt(2, 6)
    options = {"num_beams": 4, "num_return_sequences": returned, "max_new_tokens": 8, "early_stopping": early, **GREEDY}
    want = _generate(model, ids, **options)
    telemetry.instrument(model)
    got = _generate(model, ids, **options)
    assert torch.equal(got, want)
    telemetry.check()
    attributes = telemetry.only()
    assert attributes[semconv.SEQUENCE_OUTPUT_TOKENS] == tuple(_after(got, 6))
    assert telemetry.usage() == [(12, sum(_after(got, 6)))]
    assert attributes[semconv.NUM_BEAMS] == 4 and attributes[semconv.BATCH_SIZE] == 2
    assert attributes.get(semconv.REQUEST_CHOICE_COUNT) == (returned if returned > 1 else None)


def test_several_return_sequences(telemetry: Telemetry) -> None:
    """Sampling several sequences: input once, output of all, same random numbers as without us."""
    model = models.llama()
    torch.manual_seed(5)
    want = _generate(model, models.prompt(2, 6), do_sample=True, num_return_sequences=3, max_new_tokens=5, min_new_tokens=5)
    after_it = torch.rand(1)
    telemetry.instrument(model)
    torch.manual_seed(5)
    got = _generate(model, models.prompt(2, 6), do_sample=True, num_return_sequences=3, max_new_tokens=5, min_new_tokens=5)
    assert torch.equal(got, want) and torch.equal(torch.rand(1), after_it)
    telemetry.check()
    assert telemetry.usage() == [(12, 30)]


# ------------------------------------------------------------------------------------------------------------------------- speculation
@pytest.mark.parametrize("draft_seen", [False, True], ids=["draft alone", "draft instrumented"])
def test_assisted(telemetry: Telemetry, draft_seen: bool) -> None:
    """Assisted decoding: tokens from the result, the draft nested and outside of the totals, time per token and not per block."""
    model, draft = models.llama(0), models.llama(0)
    ids = models.prompt(1, 6)
    want = _generate(model, ids, assistant_model=draft, **_exactly(12))
    telemetry.instrument(model)
    if draft_seen:
        telemetry.instrument(draft)
    got = _generate(model, ids, assistant_model=draft, **_exactly(12))
    assert torch.equal(got, want)
    telemetry.check()
    assert telemetry.usage() == [(6, 12)]
    assert bool(telemetry.requests(nested=True)) is draft_seen
    assert len(telemetry.roots()) == 1
    assert telemetry.metric_sum("gen_ai.client.token.usage", gen_ai__token__type="output") == 12
    attributes = telemetry.only()
    assert attributes[semconv.DECODE_STEPS] < 11
    assert sum(attributes[semconv.TOKEN_INTERVALS]) <= attributes[semconv.TTFT] + 11 * attributes[semconv.TPOT] + 1e-6


def test_prompt_lookup(telemetry: Telemetry) -> None:
    """Prompt lookup: the result is counted, whatever the number of passes."""
    model = models.llama()
    ids = models.prompt(1, 4).repeat(1, 4)
    telemetry.instrument(model)
    got = _generate(model, ids, prompt_lookup_num_tokens=3, **_exactly(10))
    telemetry.check()
    assert telemetry.usage() == [(16, got.shape[1] - 16)]


# ------------------------------------------------------------------------------------------------------------------- other model kinds
@pytest.mark.parametrize("make", [models.t5, models.bart])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("as_dict", [False, True])
def test_encoder_decoder(telemetry: Telemetry, make: Callable[[], Any], beams: int, as_dict: bool) -> None:
    """Encoder-decoder: the prompt is the encoder's, the start token is no output, a forced first token is."""
    model = make()
    ids = models.prompt(2, 7)
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    telemetry.instrument(model)
    got = _generate(model, ids, attention_mask=mask, num_beams=beams, max_new_tokens=6, return_dict_in_generate=as_dict, **GREEDY)
    rows = got.sequences if as_dict else got
    telemetry.check()
    assert telemetry.usage() == [(12, sum(_after(rows, 1)))]
    names = {span.name for span in telemetry.modules()}
    assert {"encoder layer 0", "decoder layer 0", "encoder layer 1", "decoder layer 1"} <= names
    assert len({(span.attributes or {})[semconv.MODULE_NAME] for span in telemetry.modules()}) == len(names), "two modules share a name"


def test_decoder_prompt(telemetry: Telemetry) -> None:
    """A decoder prompt of the user's is no output either."""
    model = models.t5()
    telemetry.instrument(model)
    start = torch.tensor([[0, 5, 6]])
    got = _generate(model, models.prompt(1, 7), decoder_input_ids=start, **_exactly(4))
    telemetry.check()
    assert got.shape[1] == 7 and telemetry.usage() == [(7, 4)]


def test_encoder_outputs_given(telemetry: Telemetry) -> None:
    """With the encoder's outputs instead of ids, their attended positions are the input."""
    model = models.t5()
    with torch.no_grad():
        encoded = model.get_encoder()(models.prompt(1, 7))
    telemetry.instrument(model)
    _generate(model, encoder_outputs=encoded, **_exactly(4))
    telemetry.check()
    _generate(model, encoder_outputs=encoded, attention_mask=torch.tensor([[1, 1, 1, 1, 1, 0, 0]]), **_exactly(4))
    telemetry.check()
    assert telemetry.usage() == [(7, 4), (5, 4)]


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"num_return_sequences": 2, "do_sample": True}], ids=["beams", "sequences"])
@pytest.mark.parametrize("masked", [True, False], ids=["mask", "no mask"])
def test_encoder_outputs_that_are_widened(telemetry: Telemetry, options: dict[str, Any], masked: bool) -> None:
    """The rows that the caller passed count, with their mask, though transformers repeats those of the object in place."""
    model = models.t5()
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1] * 7])
    with torch.no_grad():
        encoded = model.get_encoder()(models.prompt(2, 7), attention_mask=mask)
    telemetry.instrument(model)
    _generate(model, encoder_outputs=encoded, **({"attention_mask": mask} if masked else {}), **{**_exactly(4), **options})
    telemetry.check()
    assert telemetry.only()[semconv.SEQUENCE_INPUT_TOKENS] == ((5, 7) if masked else (7, 7))
    assert telemetry.only()[semconv.BATCH_SIZE] == 2


@pytest.mark.parametrize("frames", [100, 250], ids=["short", "long"])
@pytest.mark.parametrize("options", [{}, {"return_timestamps": True}, {"num_beams": 2}], ids=["plain", "timestamps", "beams"])
def test_whisper(telemetry: Telemetry, frames: int, options: dict[str, Any]) -> None:
    """Speech: one root per user call, output is what came back, there are no input tokens to know."""
    model = models.whisper()
    model.generation_config.no_timestamps_token_id = 40
    features = torch.randn(1, 80, frames)
    if frames > 100 and "return_timestamps" not in options:
        options = {**options, "return_timestamps": True}
    want = _generate(model, features, max_new_tokens=5, **options)
    telemetry.instrument(model)
    got = _generate(model, features, max_new_tokens=5, **options)
    assert torch.equal(got, want)
    telemetry.check()
    assert len(telemetry.roots()) == 1 and len(telemetry.requests(nested=None)) == 1
    (counts,) = telemetry.usage()
    assert counts[0] is None and counts[1] is not None
    content = got[0].tolist()
    assert counts[1] in {
        len(content),
        len(content) - 1,
        len([token for token in content if token != 2]),
        _after(got, 0)[0],
        _after(got, 1)[0],
    }


def test_vision_language(telemetry: Telemetry) -> None:
    """Images: input includes the image positions that the language model was fed, one request, one usage sample."""
    model = models.llava()
    ids = torch.cat([torch.full((2, 4), 63), models.prompt(2, 5)], dim=1)
    pixels = torch.randn(2, 3, 8, 8)
    telemetry.instrument(model)
    _generate(model, input_ids=ids, pixel_values=pixels, **_exactly(4))
    telemetry.check()
    assert telemetry.usage() == [(18, 8)]
    assert telemetry.only()[semconv.OPERATION_NAME] == "generate_content"
    assert telemetry.only()["gen_ai.usage.image.input_tokens"] == 8
    assert telemetry.only()["gen_ai.usage.text.input_tokens"] == 10
    assert telemetry.metric_sum("gen_ai.client.token.usage", gen_ai__token__type="input") == 18
    assert [span for span in telemetry.modules() if "vision" in span.name], "the vision tower is not seen"


# -------------------------------------------------------------------------------------------------------------- ways to give the prompt
def test_inputs_embeds(telemetry: Telemetry) -> None:
    """Embeddings as the prompt: their positions are the input; with ids beside them the prompt is not counted as output."""
    model = models.llama()
    ids = models.prompt(2, 6)
    with torch.no_grad():
        embeds = model.get_input_embeddings()(ids)
    telemetry.instrument(model)
    only = _generate(model, inputs_embeds=embeds, **_exactly(4))
    both = _generate(model, input_ids=ids, inputs_embeds=embeds, **_exactly(4))
    assert only.shape[1] == 4 and both.shape[1] == 10
    telemetry.check()
    assert telemetry.usage() == [(12, 8), (12, 8)]
    lengths = [(span.attributes or {})[semconv.SEQUENCE_LENGTH] for span in telemetry.steps()]
    assert lengths == [6, 6, 7, 7, 8, 8, 9, 9]


def test_no_prompt(telemetry: Telemetry) -> None:
    """Generation from nothing begins with the start token, which is input."""
    model = models.llama()
    telemetry.instrument(model)
    got = _generate(model, **_exactly(4))
    assert got.shape[1] == 5
    telemetry.check()
    assert telemetry.usage() == [(1, 4)]


def test_positional_configuration(telemetry: Telemetry) -> None:
    """Inputs and configuration by position are understood."""
    model = models.llama()
    telemetry.instrument(model)
    _generate(
        model, models.prompt(1, 6), GenerationConfig(max_new_tokens=3, min_new_tokens=3, do_sample=False, eos_token_id=2, pad_token_id=0)
    )
    telemetry.check()
    assert telemetry.usage() == [(6, 3)] and telemetry.only()[semconv.REQUEST_MAX_TOKENS] == 3


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_cache_continuation(telemetry: Telemetry, kind: str) -> None:
    """A second turn with the cache of the first counts the whole prompt, and the cache is the user's own object."""
    model = models.llama()
    cache: Any = DynamicCache(config=model.config) if kind == "dynamic" else StaticCache(config=model.config, max_cache_len=64)
    telemetry.instrument(model)
    first = _generate(model, models.prompt(1, 6), **{CACHE: cache}, **_exactly(4))
    second = torch.cat([first, models.prompt(1, 3, seed=2)], dim=1)
    _generate(model, second, **{CACHE: cache}, **_exactly(4))
    telemetry.check()
    assert telemetry.usage() == [(6, 4), (13, 4)]
    reused = [(span.attributes or {}).get(semconv.KV_CACHE_REUSED_TOKENS) for span in telemetry.requests()]
    assert reused == [None, 9 if kind == "dynamic" else None]
    widths = [(span.attributes or {})[semconv.STEP_TOKENS] for span in telemetry.steps() if span.name == semconv.SPAN_PREFILL_STEP]
    assert widths == [6, 4]


def test_only_new_tokens_with_a_long_mask(telemetry: Telemetry) -> None:
    """New tokens only, with a mask over the whole conversation: input is what is attended, output what is new."""
    model = models.llama()
    cache = DynamicCache(config=model.config)
    telemetry.instrument(model)
    _generate(model, models.prompt(1, 6), **{CACHE: cache}, **_exactly(4))
    new = models.prompt(1, 3, seed=2)
    try:
        got = _generate(model, new, attention_mask=torch.ones(1, 12, dtype=torch.long), **{CACHE: cache}, **_exactly(4))
    except IndexError:
        pytest.skip("transformers 4 needs the ids of the whole conversation")
    telemetry.check()
    assert telemetry.usage() == [(6, 4), (12, got.shape[1] - 3)]


@pytest.mark.parametrize("chunk", [1, 2, 4, 100])
def test_chunked_prefill(telemetry: Telemetry, chunk: int) -> None:
    """A prompt in chunks is several prefill passes and one first token."""
    model = models.llama()
    all_passes = []
    # The root of its layers: transformers 4 calls the model's forward itself.
    count = model.model.register_forward_pre_hook(lambda *_: all_passes.append(1))
    want = _generate(model, models.prompt(1, 7), prefill_chunk_size=chunk, **_exactly(4))
    count.remove()
    telemetry.instrument(model)
    got = _generate(model, models.prompt(1, 7), prefill_chunk_size=chunk, **_exactly(4))
    assert torch.equal(got, want)
    telemetry.check()
    passes = len(all_passes) - 3  # transformers 4 gives the last token of the prompt a pass of its own
    assert telemetry.usage() == [(7, 4)]
    assert [span.name for span in telemetry.steps()] == [semconv.SPAN_PREFILL_STEP] * passes + [semconv.SPAN_DECODE_STEP] * 3
    assert [(span.attributes or {})[semconv.STEP_INDEX] for span in telemetry.steps()] == list(range(passes + 3))
    tokens: list[Any] = [(span.attributes or {})[semconv.STEP_TOKENS] for span in telemetry.steps()]
    assert sum(tokens[:passes]) == 7
    lengths: list[Any] = [(span.attributes or {})[semconv.SEQUENCE_LENGTH] for span in telemetry.steps()]
    assert lengths == [*itertools.accumulate(tokens[:passes]), 8, 9, 10]
    assert telemetry.only()[semconv.DECODE_STEPS] == 3


def test_sliding_window_continuation(telemetry: Telemetry) -> None:
    """A cache that keeps only a window still says how many positions the second turn reuses."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=models.VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = MistralForCausalLM(config).eval()
    cache = DynamicCache(config=config)
    telemetry.instrument(model)
    first = _generate(model, models.prompt(1, 8), **{CACHE: cache}, **_exactly(4))
    _generate(model, torch.cat([first, models.prompt(1, 2)], dim=1), **{CACHE: cache}, **_exactly(3))
    telemetry.check()
    assert telemetry.usage() == [(8, 4), (14, 3)]
    assert [(span.attributes or {}).get(semconv.KV_CACHE_REUSED_TOKENS) for span in telemetry.requests()] == [None, 11]
