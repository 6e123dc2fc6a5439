"""Kinds of models with stages, and ways to run them. torch and transformers are imported only when a model is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .kinds import GENERATING, noise

__all__ = ["STAGED", "STAGE_WAYS", "StageWay", "Staged"]

EYES, EARS, FUSION = "vision_encode", "audio_encode", "fusion"


@dataclass(frozen=True)
class Staged:
    """A kind of model with stages.

    Attributes:
        name: what the page calls it.
        make: makes the model; always the same weights.
        given: makes what the caller passes by name; two rows.
        stages: name of the stage by the path of its module.
        modalities: of what is passed.
        token: id of the token that stands for an image or sound in the prompt, if there is one.
        more: what a plain forward pass needs besides.
    """

    name: str
    make: Callable[[], Any]
    given: Callable[[], dict[str, Any]]
    stages: dict[str, str]
    modalities: tuple[str, ...] = ("text", "image")
    token: int | None = 63
    more: Callable[[], dict[str, Any]] = dict


@dataclass(frozen=True)
class StageWay:
    """A way to run a model with stages.

    Attributes:
        name: what the page calls it.
        call: makes the call, of the model and what is passed; what it returns is compared.
        words: whether only the words are passed.
        settings: of inferspan.
        prepare: changes the model beforehand.
    """

    name: str
    call: Callable[[Any, dict[str, Any]], Any]
    words: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[Any], object] = lambda model: None


def _made(name: str) -> Callable[[], Any]:
    def make() -> Any:
        from tests.cases import multimodal

        return getattr(multimodal, name)()

    return make


def _picture(tokens: int, *shape: int, **more: Any) -> Callable[[], dict[str, Any]]:
    """Rows that begin with the tokens of an image of this shape."""

    def given() -> dict[str, Any]:
        import torch

        from tests.cases import multimodal

        ids = multimodal.with_placeholders(multimodal.IMAGE, tokens)
        rest = {name: torch.tensor(value) for name, value in more.items()}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": noise(2, *shape), **rest}

    return given


def _qwen() -> dict[str, Any]:
    from tests.cases import multimodal

    return multimodal.qwen_picture()


def _start() -> dict[str, Any]:
    import torch

    return {"decoder_input_ids": torch.tensor([[3], [4]])}


def _text_and_picture() -> dict[str, Any]:
    from tests.cases import models

    return {"input_ids": models.prompt(2, 5), "pixel_values": noise(2, 3, 8, 8)}


LLAVA = {"model.vision_tower": EYES, "model.multi_modal_projector": FUSION}
QWEN = {"model.visual": EYES, "model.visual.merger": FUSION}
IDEFICS = {"model.vision_model": EYES, "model.connector": FUSION}
BLIP = {"vision_model": EYES, "qformer": FUSION, "language_projection": FUSION}
HEARD = {"model.audio_tower": EARS, "model.multi_modal_projector": FUSION}
OLD = ("Llava (images and text)", "Qwen2-Audio (sound and text)", "ViT to GPT-2 (captions)", "Speech2Text", "Whisper")
_llava, _audio, _captions, _speech, _whisper = (GENERATING[name] for name in OLD)
SOUND = ("audio",)
STAGED = {
    kind.name: kind
    for kind in (
        Staged("LLaVA", _llava.make, _llava.given, LLAVA),
        Staged("LLaVA-Next", _made("llava_next"), _picture(24, 5, 3, 8, 8, image_sizes=[[16, 16]] * 2), LLAVA),
        Staged("Qwen2-VL", _made("qwen2_vl"), _qwen, QWEN),
        Staged("Qwen2.5-VL", _made("qwen2_5_vl"), _qwen, QWEN),
        Staged("Idefics3", _made("idefics3"), _picture(8, 2, 3, 16, 16), IDEFICS),
        Staged("SmolVLM", _made("smolvlm"), _picture(4, 1, 3, 16, 16), IDEFICS),
        Staged("BLIP-2", _made("blip_2"), _picture(6, 3, 8, 8), BLIP),
        Staged("PaliGemma", _made("paligemma"), _picture(4, 3, 8, 8), LLAVA),
        Staged("Qwen2-Audio", _audio.make, _audio.given, HEARD, ("text", "audio"), 62),
        Staged("Whisper", _whisper.make, _whisper.given, {"model.encoder": EARS}, SOUND, None, _start),
        Staged("Speech2Text", _speech.make, _speech.given, {"model.encoder": EARS}, SOUND, None, _start),
        Staged("ViT to GPT-2", _captions.make, _captions.given, {"encoder": EYES}, ("image",), None, _start),
        Staged("CLIP", _made("clip"), _text_and_picture, {"vision_model": EYES}, token=None),
    )
}
"""By name."""


def _generate(**options: Any) -> Callable[[Any, dict[str, Any]], Any]:
    def call(model: Any, given: dict[str, Any]) -> Any:
        import torch

        with torch.no_grad():
            return model.generate(**given, **{"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, **options})

    return call


def _forward(model: Any, given: dict[str, Any]) -> Any:
    import torch

    with torch.no_grad():
        return model(**given)


def _compile_encoder(model: Any) -> None:
    import torch

    torch._dynamo.reset()
    path = next(path for path in ("model.vision_tower", "model.visual", "vision_model", "model.encoder") if _has(model, path))
    model.get_submodule(path).compile(backend="eager", dynamic=True)


def _has(model: Any, path: str) -> bool:
    return path in dict(model.named_modules())


STAGE_WAYS = {
    way.name: way
    for way in (
        StageWay("greedy", _generate()),
        StageWay("without module spans", _generate(), settings={"modules": "none"}),
        StageWay("without step spans", _generate(), settings={"steps": "none"}),
        StageWay("every module of every step", _generate(), settings={"modules": "all", "every_step": True}),
        StageWay("beam search", _generate(num_beams=3)),
        StageWay("no cache", _generate(use_cache=False)),
        StageWay("words only", _generate(), words=True),
        StageWay("encoder compiled", _generate(), prepare=_compile_encoder),
        StageWay("`model(...)`", _forward),
        StageWay("`model(...)`, words only", _forward, words=True),
    )
}
"""By name."""
