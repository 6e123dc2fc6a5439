"""``generate()`` in the ways that transformers offers."""

# ruff: noqa: D103 - the name of a scenario says what it is; a docstring is there where it does not
from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, LlamaForCausalLM, StaticCache, StoppingCriteria, StoppingCriteriaList

from benchmarks.scenarios import models
from benchmarks.scenarios.models import prompt
from benchmarks.scenarios.registry import Table
from benchmarks.scenarios.run import Run, exactly, greedy

scenario = Table("generation")
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
"""The argument's name, which depends on the version of transformers."""


def _with(cache: Any) -> dict[str, Any]:
    return {CACHE: cache}


# ------------------------------------------------------------------------------------------------------------ kinds of models
@scenario
def llama(run: Run) -> None:
    run.generate(run.watch(models.llama()), prompt(), **exactly(5))


@scenario
def llama_batch(run: Run) -> None:
    run.generate(run.watch(models.llama()), prompt(3), **exactly(5))


@scenario
def llama_many_rows(run: Run) -> None:
    """More rows than those whose statistics are kept one by one."""
    run.generate(run.watch(models.llama()), prompt(20), **exactly(3))


@scenario
def llama_twice(run: Run) -> None:
    """The second request is no warm-up."""
    model = run.watch(models.llama())
    run.generate(model, prompt(), **exactly(3))
    run.generate(model, prompt(2, 4), **exactly(2))


@scenario
def llama_bfloat16(run: Run) -> None:
    run.generate(run.watch(models.llama().to(torch.bfloat16)), prompt(), **exactly(4))


@scenario
def llama_float16(run: Run) -> None:
    run.generate(run.watch(models.llama().to(torch.float16)), prompt(2), **exactly(3))


@scenario
def gpt2(run: Run) -> None:
    run.generate(run.watch(models.gpt2()), prompt(2), **exactly(4))


@scenario
def mamba(run: Run) -> None:
    run.generate(run.watch(models.mamba()), prompt(), **exactly(4))


@scenario
def mixtral(run: Run) -> None:
    run.generate(run.watch(models.mixtral()), prompt(2), **exactly(3))


@scenario
def t5(run: Run) -> None:
    ids = prompt(2, 7)
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    run.generate(run.watch(models.t5()), ids, attention_mask=mask, **greedy(6))


@scenario
def t5_beams_as_dict(run: Run) -> None:
    run.generate(run.watch(models.t5()), prompt(2, 7), num_beams=3, return_dict_in_generate=True, **greedy(5))


@scenario
def t5_decoder_prompt(run: Run) -> None:
    run.generate(run.watch(models.t5()), prompt(1, 7), decoder_input_ids=torch.tensor([[0, 5, 6]]), **exactly(4))


@scenario
def t5_encoder_outputs(run: Run) -> None:
    model = models.t5()
    with torch.no_grad():
        encoded = model.get_encoder()(prompt(1, 7))
    run.generate(run.watch(model), encoder_outputs=encoded, **exactly(4))


@scenario
def bart(run: Run) -> None:
    run.generate(run.watch(models.bart()), prompt(2, 7), **greedy(5))


@scenario
def whisper_short(run: Run) -> None:
    run.generate(run.watch(models.whisper()), torch.randn(1, 80, 100), max_new_tokens=5)


@scenario
def whisper_long(run: Run) -> None:
    run.generate(run.watch(models.whisper()), torch.randn(1, 80, 250), max_new_tokens=5, return_timestamps=True)


@scenario
def llava(run: Run) -> None:
    ids = torch.cat([torch.full((2, 4), 63), prompt(2, 5)], dim=1)
    run.generate(run.watch(models.llava()), input_ids=ids, pixel_values=torch.randn(2, 3, 8, 8), **exactly(3))


# ------------------------------------------------------------------------------------------------------------------- stopping
@scenario
def left_padding(run: Run) -> None:
    ids = prompt(3)
    ids[0, :3] = 0
    run.generate(run.watch(models.llama()), ids, attention_mask=(ids != 0).long(), **exactly(4))


@scenario
def early_end(run: Run) -> None:
    """Rows end at different steps; the token of the end also pads."""
    model = models.biased(models.llama(pad_token_id=2), 2, 3.0)
    run.watch(model)
    torch.manual_seed(3)
    run.generate(model, prompt(4), attention_mask=torch.ones(4, 6), max_new_tokens=8, do_sample=True)


@scenario
def end_at_the_first_token(run: Run) -> None:
    run.generate(run.watch(models.biased(models.llama(), 2, 99.0)), prompt(), **greedy(5))


@scenario
def several_end_tokens(run: Run) -> None:
    run.generate(run.watch(models.biased(models.llama(eos_token_id=[2, 7]), 7, 9.0)), prompt(2), **greedy(5))


@scenario
def no_end_token(run: Run) -> None:
    model = models.llama(eos_token_id=None, pad_token_id=None)
    model.generation_config.eos_token_id = None
    run.generate(run.watch(model), prompt(2), attention_mask=torch.ones(2, 6), **greedy(4))


@scenario
def max_time(run: Run) -> None:
    run.generate(run.watch(models.llama()), prompt(2), max_time=0.0, **exactly(9))


@scenario
def max_length(run: Run) -> None:
    run.generate(run.watch(models.llama()), prompt(1, 5), do_sample=False, max_length=9, min_length=9)


@scenario
def min_new_tokens(run: Run) -> None:
    run.generate(run.watch(models.biased(models.llama(), 2, 99.0)), prompt(), min_new_tokens=3, **greedy(6))


class RowStop(StoppingCriteria):
    """Ends each row at a length of its own."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = torch.tensor(lengths)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        return input_ids.shape[1] >= self.lengths


@scenario
def custom_stopping_criterion(run: Run) -> None:
    criteria = StoppingCriteriaList([RowStop(8, 9, 99)])
    run.generate(run.watch(models.llama()), prompt(3), suppress_tokens=[0, 2], stopping_criteria=criteria, **greedy(6))


# ------------------------------------------------------------------------------------------------------------------- decoding
@scenario
def beams(run: Run) -> None:
    run.generate(run.watch(models.biased(models.llama(), 2, 0.4)), prompt(2), num_beams=4, **greedy(6))


@scenario
def beams_that_stop_early(run: Run) -> None:
    options: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 3, "early_stopping": True}
    run.generate(run.watch(models.biased(models.llama(), 2, 0.4)), prompt(2), **options, **greedy(6))


@scenario
def several_results(run: Run) -> None:
    model = run.watch(models.llama())
    torch.manual_seed(5)
    run.generate(model, prompt(2), num_return_sequences=3, **exactly(4, do_sample=True))


@scenario
def sampling(run: Run) -> None:
    model = run.watch(models.llama())
    torch.manual_seed(7)
    run.generate(model, prompt(2), temperature=0.7, top_k=10, top_p=0.9, repetition_penalty=1.2, **exactly(5, do_sample=True))


@scenario
def assisted(run: Run) -> None:
    model, draft = models.llama(), models.llama()
    run.generate(run.watch(model), prompt(), assistant_model=draft, **exactly(9))


@scenario
def assisted_by_an_instrumented_draft(run: Run) -> None:
    model, draft = run.watch(models.llama()), run.watch(models.llama(num_hidden_layers=1))
    run.generate(model, prompt(), assistant_model=draft, **exactly(6))


@scenario
def prompt_lookup(run: Run) -> None:
    run.generate(run.watch(models.llama()), prompt(1, 4).repeat(1, 4), prompt_lookup_num_tokens=3, **exactly(8))


@scenario
def custom_loop(run: Run) -> None:
    """A decoding loop that looks twice at every step, as contrastive search does."""

    def loop(model: Any, input_ids: Tensor, generation_config: Any = None, **kwargs: Any) -> Tensor:
        for _ in range(3):
            candidates = model(input_ids).logits[:, -1].topk(2).indices
            ahead = [model(torch.cat([input_ids, candidates[:, i : i + 1]], 1)).logits[:, -1].max() for i in range(2)]
            best = int(ahead[1] > ahead[0])
            input_ids = torch.cat([input_ids, candidates[:, best : best + 1]], dim=1)
        return input_ids

    run.generate(run.watch(models.llama()), prompt(), custom_generate=loop, max_new_tokens=3)


# ---------------------------------------------------------------------------------------------------------- prompts and caches
@scenario
def static_cache(run: Run) -> None:
    """A cache of the user's; the implementation by name is compiled, on devices other than the CPU."""
    model = run.watch(models.llama())
    run.generate(model, prompt(), **_with(StaticCache(config=model.config, max_cache_len=32)), **exactly(4))


@scenario
def static_cache_by_name(run: Run) -> None:
    run.generate(run.watch(models.llama()), prompt(), cache_implementation="static", disable_compile=True, **exactly(4))


@scenario
def no_cache(run: Run) -> None:
    run.generate(run.watch(models.llama()), prompt(2), use_cache=False, **exactly(3))


@scenario
def chunked_prefill(run: Run) -> None:
    run.generate(run.watch(models.llama()), prompt(1, 7), prefill_chunk_size=2, **exactly(3))


@scenario
def prompt_of_embeddings(run: Run) -> None:
    model = models.llama()
    with torch.no_grad():
        embeds = model.get_input_embeddings()(prompt(2))
    run.watch(model)
    run.generate(model, inputs_embeds=embeds, **exactly(3))
    run.generate(model, input_ids=prompt(2), inputs_embeds=embeds, **exactly(3))


@scenario
def no_prompt(run: Run) -> None:
    run.generate(run.watch(models.llama()), **exactly(3))


@scenario
def cache_continuation(run: Run) -> None:
    model = run.watch(models.llama())
    cache = DynamicCache(config=model.config)
    first = run.generate(model, prompt(), **_with(cache), **exactly(4))
    run.generate(model, torch.cat([first, prompt(1, 3, seed=2)], dim=1), **_with(cache), **exactly(3))


@scenario
def only_new_tokens_with_a_long_mask(run: Run) -> None:
    model = run.watch(models.llama())
    cache = DynamicCache(config=model.config)
    run.generate(model, prompt(), **_with(cache), **exactly(4))
    run.generate(model, prompt(1, 3, seed=2), attention_mask=torch.ones(1, 12, dtype=torch.long), **_with(cache), **exactly(3))


@scenario
def sliding_window_continuation(run: Run) -> None:
    model = run.watch(models.mistral())
    cache = DynamicCache(config=model.config)
    first = run.generate(model, prompt(1, 8), **_with(cache), **exactly(3))
    run.generate(model, torch.cat([first, prompt(1, 2)], dim=1), **_with(cache), **exactly(3))


@scenario
def configuration_by_position(run: Run) -> None:
    config = GenerationConfig(max_new_tokens=3, min_new_tokens=3, do_sample=False, eos_token_id=2, pad_token_id=0)
    run.generate(run.watch(models.llama()), prompt(), config)


@scenario
def scores_in_the_result(run: Run) -> None:
    options: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True, "output_attentions": True}
    run.generate(run.watch(models.llama(attn_implementation="eager")), prompt(), **options, **exactly(3))


@scenario
def one_token(run: Run) -> None:
    run.generate(run.watch(models.llama()), prompt(), **exactly(1))


@scenario
def long_request(run: Run) -> None:
    run.generate(run.watch(models.llama()), prompt(), **exactly(40))
