"""The size of the cache at the end of a request, against the sum of the cache's tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from inferspan import semconv
from tests.cases import models
from tests.cases.experts import experts
from tests.cases.telemetry import Telemetry
from tests.matrix.kinds import GENERATING, SIZES, TOKENS, _made

BASE: dict[str, Any] = {**SIZES, **TOKENS}
SMALL: dict[str, Any] = {"vocab_size": models.VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, **TOKENS}
HEADS: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
OWN_CACHES = (
    "BailingHybrid", "DeepseekV32", "DeepseekV4", "HYV4", "Inkling", "KimiLinear", "LaraMini", "Lfm2Moe", "MiniMax", "MiniMaxM3VL",
    "NemotronH", "Qwen3_5Moe", "Zaya",
)  # fmt: skip
"""With states, indices or compressed keys beside keys and values, some in classes of the model's own file."""


def _kind(name: str, base: dict[str, Any] = BASE, **options: Any) -> Callable[[], Any]:
    return lambda: _made(f"{name}ForCausalLM", f"{name}Config", **{**base, **options})


KINDS: dict[str, Callable[[], Any]] = {
    "Llama": GENERATING["Llama"].make,
    "Mistral (sliding window)": GENERATING["Mistral (sliding window)"].make,
    "Mamba": _kind("Mamba", SMALL, state_size=8),
    "Mamba2": _kind("Mamba2", SMALL, num_heads=8, head_dim=8, state_size=8, n_groups=1, expand=2, chunk_size=8),
    "FalconMamba": _kind("FalconMamba", SMALL, state_size=8),
    "RWKV": _kind("Rwkv", SMALL, attention_hidden_size=32, context_length=64),
    "RecurrentGemma": _kind("RecurrentGemma", SMALL, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, lru_width=32, attention_window_size=8),
    "Jamba": _kind("Jamba", num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8, mamba_dt_rank=4, use_mamba_kernels=False, **EXPERTS),
    "Zamba2": _kind(
        "Zamba2", num_hidden_layers=4, mamba_d_state=8, n_mamba_heads=8, mamba_headdim=8, mamba_ngroups=1, chunk_size=8, num_mem_blocks=1,
        layers_block_type=["mamba", "mamba", "hybrid", "mamba"], hybrid_layer_ids=[2], attention_head_dim=16, num_key_value_heads=4, use_mamba_kernels=False,
    ),
    "Bamba": _kind("Bamba", num_hidden_layers=3, attn_layer_indices=[1], **HEADS),
    "FalconH1": _kind("FalconH1", mamba_d_ssm=64, head_dim=8, **HEADS),
    "Granite hybrid": _kind("GraniteMoeHybrid", layer_types=["mamba", "attention"], shared_intermediate_size=16, num_local_experts=4, **HEADS),
    "LFM2": _kind("Lfm2", num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"]),
    "xLSTM": _kind("xLSTM", {**SMALL, "hidden_size": 256}, num_heads=2, chunk_size=16),
    "LFM3": _kind("Lfm3", layer_types=["conv", "full_attention"]),
    "OLMo hybrid": _kind("OlmoHybrid", **{**LINEAR, "linear_num_key_heads": 4}),
    "Zamba": _kind(
        "Zamba", num_hidden_layers=6, num_key_value_heads=4, mamba_d_state=8, mamba_dt_rank=4, n_mamba_heads=2, attn_layer_period=3,
        attn_layer_offset=2, use_mamba_kernels=False,
    ),
    "Qwen3-Next": _kind(
        "Qwen3Next", moe_intermediate_size=16, shared_expert_intermediate_size=16, head_dim=8, **LINEAR, **EXPERTS,
    ),
    **{kind: partial(experts, kind) for kind in OWN_CACHES},
}  # fmt: skip


CACHES = ("cache", "past_key_values", "cache_params", "state")
"""How models call what they hand from step to step; some of transformers 4 return theirs from ``forward`` alone."""


def _tensors(part: Any) -> list[torch.Tensor]:
    """The tensors of floating-point numbers in a cache, wherever they are kept."""
    if isinstance(part, torch.Tensor):
        return [part] if part.is_floating_point() else []
    if isinstance(part, dict):
        part = [*part.values()]
    elif not isinstance(part, list | tuple):
        # Hybrid caches of transformers 4 stand beside their models.
        ours = type(part).__module__.startswith("transformers.") or "Cache" in type(part).__name__
        part = [*vars(part).values()] if ours else []
    return [tensor for one in part for tensor in _tensors(one)]


@pytest.mark.parametrize("kind", KINDS)
def test_size_is_that_of_all_tensors(telemetry: Telemetry, kind: str) -> None:
    """Keys and values, and the states of convolutions and recurrences, count with all their bytes."""
    try:
        model = KINDS[kind]().eval()
    except AttributeError as error:  # transformers says so of a class that came later
        if not str(error).startswith("module transformers has no attribute"):
            raise
        pytest.skip(str(error))
    telemetry.instrument(model)
    returned: dict[str, Any] = {}
    model.register_forward_hook(lambda module, args, output: returned.update(output))
    result = model.generate(models.prompt(2, 12), max_new_tokens=4, min_new_tokens=4, do_sample=False, return_dict_in_generate=True)
    cache: Any = next((found[name] for found in (result, returned) for name in CACHES if found.get(name) is not None), None)
    request = telemetry.only(telemetry.requests())
    if kind == "RecurrentGemma" and not _tensors(cache):
        assert semconv.KV_CACHE_BYTES not in request
        pytest.skip("the states are kept in the modules by this transformers: there is no cache")
    # Some models have one tensor for keys and values.
    size = sum(tensor.numel() * tensor.element_size() for tensor in {id(one): one for one in _tensors(cache)}.values())
    assert size > 0
    assert request[semconv.KV_CACHE_BYTES] == size
    assert telemetry.metric_sum(semconv.M_KV_CACHE) == size


def test_static_cache_counts_what_it_has_allocated(telemetry: Telemetry) -> None:
    """A static cache has its size from the start, whatever of it is filled."""
    model = models.llama()
    telemetry.instrument(model)
    model.generate(models.prompt(1, 6), max_new_tokens=4, do_sample=False, cache_implementation="static")
    config = model.config
    positions = 6 + 4
    size = 2 * config.num_hidden_layers * config.num_key_value_heads * positions * (config.hidden_size // config.num_attention_heads) * 4
    assert telemetry.only(telemetry.requests())[semconv.KV_CACHE_BYTES] in (size, size - size // positions)


def test_no_cache_has_no_size(telemetry: Telemetry) -> None:
    """Without a cache there is no size, not zero."""
    model = models.llama()
    telemetry.instrument(model)
    model.generate(models.prompt(1, 6), max_new_tokens=4, do_sample=False, use_cache=False)
    assert semconv.KV_CACHE_BYTES not in telemetry.only(telemetry.requests())
