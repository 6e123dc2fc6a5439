"""Models of sentence-transformers that need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.matrix.pipelines import tokenizer

LONGEST = 4
"""Tokens of the longest input of the encoders."""


@pytest.fixture(autouse=True)
def everywhere(quiet: None) -> None:
    """No remarks of the libraries, and a fixed seed."""
    torch.manual_seed(0)


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """Makes a model of sentence-transformers from the name of its class and that of its transformers model."""
    library = pytest.importorskip("sentence_transformers")

    def made(kind: str, head: str, **options: Any) -> Any:
        config = transformers.BertConfig(
            vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=32, **options
        )
        folder = str(tmp_path / kind)
        getattr(transformers, head)(config).eval().save_pretrained(folder)
        words = tokenizer("right")
        words.model_max_length = LONGEST
        words.save_pretrained(folder)
        return getattr(library, kind)(folder, device="cpu")

    return made
