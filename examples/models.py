"""The model of the examples: tiny, with random weights and a tokenizer of bytes; the real SmolLM2 with ``--smollm2``."""

from __future__ import annotations

import os
import sys
from typing import Any


def load() -> tuple[Any, Any]:
    """A causal language model and its tokenizer."""
    if "--smollm2" in sys.argv[1:] or os.environ.get("EXAMPLE_MODEL") == "smollm2":
        from inferspan.demo import load_smollm2

        return load_smollm2()
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(["<end>", *letters])}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, pad_token="<end>", eos_token="<end>", padding_side="left")

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        max_position_embeddings=256, pad_token_id=0, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), tokenizer
