"""Kinds of generating models: a tiny one of each with random weights, and what its ``generate()`` takes.

torch and transformers are imported only when a model is built, so that the table of pairs can be read without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cases import models

__all__ = ["GENERATING", "SIZES", "Kind", "noise"]

EOS = 2


@dataclass(frozen=True)
class Kind:
    """A kind of generating model.

    Attributes:
        name: what the page calls it.
        make: makes the model; always the same weights.
        given: makes what the caller passes to ``generate()``, by name; two rows, the first of which has left padding if it is text.
        start: positions of the returned rows before the first generated token, of what was passed.
        counts_input: whether the prompt has tokens that are known to the caller.
    """

    name: str
    make: Callable[[], Any]
    given: Callable[[], dict[str, Any]]
    start: Callable[[dict[str, Any]], int]
    counts_input: bool = True

    def model(self) -> Any:
        """A new model, always of the same weights, in evaluation mode."""
        return self.make().eval()


SIZES: dict[str, Any] = {
    "vocab_size": models.VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
TOKENS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": 0}


def _made(name: str, config: str, **options: Any) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, config)(**options))


def _gpt2() -> Any:
    return _made("GPT2LMHeadModel", "GPT2Config", vocab_size=models.VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256, **TOKENS)


def _opt() -> Any:
    return _made(
        "OPTForCausalLM", "OPTConfig", vocab_size=models.VOCABULARY, hidden_size=32, word_embed_proj_dim=32, ffn_dim=48,
        num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=256, **TOKENS,
    )  # fmt: skip


def _neox() -> Any:
    sizes = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
    return _made("GPTNeoXForCausalLM", "GPTNeoXConfig", **sizes, **TOKENS)


def _gemma() -> Any:
    return _made("GemmaForCausalLM", "GemmaConfig", head_dim=8, **SIZES, **TOKENS)


def _mistral() -> Any:
    # Shorter than prompt and answer together.
    return _made("MistralForCausalLM", "MistralConfig", sliding_window=8, **SIZES, **TOKENS)


def _mixtral() -> Any:
    return _made("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, num_experts_per_tok=2, **SIZES, **TOKENS)


def _mamba() -> Any:
    return _made("MambaForCausalLM", "MambaConfig", vocab_size=models.VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=2, **TOKENS)


def _bert_to_bert() -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    part = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
    encoder = transformers.BertConfig(**part)
    decoder = transformers.BertConfig(**part, is_decoder=True, add_cross_attention=True)
    model: Any = transformers.EncoderDecoderModel(encoder=transformers.BertModel(encoder), decoder=transformers.BertLMHeadModel(decoder))
    return _with_tokens(model, decoder_start_token_id=1)


def _captioner() -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    eyes = transformers.ViTConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=8, patch_size=4
    )
    kind: Any = transformers.GPT2Config
    mouth = kind(
        vocab_size=models.VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, is_decoder=True, add_cross_attention=True
    )
    model: Any = transformers.VisionEncoderDecoderModel(encoder=transformers.ViTModel(eyes), decoder=transformers.GPT2LMHeadModel(mouth))
    return _with_tokens(model, decoder_start_token_id=1)


def _with_tokens(model: Any, **more: int) -> Any:
    for config in (model.config, model.generation_config):
        for key, value in {**TOKENS, **more}.items():
            setattr(config, key, value)
    return model


def _speech_to_text() -> Any:
    return _made(
        "Speech2TextForConditionalGeneration", "Speech2TextConfig", vocab_size=models.VOCABULARY, d_model=32, encoder_layers=1,
        decoder_layers=1, encoder_ffn_dim=48, decoder_ffn_dim=48, encoder_attention_heads=2, decoder_attention_heads=2,
        input_feat_per_channel=8, conv_channels=16, max_source_positions=64, max_target_positions=64, decoder_start_token_id=1, **TOKENS,
    )  # fmt: skip


def _text() -> dict[str, Any]:
    import torch

    ids = models.prompt(2, 6)
    mask = torch.ones_like(ids)
    ids[0, :2], mask[0, :2] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def _picture_and_text() -> dict[str, Any]:
    import torch

    ids = torch.cat([torch.full((2, 4), 63), models.prompt(2, 5)], dim=1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": noise(2, 3, 8, 8)}


def _sound_and_text() -> dict[str, Any]:
    import torch

    ids = torch.cat([torch.full((2, 4), 62), models.prompt(2, 5)], dim=1)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "input_features": noise(2, 8, 16),
        "feature_attention_mask": torch.ones(2, 16, dtype=torch.long),
    }


def noise(*shape: int) -> Any:
    """Numbers that are always the same."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _width(given: dict[str, Any]) -> int:
    return int(given["input_ids"].shape[1])


def _one(given: dict[str, Any]) -> int:
    return 1


def _none(given: dict[str, Any]) -> int:
    return 0


GENERATING = {
    kind.name: kind
    for kind in (
        Kind("Llama", models.llama, _text, _width),
        Kind("GPT-2", _gpt2, _text, _width),
        Kind("OPT", _opt, _text, _width),
        Kind("GPT-NeoX", _neox, _text, _width),
        Kind("Gemma", _gemma, _text, _width),
        Kind("Mistral (sliding window)", _mistral, _text, _width),
        Kind("Qwen2", lambda: _made("Qwen2ForCausalLM", "Qwen2Config", **SIZES, **TOKENS), _text, _width),
        Kind("Mixtral (experts)", _mixtral, _text, _width),
        Kind("Mamba (state space)", _mamba, _text, _width),
        Kind("T5", models.t5, _text, _one),
        Kind("BART", models.bart, _text, _one),
        Kind("BERT to BERT", _bert_to_bert, _text, _one),
        Kind("Llava (images and text)", models.llava, _picture_and_text, _width),
        Kind("Qwen2-Audio (sound and text)", models.qwen2_audio, _sound_and_text, _width),
        Kind("ViT to GPT-2 (captions)", _captioner, lambda: {"pixel_values": noise(2, 3, 8, 8)}, _one, counts_input=False),
        Kind("Speech2Text", _speech_to_text, lambda: {"input_features": noise(2, 32, 8)}, _one, counts_input=False),
        Kind("Whisper", models.whisper, lambda: {"input_features": noise(2, 80, 100)}, _none, counts_input=False),
    )
}
"""By name."""
