"""Tiny models with random weights that take images or sound, in addition to those of ``models``, and what they are given."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from .models import VOCABULARY, prompt

__all__ = [
    "AUDIO",
    "IMAGE",
    "blip_2",
    "clip",
    "idefics3",
    "llava_next",
    "noise",
    "paligemma",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen_picture",
    "smolvlm",
    "with_placeholders",
]

IMAGE, AUDIO = 63, 62
"""Ids of the tokens that stand for a position of an image and of sound."""
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EYES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4}


def _made(name: str, config: str, **options: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, config)(**options)).eval()


def noise(*shape: int) -> Tensor:
    """Numbers that are always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def with_placeholders(token: int, count: int, rows: int = 2) -> Tensor:
    """Ids of rows that begin with so many placeholders, followed by five words."""
    return torch.cat([torch.full((rows, count), token), prompt(rows, 5).clamp(max=59)], dim=1)


def llava_next() -> Any:
    """A LLaVA-Next, which puts a token at the end of each line of patches; an image of 16x16 becomes 24 tokens."""
    return _made(
        "LlavaNextForConditionalGeneration",
        "LlavaNextConfig",
        vision_config={"model_type": "clip_vision_model", "image_size": 8, "projection_dim": 32, **EYES},
        text_config={"model_type": "llama", **TEXT},
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        image_grid_pinpoints=[[16, 16], [8, 16]],
    )


def _qwen_vl(version: str, **vision: Any) -> Any:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    return _made(
        f"{version}ForConditionalGeneration",
        f"{version}Config",
        text_config={**TEXT, "rope_parameters": rope, "rope_scaling": rope},
        vision_config={"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, **vision},
        image_token_id=IMAGE,
        video_token_id=61,
        vision_start_token_id=60,
        vision_end_token_id=60,
    )


def qwen2_vl() -> Any:
    """A Qwen2-VL, whose 16 patches become four tokens."""
    return _qwen_vl("Qwen2VL", embed_dim=32, hidden_size=32, mlp_ratio=2)


def qwen2_5_vl() -> Any:
    """The same with windows."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]}
    return _qwen_vl("Qwen2_5_VL", **sizes)


def qwen_picture(rows: int = 2) -> dict[str, Any]:
    """An image of 16 patches for each row, and words."""
    ids = with_placeholders(IMAGE, 4, rows)
    given = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": noise(rows * 16, 96),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * rows),
    }
    # transformers 4 finds out itself what each token is.
    return given if version("transformers").startswith("4.") else {**given, "mm_token_type_ids": (ids == IMAGE).int()}


def _idefics(version: str) -> Any:
    return _made(
        f"{version}ForConditionalGeneration",
        f"{version}Config",
        text_config={"model_type": "llama", **TEXT},
        vision_config={"image_size": 16, **EYES},
        image_token_id=IMAGE,
        scale_factor=2,
    )


def idefics3() -> Any:
    """An Idefics3, whose images become four tokens each."""
    return _idefics("Idefics3")


def smolvlm() -> Any:
    """The same as SmolVLM."""
    return _idefics("SmolVLM")


def blip_2() -> Any:
    """A BLIP-2 of six queries."""
    part = {key: value for key, value in EYES.items() if key != "patch_size"}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": VOCABULARY}
    words = {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 32}
    return _made(
        "Blip2ForConditionalGeneration",
        "Blip2Config",
        vision_config={"image_size": 8, **EYES},
        qformer_config={"vocab_size": VOCABULARY, "encoder_hidden_size": 32, **part},
        text_config={"model_type": "opt", "max_position_embeddings": 256, **words, **tokens},
        num_query_tokens=6,
        image_token_index=IMAGE,
    )


def paligemma() -> Any:
    """A PaliGemma whose images become four tokens each."""
    return _made(
        "PaliGemmaForConditionalGeneration",
        "PaliGemmaConfig",
        text_config={"model_type": "gemma", "head_dim": 8, **TEXT},
        vision_config={"model_type": "siglip_vision_model", "image_size": 8, "projection_dim": 32, "vision_use_head": False, **EYES},
        image_token_id=IMAGE,
        projection_dim=32,
    )


def clip() -> Any:
    """A CLIP, whose two encoders meet in one space."""
    words = {key: value for key, value in EYES.items() if key != "patch_size"}
    return _made(
        "CLIPModel",
        "CLIPConfig",
        text_config={"vocab_size": VOCABULARY, "max_position_embeddings": 64, "projection_dim": 16, "eos_token_id": 2, **words},
        vision_config={"image_size": 8, "projection_dim": 16, **EYES},
        projection_dim=16,
    )
