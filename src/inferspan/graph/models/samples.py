"""Sample inputs of a model: by its own tokenizer or processor where it has one, else from its configuration. Nothing is downloaded."""

from __future__ import annotations

import inspect
import logging
import os
from typing import Any

import torch
from torch import nn

from .loading import class_of, configuration

MODALITIES = ("text", "image", "audio")
_WORDS = "the quick brown fox jumps over the lazy dog and runs on through the wide green field . "
_log = logging.getLogger("inferspan.graph")


class _Model:
    """What sample inputs depend on: configuration, arguments of forward, and where tokenizer and processor may lie."""

    def __init__(self, model: nn.Module | str, model_class: type | str | None) -> None:
        if isinstance(model, nn.Module):
            self.config: Any = getattr(model, "config", None)
            cls: type = type(model)
            self.source = str(getattr(self.config, "_name_or_path", "") or "")
        else:
            self.config = configuration(model)
            cls = class_of(self.config, model_class)
            self.source = str(model)
        if self.config is None or not hasattr(self.config, "to_dict"):
            raise ValueError(f"{cls.__name__} has no configuration of transformers: give sample inputs of your own")
        self.name = cls.__name__
        self.arguments = frozenset(inspect.signature(inspect.unwrap(cls.forward)).parameters)  # type: ignore[attr-defined]

    @property
    def text(self) -> Any:
        get = getattr(self.config, "get_text_config", None)
        return get() if get is not None else self.config

    @property
    def vision(self) -> Any:
        return getattr(self.config, "vision_config", None)

    @property
    def modalities(self) -> tuple[str, ...]:
        takes = {
            "text": "input_ids" in self.arguments,
            "image": "pixel_values" in self.arguments,
            "audio": bool({"input_features", "input_values"} & self.arguments),
        }
        return tuple(name for name in MODALITIES if takes[name])

    def special(self) -> set[int]:
        found: set[int] = set()
        for config in (self.config, self.text):
            for name, value in vars(config).items():
                if name.endswith(("_token_id", "_token_index")):
                    found.update(entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, int))
        return found


def modalities(model: nn.Module | str, model_class: type | str | None = None) -> tuple[str, ...]:
    """Which of ``text``, ``image`` and ``audio`` a model takes, by the arguments of its forward.

    Raises:
        ValueError: the model has no configuration of transformers.
    """
    return _Model(model, model_class).modalities


def sample_inputs(
    model_or_id: nn.Module | str, modality: str = "text", batch: int = 1, length: int = 64, model_class: type | str | None = None
) -> dict[str, Any]:
    """Make inputs for a model of transformers.

    The model's own tokenizer or processor makes them, if a folder or the local cache has one; else they are made from the configuration:
    token ids from 0 to the vocabulary's size without special ones, pictures and sound as random values, always the same. No data set is
    fetched.

    Args:
        model_or_id: a model, a folder or a hub id.
        modality: ``text``; ``image`` adds a picture, ``audio`` a sound, with the tokens of text that stand for them.
        batch: number of rows.
        length: tokens a row; less where the model has fewer positions, more where a picture needs more.
        model_class: as for ``attempt_trace``.

    Returns:
        Keyword arguments of the model's forward: ``input_ids`` and ``attention_mask`` of shape (batch, length), ``pixel_values`` with grid
        sizes where the model takes them, ``input_features``, ``decoder_input_ids`` of encoder-decoders.

    Raises:
        ValueError: the model does not take that modality, or how is not known: the text names what to give instead.
        ImportError: an id is given, and transformers is not installed.
        OSError: there is no configuration of that name.
    """
    if modality not in MODALITIES:
        raise ValueError(f"modality is one of {', '.join(MODALITIES)}, not {modality!r}")
    if batch < 1 or length < 1:
        raise ValueError("batch and length are at least 1")
    model = _Model(model_or_id, model_class)
    if modality not in model.modalities:
        raise ValueError(f"{model.name} takes no {modality}: its inputs are {', '.join(model.modalities) or 'of another kind'}")
    inputs = _by_processor(model, modality, batch, length) or _by_configuration(model, modality, batch, length)
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in model.arguments:
        most = _positions(model.config, ("max_target_positions",), length)
        start = getattr(model.config, "decoder_start_token_id", None) or 0
        inputs["decoder_input_ids"] = _ids(model, batch, most)
        inputs["decoder_input_ids"][:, 0] = start
    return {name: value for name, value in inputs.items() if name in model.arguments}


def _by_processor(model: _Model, modality: str, batch: int, length: int) -> dict[str, Any] | None:
    if not model.source:
        return None
    local = not os.path.isdir(model.source)
    try:
        import transformers

        if modality == "text":
            tokenizer = transformers.AutoTokenizer.from_pretrained(model.source, local_files_only=local)
            most = _positions(model.text, ("max_position_embeddings", "n_positions"), length)
            made = dict(tokenizer([_WORDS * most] * batch, truncation=True, max_length=most, return_tensors="pt"))
            if tuple(made["input_ids"].shape) != (batch, most) or int(made["input_ids"].max()) >= int(model.text.vocab_size):
                raise ValueError("its tokenizer has no vocabulary, or another one than the model")
            return made
        processor = transformers.AutoProcessor.from_pretrained(model.source, local_files_only=local)  # type: ignore[no-untyped-call]
        return _image(processor, batch, length) if modality == "image" else _audio(processor, batch)
    except Exception as error:
        _log.debug("%s: sample inputs come from the configuration, because its own processor cannot be used: %s", model.source, error)
        return None


def _image(processor: Any, batch: int, length: int) -> dict[str, Any]:
    """A synthetic picture, and text that the processor extends by the model's image tokens."""
    from PIL import Image

    picture = Image.linear_gradient("L").convert("RGB").resize((64, 64))
    token = getattr(processor, "image_token", None)
    if token is None:
        return dict(processor(images=[picture] * batch, return_tensors="pt"))
    around = getattr(processor, "vision_start_token", "<|vision_start|>"), getattr(processor, "vision_end_token", "<|vision_end|>")
    known = processor.tokenizer.get_vocab()
    start, end = (mark if mark in known else "" for mark in around)
    text = f"{start}{token}{end} {_WORDS * length}"
    made = dict(processor(text=[text] * batch, images=[[picture]] * batch, return_tensors="pt"))
    image = processor.tokenizer.convert_tokens_to_ids(token)
    needed = int((made["input_ids"][0] == image).nonzero().max()) + 2
    rows = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
    return {name: value[:, : max(length, needed)] if name in rows else value for name, value in made.items()}


def _audio(processor: Any, batch: int) -> dict[str, Any]:
    import numpy

    extractor = getattr(processor, "feature_extractor", processor)
    rate = int(getattr(extractor, "sampling_rate", 16000))
    wave = numpy.sin(numpy.arange(rate) * (2 * numpy.pi * 440 / rate)).astype("float32")
    return dict(extractor([wave] * batch, sampling_rate=rate, return_tensors="pt"))


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _positions(config: Any, names: tuple[str, ...], length: int) -> int:
    limits = [value for name in names if isinstance(value := getattr(config, name, None), int) and value > 0]
    return min([length, *limits])


def _ids(model: _Model, batch: int, length: int) -> torch.Tensor:
    special = model.special()
    plain = [token for token in range(min(int(model.text.vocab_size), 1000 + len(special))) if token not in special] or [0]
    return torch.tensor(plain)[torch.randint(len(plain), (batch, length), generator=_generator())]


def _by_configuration(model: _Model, modality: str, batch: int, length: int) -> dict[str, Any]:
    if modality == "audio":
        return _sound(model, batch)
    picture, tokens = _picture(model, batch) if modality == "image" else ({}, 0)
    if "input_ids" not in model.arguments:
        return picture
    room = tokens + 3
    most = max(_positions(model.text, ("max_position_embeddings", "n_positions"), length), room if tokens else 1)
    ids = _ids(model, batch, most)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **picture}
    if tokens:
        image = _image_token(model)
        ids[:, 1 : 1 + tokens] = image
        for name, place in (("vision_start_token_id", 0), ("vision_end_token_id", 1 + tokens)):
            token = getattr(model.config, name, None)
            if isinstance(token, int):
                ids[:, place] = token
        inputs["mm_token_type_ids"] = (ids == image).int()
    return inputs


def _image_token(model: _Model) -> int:
    for name in ("image_token_id", "image_token_index"):
        token = getattr(model.config, name, None)
        if isinstance(token, int):
            return token
    raise ValueError(f"{model.name} has no image token in its configuration: give sample inputs of your own")


def _picture(model: _Model, batch: int) -> tuple[dict[str, Any], int]:
    """Pictures and the number of tokens for each: grids of patches (Qwen2-VL), or whole pictures (LLaVA, CLIP, ViT)."""
    vision: Any = model.vision or model.config
    if "image_grid_thw" in model.arguments:
        merge = int(getattr(vision, "spatial_merge_size", 1))
        side = 2 * merge
        channels = next((int(count) for name in ("in_channels", "in_chans") if (count := getattr(vision, name, None))), 3)
        patch = channels * int(getattr(vision, "temporal_patch_size", 1)) * int(vision.patch_size) ** 2
        values = torch.randn(batch * side * side, patch, generator=_generator())
        return {"pixel_values": values, "image_grid_thw": torch.tensor([[1, side, side]] * batch)}, side * side // merge**2
    size, patch_size = getattr(vision, "image_size", None), getattr(vision, "patch_size", None)
    size = size[0] if isinstance(size, (list, tuple)) else size
    patch_size = patch_size[0] if isinstance(patch_size, (list, tuple)) else patch_size
    if not isinstance(size, int):
        raise ValueError(f"the size of pictures for {model.name} is not in its configuration: give sample inputs of your own")
    values = torch.randn(batch, int(getattr(vision, "num_channels", 3)), size, size, generator=_generator())
    if model.vision is None or not any(hasattr(model.config, name) for name in ("image_token_id", "image_token_index")):
        return {"pixel_values": values}, 0
    tokens = getattr(model.config, "image_seq_length", None)
    if isinstance(patch_size, int):
        strategy = getattr(model.config, "vision_feature_select_strategy", None)
        tokens = (size // patch_size) ** 2 + (1 if strategy == "full" else 0) if strategy else tokens or (size // patch_size) ** 2
    if not isinstance(tokens, int):
        raise ValueError(f"the number of image tokens of {model.name} is not in its configuration: give sample inputs of your own")
    return {"pixel_values": values}, tokens


def _sound(model: _Model, batch: int) -> dict[str, Any]:
    if "input_features" in model.arguments:
        bins, frames = getattr(model.config, "num_mel_bins", None), getattr(model.config, "max_source_positions", None)
        if not isinstance(bins, int) or not isinstance(frames, int) or "input_ids" in model.arguments:
            raise ValueError(f"the size of sounds for {model.name} is not in its configuration: give sample inputs of your own")
        return {"input_features": torch.randn(batch, bins, 2 * frames, generator=_generator())}
    return {"input_values": torch.randn(batch, 16000, generator=_generator())}
