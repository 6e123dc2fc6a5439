"""Sample inputs: what each kind of model takes, by its own tokenizer or processor and from its configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from inferspan import graph
from inferspan.graph.models import samples
from tests.graph import models

SHAPES: dict[str, tuple[Callable[[], models.Case], str, dict[str, tuple[int, ...]]]] = {
    "llama": (models.llama, "text", {"input_ids": (2, 16), "attention_mask": (2, 16)}),
    "moe": (models.moe, "text", {"input_ids": (2, 16), "attention_mask": (2, 16)}),
    "t5": (models.t5, "text", {"input_ids": (2, 16), "attention_mask": (2, 16), "decoder_input_ids": (2, 16)}),
    "whisper": (models.whisper, "audio", {"input_features": (2, 8, 40), "decoder_input_ids": (2, 16)}),
    "vit": (models.vit, "image", {"pixel_values": (2, 3, 16, 16)}),
    "llava": (models.llava, "image", {"input_ids": (2, 16), "attention_mask": (2, 16), "pixel_values": (2, 3, 16, 16)}),
    "qwen2_vl": (
        models.qwen2_vl,
        "image",
        {
            "input_ids": (2, 16), "attention_mask": (2, 16), "pixel_values": (32, 96), "image_grid_thw": (2, 3), "mm_token_type_ids": (2, 16),
        },
    ),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.filterwarnings("ignore")
def test_samples_fit_the_model(name: str) -> None:
    """Names and shapes are those that the model takes, and it runs on them."""
    make, modality, shapes = SHAPES[name]
    model, _, _ = make()
    made = graph.sample_inputs(model, modality, batch=2, length=16)
    assert {key: tuple(value.shape) for key, value in made.items()} == shapes
    with torch.no_grad():
        model.eval()(**made)


def test_samples_are_always_the_same() -> None:
    """Made twice, they are equal, and the random state of the program stays."""
    model, _, _ = models.llama()
    state = torch.get_rng_state()
    first, second = (graph.sample_inputs(model) for _ in range(2))
    assert torch.equal(first["input_ids"], second["input_ids"])
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_with_few_positions_gets_few_tokens() -> None:
    """The length is at most what the model's positions allow."""
    model, _, _ = models.bert()
    assert graph.sample_inputs(model, length=500)["input_ids"].shape == (1, 64)


@pytest.mark.parametrize(
    ("modality", "batch", "text"), [("image", 1, "takes no image"), ("video", 1, "one of text, image, audio"), ("text", 0, "at least 1")]
)
def test_a_sample_that_cannot_be_made_is_an_error(modality: str, batch: int, text: str) -> None:
    """The message has what the model takes, or what may be given."""
    model, _, _ = models.llama()
    with pytest.raises(ValueError, match=text):
        graph.sample_inputs(model, modality, batch=batch)


def test_modalities_of_models() -> None:
    """Text, image and audio, by the arguments of forward."""
    found = {name: samples.modalities(make()[0]) for name, make in (("llama", models.llama), ("llava", models.llava), ("whisper", models.whisper))}
    assert found == {"llama": ("text",), "llava": ("text", "image"), "whisper": ("audio",)}


def _tokenizer(words: dict[str, int], special: list[str]) -> Any:
    base = Tokenizer(WordLevel(words, unk_token="<unk>"))
    base.pre_tokenizer = WhitespaceSplit()
    made = hf.PreTrainedTokenizerFast(tokenizer_object=base, unk_token="<unk>", pad_token="<pad>")
    made.add_special_tokens({"additional_special_tokens": special})
    return made


def test_the_models_own_tokenizer_makes_text(tmp_path: Path) -> None:
    """Token ids are those of the folder's tokenizer."""
    hf.LlamaConfig(**models.TEXT).save_pretrained(tmp_path)
    _tokenizer({"<unk>": 0, "<pad>": 1, "the": 71, "quick": 72, "brown": 73, "fox": 74}, []).save_pretrained(tmp_path)
    made = graph.sample_inputs(str(tmp_path), length=6, batch=2)
    assert made["input_ids"].tolist() == [[71, 72, 73, 74, 0, 0]] * 2


def test_the_models_own_processor_makes_images(tmp_path: Path) -> None:
    """A processor puts as many image tokens into the text as the picture has patches."""
    pytest.importorskip("PIL")
    config: Any = models.llava()[0].config
    config.save_pretrained(tmp_path)
    tokenizer = _tokenizer({"<unk>": 0, "<pad>": 1, "<image>": 5, "the": 20}, ["<image>"])
    pictures = hf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    processor = hf.LlavaProcessor(pictures, tokenizer, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1)
    processor.save_pretrained(tmp_path)
    made = graph.sample_inputs(str(tmp_path), "image", length=12, batch=2)
    assert made["pixel_values"].shape == (2, 3, 16, 16)
    assert made["input_ids"].shape == (2, 12)
    assert (made["input_ids"] == 5).sum(1).tolist() == [4, 4]
    assert 20 in made["input_ids"], "the text comes from the folder's tokenizer"


def test_the_models_own_feature_extractor_makes_sound(tmp_path: Path) -> None:
    """A Whisper folder's feature extractor gives mel bins and frames."""
    config: Any = models.whisper()[0].config
    config.save_pretrained(tmp_path)
    hf.WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(tmp_path)
    made = graph.sample_inputs(str(tmp_path), "audio", length=6)
    assert made["input_features"].shape[:2] == (1, 8)
    assert made["decoder_input_ids"].shape == (1, 6)
