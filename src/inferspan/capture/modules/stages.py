"""Which modules of a model are its stages: encoders of images and of sound, and what joins their output to the text.

In: a model and the setting ``stages``. Out: the stage of each such module, by path. Encoders have the names that libraries give them
(``vision_tower``, ``visual``, ``audio_tower``, ...), in a model that embeds tokens elsewhere, or are the encoder of a model whose main
input is an image or sound (Whisper). Projectors, mergers and Q-Formers count only beside an encoder. Of modules inside one another that
would be the same stage the outer one is it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from inferspan import semconv
from inferspan.guard import ask, contain, read_attribute
from inferspan.records import ModuleBatch, ModuleInfo, ModuleStage
from inferspan.setting_checks import warn_once

from .patterns import paths_of

__all__ = ["Wanted", "device_of", "find_stages", "with_device", "with_tokens"]

_ENCODERS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            "vision_tower", "vision_model", "visual", "vision_encoder", "image_encoder", "image_tower", "vision_backbone", "vpm",
            "image_embed", "vision_embed_tokens", "high_res_vision_model",
        ),
        (semconv.STAGE_VISION_ENCODE, "image"),
    ),
    "video_tower": (semconv.STAGE_VISION_ENCODE, "video"),
    **dict.fromkeys(
        ("audio_tower", "audio_model", "audio_encoder", "speech_encoder", "sound_tower", "audio_embed", "apm"),
        (semconv.STAGE_AUDIO_ENCODE, "audio"),
    ),
}  # fmt: skip
"""Stage and modality by the name of an encoder."""
_FUSION = frozenset({
    "multi_modal_projector", "multimodal_projector", "mm_projector", "projector", "connector", "aligner", "merger", "patch_merger",
    "qformer", "resampler", "resampler_model", "perceiver_resampler", "abstractor", "modality_projection", "language_projection",
    "image_to_text_projection", "visual_projection", "vision_projection", "vision_projector", "image_projection", "image_projector",
    "embed_vision", "mlp1",
    "audio_projection", "audio_projector", "audio_projection_layer", "sound_projection", "speech_projector", "embed_audio",
})  # fmt: skip
_TEXT = frozenset({"language_model", "text_model", "text_decoder", "lm_head"})
"""Names of the part of a model that is about text: nothing in it is a stage."""
_MEDIA = {"pixel_values": "image", "flattened_patches": "image", "input_features": "audio", "input_values": "audio"}
"""Modality of a main input by how its name begins."""
_WORDS = {"image": "image", "vision": "image", "visual": "image", "video": "video", "audio": "audio", "speech": "audio", "sound": "audio"}
_STAGE_OF = {"image": semconv.STAGE_VISION_ENCODE, "audio": semconv.STAGE_AUDIO_ENCODE}

Wanted = str | tuple[tuple[str, tuple[str, ...]], ...]


def _is_inside(path: str, others: Iterable[str]) -> bool:
    return any(path.startswith(f"{other}.") for other in others)


def _modality_of(name: str) -> str | None:
    return next((modality for word, modality in _WORDS.items() if word in name), None)


def _media(module: Any) -> str | None:
    """Modality of the main input of a module of transformers, if that is an image or sound."""
    name = read_attribute(module, "main_input_name")
    return next((kind for start, kind in _MEDIA.items() if name.startswith(start)), None) if isinstance(name, str) else None


def _speech_encoder(path: str, parent: nn.Module | None, config: Any) -> bool:
    """Whether a module called ``encoder`` stands before a projector and a language model, in a model with a token for sound."""
    if path.rpartition(".")[2] != "encoder" or parent is None or not {"projector", "language_model"} <= parent._modules.keys():
        return False
    return any(type(read_attribute(config, name)) is int for name in ("audio_token_id", "audio_token_index"))


def _encoders(root: nn.Module, modules: Mapping[str, nn.Module]) -> dict[str, ModuleStage]:
    found: dict[str, ModuleStage] = {}
    config = read_attribute(root, "config")
    for path, module in modules.items():
        above, _, name = path.rpartition(".")
        if issubclass(type(module), nn.ModuleList | nn.ModuleDict) or _is_inside(path, found) or not _TEXT.isdisjoint(path.split(".")):
            continue
        if name in _ENCODERS:
            stage, modality = _ENCODERS[name]
            found[path] = ModuleStage(stage, modality)
        elif _speech_encoder(path, modules.get(above), config):
            found[path] = ModuleStage(semconv.STAGE_AUDIO_ENCODE, "audio")
    # Without tokens elsewhere the encoder is all that the model is.
    embeddings = (path for path, module in modules.items() if issubclass(type(module), nn.Embedding))
    if any(path not in found and not _is_inside(path, found) for path in embeddings):
        return found
    return {}


def _embeds_words(root: Any, encoder: nn.Module) -> bool:
    """Whether a model of text has put the embedding of its words into the encoder, which may say that it takes sound (SpeechT5)."""
    words = read_attribute(read_attribute(root, "config"), "vocab_size")
    embeddings = (module for module in encoder.modules() if issubclass(type(module), nn.Embedding))
    return read_attribute(root, "main_input_name") == "input_ids" and any(
        read_attribute(module, "num_embeddings") == words for module in embeddings
    )


def _main_encoder(root: Any, modules: Mapping[str, nn.Module]) -> dict[str, ModuleStage]:
    """The encoder of an encoder-decoder whose main input is no text."""
    if not read_attribute(read_attribute(root, "config"), "is_encoder_decoder", False):
        return {}
    encoder = ask(root, "get_encoder")
    if not isinstance(encoder, nn.Module):
        return {}
    modality = _media(root) or (None if _embeds_words(root, encoder) else _media(encoder))
    path = next((path for path, module in modules.items() if module is encoder and path), None)
    return {path: ModuleStage(_STAGE_OF[modality], modality)} if path is not None and modality in _STAGE_OF else {}


def _fusion(modules: Mapping[str, nn.Module], encoders: Mapping[str, ModuleStage]) -> dict[str, ModuleStage]:
    found: dict[str, ModuleStage] = {}
    kinds = {stage.modality for stage in encoders.values()}
    for path, module in modules.items():
        above, _, name = path.rpartition(".")
        if name not in _FUSION or issubclass(type(module), nn.ModuleList | nn.ModuleDict) or _is_inside(path, found):
            continue
        parent = modules.get(above)
        # Two encoders that meet in one space, such as those of CLIP, put nothing into a sequence.
        if not _TEXT.isdisjoint(path.split(".")) or parent is None or "text_projection" in parent._modules:
            continue
        around = next((stage.modality for encoder, stage in encoders.items() if path.startswith(f"{encoder}.")), None)
        found[path] = ModuleStage(semconv.STAGE_FUSION, _modality_of(name) or around or (next(iter(kinds)) if len(kinds) == 1 else None))
    return found


def _by_structure(root: nn.Module, modules: Mapping[str, nn.Module]) -> dict[str, ModuleStage]:
    with contain("search for stages"):
        encoders = _encoders(root, modules) or _main_encoder(root, modules)
        return {**encoders, **_fusion(modules, encoders)} if encoders else {}
    return {}


def find_stages(root: nn.Module, wanted: Wanted) -> dict[str, ModuleStage]:
    """The stages of a model by the path of their module. A pattern that matches no module is a warning, once.

    Args:
        root: the model; it is no stage itself.
        wanted: ``"auto"``, or names, each with patterns (``fnmatch``) of paths, or with none for those that the structure tells.
    """
    if not wanted or issubclass(type(root), torch.jit.ScriptModule):
        return {}
    modules = {path: module for path, module in root.named_modules() if not issubclass(type(module), torch.jit.ScriptModule)}
    told = _by_structure(root, modules)
    if isinstance(wanted, str):
        return told
    found: dict[str, ModuleStage] = {}
    others = paths_of(root)
    for name, patterns in wanted:
        if not patterns:
            found.update({path: stage for path, stage in told.items() if stage.name == name})
        for pattern in patterns:
            matched = [
                path
                for path, module in modules.items()
                if path and any(fnmatch.fnmatchcase(one, pattern) for one in (path, *others.get(id(module), ())))
            ]
            if not matched:
                kind = type(root).__name__
                warn_once("inferspan setting 'stages': pattern %r of stage %r matches no module of %s", pattern, name, kind)
            outer = [path for path in matched if not _is_inside(path, matched)]
            found.update({path: ModuleStage(name, _modality_of(name) or _modality_of(path)) for path in outer})
    return found


def _first(module: nn.Module, kind: str) -> Any:
    """The first tensor in a table of a module or of one inside it; torch's own search takes as long as recording the stage."""
    for tensor in getattr(module, kind).values():
        if tensor is not None:
            return tensor
    for inner in module._modules.values():
        found = None if inner is None else _first(inner, kind)
        if found is not None:
            return found
    return None


def device_of(module: nn.Module) -> torch.device | None:
    """Device of the weights of a stage, where they stay on one and are known."""
    with contain("device of a stage"):
        weight = _first(module, "_parameters")
        if weight is None:
            weight = _first(module, "_buffers")
        # Weights that accelerate moves when the module runs are elsewhere now.
        if weight is not None and not weight.is_meta:
            device: torch.device = weight.device
            return device
    return None


def with_device(info: ModuleInfo, device: torch.device | None) -> ModuleInfo:
    """``info`` of a stage with the device of its weights."""
    return info if device is None or info.stage is None else info._replace(stage=info.stage._replace(device=str(device)))


def with_tokens(batch: ModuleBatch, tokens: Mapping[str, int]) -> ModuleBatch:
    """``batch`` with the tokens of each stage that ran once in it: of several calls the shares are not known.

    Args:
        batch: the calls of a pass.
        tokens: that were encoded, by modality; empty if they are not known.
    """
    with contain("tokens of stages"):
        if not any(tokens.get(modality) for modality in ("image", "audio", "video")):
            return batch
        columns = batch.calls.columns()
        numbers: dict[ModuleInfo, list[int]] = {}
        for number, info in zip(columns.numbers, columns.modules, strict=True):
            if info.stage is not None:
                numbers.setdefault(info, []).append(number)
        found = {
            calls[0]: count
            for info, calls in numbers.items()
            if len(calls) == 1 and info.stage is not None and (count := tokens.get(info.stage.modality or "", 0))
        }
        return batch._replace(tokens=found)
    return batch
