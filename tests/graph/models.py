"""Tiny models of many architectures, each with a sample batch and modules to ignore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn

TEXT: dict[str, Any] = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=100)
PLAIN: dict[str, Any] = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
Case = tuple[nn.Module, dict[str, Any], tuple[str, ...]]


def ids(length: int = 12, batch: int = 2) -> dict[str, torch.Tensor]:
    """Token ids and a mask in which the first row is padded."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, 0] = 0
    return dict(input_ids=torch.randint(10, 90, (batch, length)), attention_mask=mask)


def llama(layers: int = 2) -> Case:
    """Llama, its head ignored."""
    config = hf.LlamaConfig(**{**TEXT, "num_hidden_layers": layers})
    return hf.LlamaForCausalLM(config), ids(), ("lm_head",)


def gpt2() -> Case:
    """GPT-2."""
    return hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64)), ids(), ()


def qwen2_vl_config(layers: int = 2) -> Any:
    """A configuration of Qwen2-VL."""
    rope = {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    return hf.Qwen2VLConfig(
        text_config={**TEXT, "num_hidden_layers": layers, "rope_parameters": rope},
        vision_config=dict(depth=2, embed_dim=32, hidden_size=32, num_heads=4, patch_size=4, spatial_merge_size=2, mlp_ratio=2),
        image_token_id=5, video_token_id=6, vision_start_token_id=7, vision_end_token_id=8,
    )


def qwen2_vl() -> Case:
    """Qwen2-VL with text."""
    return hf.Qwen2VLForConditionalGeneration(qwen2_vl_config()), ids(), ("lm_head", "re:.*visual.*")


def qwen2_vl_image() -> Case:
    """Qwen2-VL with an image."""
    tokens = torch.full((1, 12), 20)
    tokens[:, 2], tokens[:, 3:7], tokens[:, 7] = 7, 5, 8
    sample = dict(
        input_ids=tokens, attention_mask=torch.ones_like(tokens), mm_token_type_ids=(tokens == 5).int(),
        pixel_values=torch.randn(16, 3 * 2 * 4 * 4), image_grid_thw=torch.tensor([[1, 4, 4]]),
    )
    return hf.Qwen2VLForConditionalGeneration(qwen2_vl_config()), sample, ("lm_head", "re:.*visual.*")


def llava() -> Case:
    """LLaVA with an image."""
    vision = hf.CLIPVisionConfig(**PLAIN, image_size=16, patch_size=8, projection_dim=32)
    config = hf.LlavaConfig(text_config=hf.LlamaConfig(**TEXT), vision_config=vision, image_token_index=5, image_seq_length=4, vision_feature_layer=-1)
    tokens = torch.full((1, 12), 20)
    tokens[:, 3:7] = 5
    sample = dict(input_ids=tokens, attention_mask=torch.ones_like(tokens), pixel_values=torch.randn(1, 3, 16, 16))
    return hf.LlavaForConditionalGeneration(config), sample, ("lm_head", "re:.*vision_tower.*")


def whisper() -> Case:
    """Whisper."""
    config = hf.WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, vocab_size=100, num_mel_bins=8, max_source_positions=20, max_target_positions=20, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )
    sample = dict(input_features=torch.randn(2, 8, 40), decoder_input_ids=torch.randint(10, 90, (2, 6)))
    return hf.WhisperForConditionalGeneration(config), sample, ()


def t5() -> Case:
    """T5."""
    config = hf.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100)
    config.decoder_start_token_id = 0
    return hf.T5ForConditionalGeneration(config), dict(**ids(), decoder_input_ids=torch.randint(10, 90, (2, 6))), ()


def moe() -> Case:
    """Mixtral: experts."""
    return hf.MixtralForCausalLM(hf.MixtralConfig(**TEXT, num_local_experts=4, num_experts_per_tok=2)), ids(), ()


def mamba() -> Case:
    """Mamba."""
    config = hf.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=100, state_size=8)
    return hf.MambaForCausalLM(config), dict(input_ids=ids()["input_ids"]), ()


def bert() -> Case:
    """BERT."""
    return hf.BertForMaskedLM(hf.BertConfig(**PLAIN, vocab_size=100, max_position_embeddings=64)), ids(), ()


def vit() -> Case:
    """ViT."""
    return hf.ViTForImageClassification(hf.ViTConfig(**PLAIN, image_size=16, patch_size=8)), dict(pixel_values=torch.randn(2, 3, 16, 16)), ()


TEN: dict[str, Callable[[], Case]] = {
    "llama": llama, "gpt2": gpt2, "qwen2_vl": qwen2_vl, "llava": llava, "whisper": whisper, "t5": t5, "moe": moe, "mamba": mamba,
    "bert": bert, "vit": vit,
}
