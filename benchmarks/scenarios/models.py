"""Tiny models with random weights, a tokenizer that has a word for each of their tokens, and prompts."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["VOCABULARY", "bart", "biased", "gpt2", "llama", "llava", "mamba", "mixtral", "prompt", "t5", "tokenizer", "whisper"]

VOCABULARY = 64
_TOKENS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_TEXT: dict[str, Any] = {
    **_TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def _make(kind: Any, config_kind: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(config_kind(**options)).eval()


def llama(**changes: Any) -> Any:
    """A Llama of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _make(LlamaForCausalLM, LlamaConfig, **{**_TEXT, **changes})


def mistral(**changes: Any) -> Any:
    """A Mistral whose layers see a window of four tokens."""
    from transformers import MistralConfig, MistralForCausalLM

    return _make(MistralForCausalLM, MistralConfig, **{**_TEXT, "sliding_window": 4, **changes})


def mixtral() -> Any:
    """A mixture of four experts, of which two are used."""
    from transformers import MixtralConfig, MixtralForCausalLM

    return _make(MixtralForCausalLM, MixtralConfig, **_TEXT, num_local_experts=4, num_experts_per_tok=2)


def gpt2() -> Any:
    """A GPT-2 of two layers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return _make(GPT2LMHeadModel, GPT2Config, **_TOKENS, n_embd=32, n_layer=2, n_head=4, n_positions=128)


def mamba() -> Any:
    """A state space model, which has no key/value cache."""
    from transformers import MambaConfig, MambaForCausalLM

    return _make(MambaForCausalLM, MambaConfig, **_TOKENS, hidden_size=32, state_size=4, num_hidden_layers=2, expand=2, conv_kernel=4)


def t5() -> Any:
    """An encoder-decoder of two layers on each side."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    return _make(T5ForConditionalGeneration, T5Config, **sizes, decoder_start_token_id=0, eos_token_id=2, pad_token_id=0)


def bart() -> Any:
    """A BART that forces its first token."""
    from transformers import BartConfig, BartForConditionalGeneration

    sides = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))}
    forced = {"decoder_start_token_id": 2, "forced_bos_token_id": 1, "forced_eos_token_id": 2}
    return _make(BartForConditionalGeneration, BartConfig, **_TOKENS, d_model=32, max_position_embeddings=128, **sides, **forced)


def whisper() -> Any:
    """A Whisper whose windows are one second long."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sides = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 48))}
    tokens = {**_TOKENS, "pad_token_id": 2, "decoder_start_token_id": 3, "suppress_tokens": None, "begin_suppress_tokens": None}
    sizes = {"d_model": 32, "num_mel_bins": 80, "max_source_positions": 50, "max_target_positions": 32}
    model = _make(WhisperForConditionalGeneration, WhisperConfig, **tokens, **sizes, **sides)
    model.generation_config.no_timestamps_token_id = 40
    return model


def llava() -> Any:
    """A Llava whose images become four tokens each."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = CLIPVisionConfig(**sizes, image_size=8, patch_size=4, projection_dim=32)
    text = LlamaConfig(**_TEXT)
    return _make(
        LlavaForConditionalGeneration, LlavaConfig, vision_config=vision, text_config=text, image_token_index=63, vision_feature_layer=-1
    )


def biased(model: Any, token: int, by: float) -> Any:
    """Make a token likelier."""
    head = model.get_output_embeddings()
    bias = torch.zeros(head.out_features)
    bias[token] = by
    head.bias = nn.Parameter(bias)
    return model


def prompt(rows: int = 1, width: int = 6, seed: int = 1) -> Tensor:
    """Token ids without any special one."""
    return torch.randint(3, VOCABULARY - 2, (rows, width), generator=torch.Generator().manual_seed(seed))


@functools.cache
def tokenizer() -> Any:
    """One word for each token of the tiny models."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{index:02d}": index for index in range(3, VOCABULARY - 1)}}
    # The stop string criterion of transformers measures tokens behind this text.
    words["abcdef"] = VOCABULARY - 1
    inner = Tokenizer(WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer = Whitespace()
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left", chat_template=template
    )
