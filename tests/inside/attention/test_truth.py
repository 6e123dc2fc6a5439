"""Figures of attention against float64 of eager attention: on fused attention, in every kind of model, with padding and with caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cases import models
from tests.cases.telemetry import Telemetry

from .truth import OLD_TORCH, OLD_TRANSFORMERS, by_layer, check_call, eager

SETTINGS: dict[str, Any] = {"attention": True}


def _llama(**changes: Any) -> Any:
    return models.llama(initializer_range=0.4, attn_implementation="sdpa", **changes)


def _check_generation(telemetry: Telemetry, model: Any, prefix: str, names: dict[str, str], **options: Any) -> None:
    """Generate, and hold each sampled step of each layer against what eager attention gives.

    Args:
        telemetry: listens.
        model: with fused attention.
        prefix: of the layers' paths, with ``{}`` for the number of the layer.
        names: rest of a path by the name of the attentions in the output of ``generate()``.
        options: of ``generate()``.
    """
    double = eager(model, torch.float32 if "attention_mask" in options else torch.float64)
    handle = telemetry.instrument(model, **SETTINGS)
    options = {"do_sample": False, "max_new_tokens": 6, "min_new_tokens": 6, **options}
    mask = options.get("attention_mask")
    tokens = model.generate(**options)
    want = double.generate(**options, output_attentions=True, return_dict_in_generate=True)
    assert torch.equal(tokens, want.sequences)
    found = by_layer(handle.attention().calls)
    checked = 0
    for name, rest in names.items():
        steps = want[name]
        for step in (0, 1, 2, 4):
            for layer, weights in enumerate(steps[step]):
                call = found[prefix.format(layer) + rest, step]
                seen = None
                if mask is not None and name != "cross_attentions" and step == 0:
                    seen = mask.bool()
                assert call.source == "recomputed"
                check_call(call, weights.double(), seen)
                checked += 1
    assert checked == 4 * sum(len(want[name][0]) for name in names)
    assert len(found) == checked + sum(step is None for _, step in found)
    assert handle.attention().missing == {}
    assert handle.attention().left_out == {}
    telemetry.check()


def test_llama_with_grouped_queries(telemetry: Telemetry) -> None:
    """Two query heads share a key head."""
    _check_generation(telemetry, _llama(), "model.layers.{}", {"attentions": ".self_attn"}, inputs=models.prompt())


@pytest.mark.skipif(OLD_TORCH, reason="transformers lets padding attend to everything with torch before 2.5, so it counts as queries")
def test_llama_with_padding_on_the_left(telemetry: Telemetry) -> None:
    """Padding is no query, and the first position is the first token behind it."""
    ids = torch.randint(3, models.VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    mask[2, :5] = 0
    ids[mask == 0] = 0
    _check_generation(telemetry, _llama(), "model.layers.{}", {"attentions": ".self_attn"}, inputs=ids, attention_mask=mask)


def test_llama_with_a_static_cache(telemetry: Telemetry) -> None:
    """Keys that are not written yet get no weight."""
    model = _llama()
    handle = telemetry.instrument(model, **SETTINGS)
    ids = models.prompt()
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5, "cache_implementation": "static"}
    model.generate(ids, disable_compile=True, **options)
    double = eager(model)
    want = double.generate(ids, output_attentions=True, return_dict_in_generate=True, do_sample=False, max_new_tokens=5, min_new_tokens=5)
    found = by_layer(handle.attention().calls)
    for step in (0, 1, 2, 4):
        for layer, weights in enumerate(want.attentions[step]):
            call = found[f"model.layers.{layer}.self_attn", step]
            assert call.shape[-1] >= weights.shape[-1]
            padded = torch.zeros(*weights.shape[:-1], call.shape[-1], dtype=torch.float64)
            padded[..., : weights.shape[-1]] = weights
            check_call(call, padded)


@pytest.mark.skipif(OLD_TORCH, reason="transformers cannot make the mask of a sliding window with torch before 2.5")
def test_a_sliding_window(telemetry: Telemetry) -> None:
    """Keys outside of the window get no weight."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    kind: Any = MistralConfig
    config = kind(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        sliding_window=4, initializer_range=0.4, pad_token_id=0, bos_token_id=1, eos_token_id=2, attn_implementation="sdpa",
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    ids = torch.randint(3, 64, (2, 9))
    double = eager(model)
    handle = telemetry.instrument(model, **SETTINGS)
    with torch.no_grad():
        model(ids)
        want = double(ids, output_attentions=True).attentions
    for layer, weights in enumerate(want):
        assert int((weights[0, 0, -1] > 0).sum()) == 4
        check_call(handle.attention(f"model.layers.{layer}.self_attn").calls[0], weights)
    handle.uninstrument()
    again = telemetry.instrument(model, attention=True)
    model.generate(ids, do_sample=False, max_new_tokens=4, min_new_tokens=4)
    last = again.attention().calls[-1]
    assert last.step == 2
    position = 9 + 2 - 1  # of the token that goes in
    assert {key.position for key in last.received_per_key[0]} == {position - 3, position - 2, position - 1, position}


def test_gpt2(telemetry: Telemetry) -> None:
    """Queries, keys and values of one product."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    kind: Any = GPT2Config
    config = kind(
        vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.4, bos_token_id=1, eos_token_id=2,
        pad_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    _check_generation(telemetry, GPT2LMHeadModel(config).eval(), "transformer.h.{}", {"attentions": ".attn"}, inputs=models.prompt())


@pytest.mark.skipif(OLD_TRANSFORMERS, reason="T5 computes attention by hand before transformers 5")
def test_t5_with_cross_attention(telemetry: Telemetry) -> None:
    """A position bias, no scale, and keys of the encoder."""
    model = models.t5()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ttention" in name:
                parameter.mul_(3)
    names = {"decoder_attentions": ".0.SelfAttention", "cross_attentions": ".1.EncDecAttention"}
    handle_of = "decoder.block.{}.layer"
    ids = torch.randint(3, 64, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    model.set_attn_implementation("sdpa")
    double = eager(model)
    handle = telemetry.instrument(model, **SETTINGS)
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5, "attention_mask": mask}
    model.generate(ids, **options)
    want = double.generate(ids, output_attentions=True, return_dict_in_generate=True, **options)
    found = by_layer(handle.attention().calls)
    for name, rest in names.items():
        for step in (0, 1, 2, 4):
            for layer, weights in enumerate(want[name][step]):
                call = found[handle_of.format(layer) + rest, step]
                check_call(call, weights)
                assert call.cross == (name == "cross_attentions")
    for layer, weights in enumerate(want.encoder_attentions):
        check_call(found[f"encoder.block.{layer}.layer.0.SelfAttention", None], weights)
    assert handle.attention().missing == {}
    telemetry.check()


def test_whisper(telemetry: Telemetry) -> None:
    """An encoder of audio, and cross attention to it."""
    model = models.whisper()
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(20)
    double = eager(model)
    handle = telemetry.instrument(model, **SETTINGS)
    features = torch.randn(2, 80, 100)
    ids = torch.tensor([[3, 5, 6], [3, 7, 8]])
    with torch.no_grad():
        model(input_features=features, decoder_input_ids=ids)
        want = double(input_features=features.double(), decoder_input_ids=ids, output_attentions=True)
    found = {call.module: call for call in handle.attention().calls}
    check_call(found["model.encoder.layers.0.self_attn"], want.encoder_attentions[0], close=1e-4)
    check_call(found["model.decoder.layers.0.self_attn"], want.decoder_attentions[0], close=1e-4)
    check_call(found["model.decoder.layers.0.encoder_attn"], want.cross_attentions[0], close=1e-4)
    assert [call.cross for call in found.values()] == [False, False, True]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_bert_with_padding_on_the_right(telemetry: Telemetry, implementation: str) -> None:
    """An encoder: padded queries see the tokens, so they count; weights of eager attention are those that the layer returns."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    kind: Any = BertConfig
    config = kind(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, initializer_range=0.4,
        attn_implementation=implementation,
    )  # fmt: skip
    model = BertModel(config).eval()
    ids = torch.randint(3, 64, (2, 6))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    double = eager(model)
    handle = telemetry.instrument(model, **SETTINGS)
    with torch.no_grad():
        model(ids, attention_mask=mask)
        want = double(ids, attention_mask=mask, output_attentions=True).attentions
    for layer, weights in enumerate(want):
        (call,) = handle.attention(f"encoder.layer.{layer}.*").calls
        assert call.source == ("recomputed" if implementation == "sdpa" else "returned")
        check_call(call, weights)
    assert handle.attention().missing == {}


def test_weights_that_a_module_returns(telemetry: Telemetry) -> None:
    """Eager attention of a padded batch: queries of padding are told by the mask."""
    model = _llama()
    model.set_attn_implementation("eager")
    ids = torch.randint(3, models.VOCABULARY, (2, 6))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    double = eager(model, torch.float32)
    handle = telemetry.instrument(model, **SETTINGS)
    with torch.no_grad():
        model(ids, attention_mask=mask)
        want = double(ids, attention_mask=mask, output_attentions=True).attentions
    for layer, weights in enumerate(want):
        call = handle.attention(f"model.layers.{layer}.self_attn").calls[0]
        assert call.source == "returned"
        check_call(call, weights.double(), mask.bool())


def test_figures_do_not_depend_on_the_pieces(telemetry: Telemetry) -> None:
    """A small memory bound computes them a few queries at a time."""
    model = _llama()
    ids = torch.randint(3, models.VOCABULARY, (3, 40))
    double = eager(model)
    handle = telemetry.instrument(model, attention=True, attention_memory=0.03)
    with torch.no_grad():
        model(ids)
        want = double(ids, output_attentions=True).attentions
    call = handle.attention("model.layers.0.self_attn").calls[0]
    check_call(call, want[0])
    assert call.peak_per_query == pytest.approx(want[0].sum(1).amax(-1).flatten().tolist(), rel=1e-4)
    assert call.peak_share == pytest.approx([one / 4 for one in call.peak_per_query])


def test_a_long_prompt(telemetry: Telemetry) -> None:
    """So many queries that the figures are made on the device; the peaks are not kept one by one."""
    model = _llama(max_position_embeddings=1024)
    ids = torch.randint(3, models.VOCABULARY, (2, 520))
    double = eager(model)
    handle = telemetry.instrument(model, attention=["*.0.self_attn"])
    with torch.no_grad():
        model(ids)
        want = double(ids, output_attentions=True).attentions
    (call,) = handle.attention().calls
    check_call(call, want[0])
    assert call.peak_per_query == ()


def test_some_heads(telemetry: Telemetry) -> None:
    """Only these are computed, and keep their numbers; a head that is not there is left out."""
    model = _llama()
    ids = models.prompt()
    double = eager(model)
    handle = telemetry.instrument(model, attention=True, attention_heads=[3, 0, 9])
    with torch.no_grad():
        model(ids)
        want = double(ids, output_attentions=True).attentions
    call = handle.attention("model.layers.1.self_attn").calls[0]
    assert [head.head for head in call.heads] == [3, 0]
    check_call(call, want[1][:, [3, 0]])


def test_all_calls_of_a_layer_together(telemetry: Telemetry) -> None:
    """Means and deviations are those of all queries, whatever the step."""
    model = _llama()
    ids = models.prompt()
    double = eager(model)
    handle = telemetry.instrument(model, attention=True, attention_steps="all")
    model.generate(ids, do_sample=False, max_new_tokens=5, min_new_tokens=5)
    want = double.generate(ids, do_sample=False, max_new_tokens=5, min_new_tokens=5, output_attentions=True, return_dict_in_generate=True)
    layer = handle.attention("model.layers.1.self_attn").layers[0]
    entropies = torch.cat([-torch.xlogy(step[1], step[1]).sum(-1).flatten() for step in want.attentions])
    assert layer.calls == 5
    assert layer.entropy_mean == pytest.approx(float(entropies.mean()), rel=1e-4)
    assert layer.entropy_std == pytest.approx(float(entropies.std(correction=0)), rel=1e-4)
    sinks = torch.cat([step[1][..., 0].flatten() for step in want.attentions])
    assert layer.sink_share == pytest.approx(float(sinks.mean()), rel=1e-4)


@pytest.mark.parametrize("name", ["Mpt", "Falcon"])
def test_masks_of_other_kinds(telemetry: Telemetry, name: str) -> None:
    """A mask in which true is a hidden key, and one with a plane for each head, tell which queries are padding."""
    import transformers

    sizes = {"Mpt": {"d_model": 32, "n_layers": 1, "n_heads": 4}, "Falcon": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}}
    options = {"Mpt": {}, "Falcon": {"alibi": True, "attn_implementation": "eager"}}[name]
    config = getattr(transformers, f"{name}Config")(vocab_size=64, **sizes[name], **options)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    handle = telemetry.instrument(model, attention=True, attention_steps="all", attention_maps=True)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    with torch.no_grad():
        model(torch.arange(3, 21).view(2, 9), attention_mask=mask)
        model(torch.arange(3, 12).view(1, 9))
    padded, whole = handle.attention().calls
    assert (padded.rows, whole.rows) == (4 * 15, 4 * 9)
    assert whole.weights is not None and torch.allclose(whole.weights.sum(-1), torch.ones(()), atol=1e-5)
    telemetry.check()
