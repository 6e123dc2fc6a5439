"""Attention functions that programs register with transformers, with the arguments of flash attention; tokens; and compiled models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases import models
from tests.cases.generate.test_texts import tokenizer  # noqa: F401  # a fixture
from tests.cases.telemetry import Telemetry

from .truth import OLD_TORCH, by_layer, check_call, eager

OPTIONS: dict[str, Any] = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5}


def _like_flash(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, scaling: float | None = None,
    sliding_window: int | None = None, softcap: float | None = None, **_: Any,
) -> tuple[Tensor, None]:
    """Attention with the mask of flash attention, one number for each key, or none; gives no weights."""
    groups = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(groups, 1) for one in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(query.shape[2])[:, None] + key.shape[2] - query.shape[2]
    hidden = torch.arange(key.shape[2]) > at if getattr(module, "is_causal", True) else torch.zeros(1, 1, dtype=torch.bool)
    if sliding_window:
        hidden = hidden | (torch.arange(key.shape[2]) <= at - sliding_window)
    hidden = hidden[None, None]
    if attention_mask is not None:
        hidden = hidden | ~attention_mask[:, None, None, -key.shape[2] :].bool()
    weights = torch.softmax(scores.masked_fill(hidden, -1e30), -1)
    return (weights @ value).transpose(1, 2).contiguous(), None


@pytest.fixture
def flash() -> Any:
    """The name of such a function."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    name = "by_hand"
    AttentionInterface.register(name, _like_flash)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"])
    yield name
    AttentionInterface._global_mapping.pop(name)
    AttentionMaskInterface._global_mapping.pop(name)


def _gemma2() -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    kind: Any = Gemma2Config
    config = kind(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        sliding_window=4, query_pre_attn_scalar=8, attn_logit_softcapping=2.0, initializer_range=0.6, pad_token_id=0, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return Gemma2ForCausalLM(config).eval()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("make", [lambda: models.llama(initializer_range=0.4), _gemma2], ids=["llama", "gemma2"])
def test_the_arguments_of_flash_attention(telemetry: Telemetry, flash: str, make: Any, padded: bool) -> None:
    """A mask of the keys, a window, a soft cap and grouped queries."""
    model = make()
    ids = torch.randint(3, 64, (2, 9))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, :3] = 0
    truth = eager(model, torch.float32)
    model.set_attn_implementation(flash)
    handle = telemetry.instrument(model, attention=True)
    with torch.no_grad():
        model(ids, attention_mask=mask)
        want = truth(ids, attention_mask=mask, output_attentions=True).attentions
    for layer, weights in enumerate(want):
        (call,) = handle.attention(f"model.layers.{layer}.self_attn").calls
        assert call.source == "recomputed"
        check_call(call, weights.double(), mask.bool())
    telemetry.check()


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.skipif(OLD_TORCH, reason="flex attention of transformers needs torch 2.5")
def test_flex_attention(telemetry: Telemetry) -> None:
    """Its mask is a function of indices; the kernels are not compiled here."""
    torch._dynamo.reset()
    model = models.llama(initializer_range=0.4)
    truth = eager(model, torch.float32)
    model.set_attn_implementation("flex_attention")
    ids = torch.randint(3, 64, (2, 20))
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    handle = telemetry.instrument(model, attention=True)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        model(ids, attention_mask=mask)
        want = truth(ids, attention_mask=mask, output_attentions=True).attentions
    assert len(want) == 2
    for layer, weights in enumerate(want):
        (call,) = handle.attention(f"model.layers.{layer}.self_attn").calls
        assert call.source == "recomputed"
        check_call(call, weights.double(), mask.bool())
    telemetry.check()


def test_tokens_of_the_keys(telemetry: Telemetry, tokenizer: Any) -> None:  # noqa: F811
    """With content capture each key has its text; those that were generated as well."""
    model = models.llama(initializer_range=0.4)
    handle = telemetry.instrument(model, tokenizer, attention=True, capture_content="SPAN_ONLY")
    tokens = model.generate(models.prompt(), **OPTIONS)[0].tolist()
    found = by_layer(handle.attention().calls)
    named = [key for call in found.values() for key in call.received_per_key[0]]
    assert {key.token for key in named if key.position >= 6}
    for key in named:
        assert key.token == tokenizer.decode([tokens[key.position]])
    assert repr(named[-1].token) in str(handle.attention())


def test_no_tokens_without_content_capture(telemetry: Telemetry, tokenizer: Any) -> None:  # noqa: F811
    """Positions only."""
    model = models.llama()
    handle = telemetry.instrument(model, tokenizer, attention=True)
    model.generate(models.prompt(), **OPTIONS)
    assert all(key.token is None for call in handle.attention().calls for key in call.received_per_key[0])


def test_a_compiled_model(telemetry: Telemetry) -> None:
    """Layers in compiled code give no weights, and are said to be compiled."""
    torch._dynamo.reset()
    model = models.llama()
    model.compile(backend="eager")
    handle = telemetry.instrument(model, attention=True)
    model(models.prompt())
    assert handle.attention().missing == dict.fromkeys(("model.layers.0.self_attn", "model.layers.1.self_attn"), "compiled")
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    model(models.prompt())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    torch._dynamo.reset()


def test_after_a_compilation_nothing_is_wrapped(telemetry: Telemetry) -> None:
    """Code that was compiled guards on the functions, so they stay as they are."""
    torch._dynamo.reset()

    def attend(one: Tensor, two: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(one, two, two)

    compiled: Any = torch.compile(attend, backend="eager")
    compiled(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    model = models.llama(attn_implementation="sdpa")
    handle = telemetry.instrument(model, attention=True)
    model(models.prompt())
    assert set(handle.attention().missing.values()) == {"fused kernel, and something was compiled"}
    compiled(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    torch._dynamo.reset()
