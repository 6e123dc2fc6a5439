"""The outcome of a pipeline's call: what was asked for, what came out, and how fast.

Everything comes from the arguments and the result; facts that are not known are left out. Shapes are looked at, never values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from inferspan import semconv
from inferspan.capture.outcome import Outcome
from inferspan.records import AttributeValue, Failure

__all__ = ["describe_outcome", "facts_of"]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _prompts(arguments: Mapping[str, Any]) -> int | None:
    """Prompts of a call; 1 for a pipeline without any that does not say otherwise."""
    prompt = arguments.get("prompt")
    if isinstance(prompt, str):
        return 1
    if isinstance(prompt, Sequence):
        return len(prompt)
    embeds = arguments.get("prompt_embeds")
    shape = getattr(embeds, "shape", None)
    if shape:
        return int(shape[0])
    return _whole(arguments.get("batch_size"))


def _seed(generator: Any) -> int | None:
    """The seed of a generator that the caller has passed; of several, of the first."""
    if isinstance(generator, list | tuple):
        generator = generator[0] if generator else None
    return generator.initial_seed() if isinstance(generator, torch.Generator) else None


def facts_of(arguments: Mapping[str, Any], scheduler: Any) -> dict[str, AttributeValue]:
    """Attributes that a request has from its start on."""
    found: dict[str, AttributeValue] = {}
    if scheduler is not None:
        found[semconv.DENOISE_SCHEDULER] = type(scheduler).__name__
    for key, value in (
        (semconv.DENOISE_STEPS, _whole(arguments.get("num_inference_steps"))),
        (semconv.DENOISE_GUIDANCE, _number(arguments.get("guidance_scale"))),
        (semconv.REQUEST_SEED, _seed(arguments.get("generator"))),
    ):
        if value is not None:
            found[key] = value
    several = next((arguments[name] for name in ("num_images_per_prompt", "num_videos_per_prompt", "num_waveforms_per_prompt")
                    if _whole(arguments.get(name))), 1)
    if several > 1:
        found[semconv.REQUEST_CHOICE_COUNT] = several
    return found


def _counted(value: Any) -> int | None:
    """Items of a list, or the first axis of an array."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(value) if isinstance(value, list | tuple) else None


def _size(item: Any) -> tuple[int, int] | None:
    """Height and width of an image: of PIL, an array [height, width, channels], or a tensor [channels, height, width]."""
    size = getattr(item, "size", None)
    if isinstance(size, tuple) and len(size) == 2 and not isinstance(item, torch.Tensor):
        return int(size[1]), int(size[0])
    shape = getattr(item, "shape", None)
    if shape is None or len(shape) != 3:
        return None
    return (int(shape[1]), int(shape[2])) if isinstance(item, torch.Tensor) else (int(shape[0]), int(shape[1]))


def _images(images: Any, seconds: float, *, latent: bool) -> dict[str, AttributeValue]:
    count = _counted(images)
    if not count:
        return {}
    found: dict[str, AttributeValue] = {semconv.OUTPUT_TYPE: "image", semconv.OUTPUT_IMAGES: count}
    if seconds > 0:
        found[semconv.IMAGES_PER_SECOND] = count / seconds
    size = None if latent else _size(images[0])
    if size is not None:
        found[semconv.OUTPUT_HEIGHT], found[semconv.OUTPUT_WIDTH] = size
    return found


def _frames(videos: Any, seconds: float, *, latent: bool) -> dict[str, AttributeValue]:
    """Of a list of videos, each a list of frames, or an array [videos, frames, ...]."""
    shape = getattr(videos, "shape", None)
    if latent or not _counted(videos):
        return {}
    if shape is not None and len(shape) >= 5:
        count, first = int(shape[0]) * int(shape[1]), videos[0][0]
    elif shape is None and isinstance(videos[0], list | tuple) and videos[0]:
        count, first = sum(len(video) for video in videos), videos[0][0]
    elif shape is None and getattr(videos[0], "shape", None) is not None:
        count, first = sum(int(video.shape[0]) for video in videos), videos[0][0]
    else:
        return {}
    found: dict[str, AttributeValue] = {semconv.OUTPUT_FRAMES: count}
    if seconds > 0:
        found[semconv.FRAMES_PER_SECOND] = count / seconds
    size = _size(first)
    if size is not None:
        found[semconv.OUTPUT_HEIGHT], found[semconv.OUTPUT_WIDTH] = size
    return found


def describe_outcome(
    arguments: Mapping[str, Any],
    scheduler: Any,
    result: Any,
    failure: Failure | None,
    *,
    steps: int,
    denoising: float,
    seconds: float,
    blocks: Sequence[float],
) -> Outcome:
    """The outcome of a pipeline that returned ``result`` or failed.

    Args:
        arguments: of the call, by name.
        scheduler: of the pipeline.
        result: what it has returned.
        failure: the exception that came out of it.
        steps: denoising steps that were seen.
        denoising: seconds that they took together.
        seconds: duration of the call.
        blocks: seconds from its start to the last step of each denoising loop.
    """
    attributes: dict[str, AttributeValue] = {semconv.DENOISE_RAN: steps}
    if steps and denoising > 0:
        attributes[semconv.DENOISE_RATE] = steps / denoising
    if len(blocks) > 1:
        attributes[semconv.DENOISE_BLOCKS] = len(blocks)
        if blocks[0] > 0:
            attributes |= {semconv.BLOCKS_PER_SECOND: len(blocks) / blocks[-1], semconv.TIME_TO_FIRST_BLOCK: blocks[0]}
    if failure is None:
        latent = arguments.get("output_type") == "latent"
        if isinstance(result, tuple) and not hasattr(result, "images") and result:
            # With return_dict=False; what it is, the arguments tell.
            name = "frames" if "num_frames" in arguments else "images"
            attributes |= (_frames if name == "frames" else _images)(result[0], seconds, latent=latent)
        elif (videos := getattr(result, "frames", None)) is not None:
            attributes |= _frames(videos, seconds, latent=latent)
        elif (images := getattr(result, "images", None)) is not None:
            attributes |= _images(images, seconds, latent=latent)
        elif count := _counted(getattr(result, "audios", None)):
            attributes[semconv.OUTPUT_AUDIOS] = count
    return Outcome(failure=failure, rows=_prompts(arguments), unseen_steps=None, attributes=attributes)
