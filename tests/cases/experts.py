"""Tiny models with experts, one for each kind in transformers that can be built of numbers alone: two layers, four experts, two a token.

In: the name of a class. Out: the model, with random weights. A name that the installed transformers lacks is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from .models import VOCABULARY

__all__ = ["CAPACITY", "EXPERTS", "KINDS", "TOP", "experts", "given"]

EXPERTS, TOP = 4, 2
CAPACITY = 2
"""Tokens of an expert, where experts have a capacity."""
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "num_experts": EXPERTS, "n_routed_experts": EXPERTS, "num_local_experts": EXPERTS,
    "moe_num_experts": EXPERTS, "num_experts_per_tok": TOP, "moe_k": TOP, "moe_topk": TOP, "experts_per_token": TOP, "n_group": 1,
    "topk_group": 1, "n_shared_experts": 1, "num_shared_experts": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 0, "num_dense_layers": 0, "moe_layer_start_index": 0,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "shared_expert_intermediate_size": 16,
}  # fmt: skip
"""Given to a configuration that has them."""
_LATENT = {"num_key_value_heads": 4}
_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_ENCODER_DECODER: Mapping[str, Any] = {"vocab_size": VOCABULARY, "d_model": 32, "num_experts": EXPERTS, "decoder_start_token_id": 0}
CHANGES: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("AXK1", "AXK2", "DeepseekV2", "DeepseekV3", "DeepseekV32", "Glm4MoeLite", "GlmMoeDsa"), _LATENT),
    **{kind: {**_LINEAR, **_LATENT} for kind in ("KimiLinear", "BailingHybrid")},
    **{kind: {**_LINEAR, "linear_num_key_heads": 2, "linear_num_value_heads": 2} for kind in ("Qwen3Next", "Qwen3_5Moe")},
    "Beam": {"layer_types": ["sliding_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"]},
    "Dbrx": {
        "n_heads": 4, "n_layers": 2, "d_model": 32, "max_seq_len": 64, "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 16, "moe_num_experts": EXPERTS, "moe_top_k": TOP},
    },
    "Gemma4": {
        "enable_moe_block": True, "top_k_experts": TOP, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
        "layer_types": ["sliding_attention", "full_attention"], "per_layer_config": {},
    },
    "GptOss": {"sliding_window": 8},
    "GraniteMoeHybrid": {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8,
    },
    "Jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 1, "expert_layer_offset": 0, "use_mamba_kernels": False},
    "Lfm2Moe": {"layer_types": ["conv", "full_attention"]},
    "LongcatFlash": {**_LATENT, "zero_expert_num": 2},
    "NllbMoe": {
        **_ENCODER_DECODER, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "expert_capacity": CAPACITY,
        "max_position_embeddings": 64, "moe_eval_capacity_token_fraction": -1.0, "pad_token_id": 0,
    },
    "SwitchTransformers": {
        **_ENCODER_DECODER, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1, "num_heads": 4, "expert_capacity": CAPACITY, "pad_token_id": 0,
    },
    "Zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
WITHOUT_SIZES = ("Dbrx", "NllbMoe", "SwitchTransformers")
KINDS = (
    "AXK1", "AXK2", "Afmoe", "AriaText", "BailingHybrid", "Beam", "Cohere2Moe", "Dbrx", "DeepseekV2", "DeepseekV3", "DeepseekV32",
    "DeepseekV4", "Dots1", "Ernie4_5_Moe", "ExaoneMoe", "FlexOlmo", "Flint", "Gemma4", "Glm4Moe", "Glm4MoeLite", "GlmMoeDsa", "GptOss",
    "GraniteMoe", "GraniteMoeHybrid", "GraniteMoeSWA", "GraniteMoeShared", "HYV3", "HYV4", "HunYuanMoEV1", "Inkling", "Jamba", "JetMoe",
    "KimiLinear", "Kolibri1", "Laguna", "LaraMini", "Lfm2Moe", "Llama4", "LongcatFlash", "Mellum", "MiMoV2Flash", "MiniMax", "MiniMaxM2",
    "MiniMaxM3VL", "Mixtral", "NemotronH", "NllbMoe", "Olmoe", "Phimoe", "Qwen2Moe", "Qwen3Moe", "Qwen3Next", "Qwen3_5Moe", "SolarOpen",
    "SwitchTransformers", "Zaya",
)  # fmt: skip
"""Models whose routers are read."""


def _has(config: Any, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # a fact of single layers in some configurations
        return True


def experts(kind: str, **changes: Any) -> Any:
    """A model of a kind, ready for inference."""
    import transformers

    kind_of_head = "ForConditionalGeneration" if kind in ("NllbMoe", "SwitchTransformers") else "ForCausalLM"
    made = getattr(transformers, f"{kind}{kind_of_head}", None)
    if made is None:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    config: Any = made.config_class
    plain = config()
    sizes = {} if kind in WITHOUT_SIZES else {name: value for name, value in SIZES.items() if _has(plain, name)}
    torch.manual_seed(0)
    return made(config(**{**sizes, **CHANGES.get(kind, {}), **changes})).eval()


def given() -> torch.Tensor:
    """Two rows of six tokens."""
    return torch.randint(3, 60, (2, 6), generator=torch.Generator().manual_seed(0))
