"""Tiny models with random weights, one for each kind of generation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["VOCABULARY", "bart", "llama", "llava", "prompt", "t5", "whisper"]

VOCABULARY = 64


def llama(seed: int = 0, **changes: Any) -> Any:
    """A Llama of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    options = {
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
    return LlamaForCausalLM(LlamaConfig(**{**options, **changes})).eval()


def t5(seed: int = 0) -> Any:
    """An encoder-decoder of two layers on each side."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    kind: Any = T5Config
    config = kind(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    return T5ForConditionalGeneration(config).eval()


def bart(seed: int = 0) -> Any:
    """A BART that forces its first token."""
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(seed)
    kind: Any = BartConfig
    config = kind(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        decoder_start_token_id=2,
        forced_bos_token_id=1,
        forced_eos_token_id=2,
    )
    return BartForConditionalGeneration(config).eval()


def whisper(seed: int = 0) -> Any:
    """A Whisper whose windows are one second long."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=80,
        max_source_positions=50,
        max_target_positions=32,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return WhisperForConditionalGeneration(config).eval()


def llava(seed: int = 0) -> Any:
    """A Llava whose images become four tokens each."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(seed)
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=4, projection_dim=32
    )
    text = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=63, vision_feature_layer=-1)
    return LlavaForConditionalGeneration(config).eval()


def qwen2_audio(seed: int = 0) -> Any:
    """A Qwen2-Audio whose 16 frames become four tokens."""
    from transformers import Qwen2AudioConfig, Qwen2AudioEncoderConfig, Qwen2AudioForConditionalGeneration, Qwen2Config

    torch.manual_seed(seed)
    audio = Qwen2AudioEncoderConfig(
        num_mel_bins=8, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=48, d_model=32, max_source_positions=8
    )
    text = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    config = Qwen2AudioConfig(audio_config=audio, text_config=text, audio_token_index=62)
    return Qwen2AudioForConditionalGeneration(config).eval()


def prompt(rows: int = 1, width: int = 6, seed: int = 1) -> Tensor:
    """Token ids without any special one."""
    return torch.randint(3, VOCABULARY - 2, (rows, width), generator=torch.Generator().manual_seed(seed))
