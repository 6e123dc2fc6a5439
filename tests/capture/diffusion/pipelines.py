"""Small diffusion pipelines with random weights: text to image, image to image, video, and one without a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

diffusers = pytest.importorskip("diffusers")

CLIP: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 8,
    "projection_dim": 32,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


def _tokenizer(folder: Path) -> Any:
    from transformers import CLIPTokenizer

    words = ["<|startoftext|>", "<|endoftext|>", "a</w>", "cat</w>", "a", "c", "t", "!"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    special = {"unk_token": words[1], "bos_token": words[0], "eos_token": words[1], "pad_token": words[1]}
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=8, **special)


def _autoencoder() -> Any:
    return diffusers.AutoencoderKL(
        block_out_channels=[8, 16],
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        latent_channels=4,
        norm_num_groups=2,
    )


def images(folder: Path, kind: str = "StableDiffusionPipeline", scheduler: str = "DDIMScheduler") -> Any:
    """Text to image, with an encoder of two layers."""
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        sample_size=16,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=2,
        attention_head_dim=4,
    )
    pipeline = getattr(diffusers, kind)(
        vae=_autoencoder(),
        text_encoder=CLIPTextModel(CLIPTextConfig(**CLIP)).eval(),
        tokenizer=_tokenizer(folder),
        unet=unet,
        scheduler=getattr(diffusers, scheduler)(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def video() -> Any:
    """Text to video, for embeddings of a text."""
    torch.manual_seed(0)
    transformer = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=32,
        freq_dim=256,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    vae = diffusers.AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0)
    pipeline = diffusers.WanPipeline(tokenizer=None, text_encoder=None, transformer=transformer, vae=vae, scheduler=scheduler)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def unconditional() -> Any:
    """Images of nothing."""
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(4, 8),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipeline = diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
