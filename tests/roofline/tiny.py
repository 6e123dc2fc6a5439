"""Tiny models with random weights: one of each kind that the figures of the roofline are compared on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["CNN", "MODELS"]

_TEXT: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def _made(name: str, config: str, attention: str = "eager", **options: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    made = getattr(transformers, config)(**options)
    made._attn_implementation = attention
    made._experts_implementation = "eager"  # the counter of torch knows no grouped products
    return getattr(transformers, name)(made).eval()


def llama() -> Any:
    """Grouped queries, gated MLP, untied head."""
    return _made("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, **_TEXT)


def gpt2() -> Any:
    """Fused projections in Conv1D, learned positions, tied head."""
    return _made("GPT2LMHeadModel", "GPT2Config", vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0)


def qwen2() -> Any:
    """Projections with biases."""
    return _made("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2, **_TEXT)


def gemma() -> Any:
    """Heads wider than the hidden size, tied head."""
    return _made("GemmaForCausalLM", "GemmaConfig", num_key_value_heads=1, head_dim=16, **_TEXT)


def mixtral() -> Any:
    """Two of four experts a token."""
    return _made(
        "MixtralForCausalLM", "MixtralConfig", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **_TEXT
    )


def bert() -> Any:
    """An encoder with a pooler."""
    return _made("BertModel", "BertConfig", max_position_embeddings=64, **_TEXT)


def t5() -> Any:
    """Encoder and decoder, relative positions."""
    return _made(
        "T5ForConditionalGeneration", "T5Config", vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip


def vit() -> Any:
    """Patches and a class token."""
    return _made(
        "ViTForImageClassification", "ViTConfig", image_size=16, patch_size=4, num_labels=5,
        **{key: value for key, value in _TEXT.items() if key != "vocab_size"},
    )  # fmt: skip


def whisper() -> Any:
    """Two convolutions before the encoder, keys and values of the encoder cached."""
    return _made(
        "WhisperForConditionalGeneration", "WhisperConfig", vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8,
        max_source_positions=20, max_target_positions=40, decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip


def mistral() -> Any:
    """A window of six positions."""
    return _made("MistralForCausalLM", "MistralConfig", num_key_value_heads=2, sliding_window=6, **_TEXT)


def bart() -> Any:
    """Encoder and decoder with learned positions."""
    return _made(
        "BartForConditionalGeneration", "BartConfig", vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
    )  # fmt: skip


def clip() -> Any:
    """A vision encoder whose class token is a vector."""
    return _made(
        "CLIPVisionModel", "CLIPVisionConfig", image_size=16, patch_size=4,
        **{key: value for key, value in _TEXT.items() if key != "vocab_size"},
    )  # fmt: skip


def mamba() -> Any:
    """No attention, but recurrences of which nothing is known."""
    return _made("MambaForCausalLM", "MambaConfig", vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)


class CNN(nn.Module):
    """Convolutions with a stride, groups and one transposed, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 16, 3, stride=2, groups=4)
        self.wider = nn.ConvTranspose2d(16, 4, 2, stride=2)
        self.head = nn.Linear(4, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Logits [rows, 10] of images [rows, 3, height, width]."""
        hidden = self.wider(self.grouped(torch.relu(self.norm(self.first(pixels)))))
        logits: torch.Tensor = self.head(hidden.mean((2, 3)))
        return logits


def cnn() -> Any:
    """No transformer at all."""
    torch.manual_seed(0)
    return CNN().eval()


MODELS: dict[str, Callable[[], Any]] = {
    made.__name__: made for made in (llama, gpt2, qwen2, gemma, mixtral, bert, t5, vit, whisper, cnn, mistral, bart, clip, mamba)
}
