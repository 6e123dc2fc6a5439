"""Arguments of transformers' methods under names of their own: the one file that knows positions and keywords.

In: arguments of a wrapped method. Out: plain values; ``None`` for an argument that was not given.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from inferspan.capture.adapters import call_adapters
from inferspan.guard import read_attribute, read_attributes

__all__ = [
    "Arguments",
    "PassEnd",
    "drafts_tokens",
    "feature_modalities",
    "features_of",
    "generate_arguments",
    "loop_config",
    "main_input",
    "pass_end",
]

_MEDIA = ("pixel_values", "input_features", "input_values", "pixel_values_videos", "audio_values")
_FEATURES = {
    "pixel_values_videos": "video",
    **dict.fromkeys(("pixel_values", "image_pixel_values", "flattened_patches"), "image"),
    **dict.fromkeys(("input_features", "input_values", "audio_values", "audio_input_features"), "audio"),
}
"""Modality of an argument by how its name begins; the first that fits counts."""
_TEXTS = frozenset({"input_ids", "inputs_embeds"})
_ROWS = ("inputs", "input_ids", "inputs_embeds", "input_features", "pixel_values", "input_values")
"""Arguments whose first axis is the batch."""
_MAIN_INPUTS = ("decoder_input_ids", "input_ids", "decoder_inputs_embeds", "inputs_embeds")
_DRAFTING = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp", "speculation_type")
"""Settings of the generation configuration by which tokens are drafted without a draft model."""
_get: Callable[[Any, str], Any] = dict.get
"""The base class's own: a subclass may have put side effects into its overrides."""


class Arguments(NamedTuple):
    """The arguments of a ``generate()`` that telemetry reads."""

    inputs: Any = None
    input_ids: Any = None
    inputs_embeds: Any = None
    attention_mask: Any = None
    encoded: Tensor | None = None
    """Hidden states of an encoder, [rows, width, hidden], that the caller ran beforehand."""
    caches: tuple[Any, ...] = ()
    """Caches of keys and values from earlier calls."""
    streamed: bool = False
    streamer: Callable[[], Any] | None = None
    """Returns the streamer while it lives."""
    seed: Any = None
    assisted: bool = False
    """Whether a draft model goes along."""
    media: bool = False
    """Whether images, sound or video go in."""
    features: frozenset[str] = frozenset()
    """Modalities that features were passed of."""
    rows: int | None = None
    """First axis of the model's input."""
    adapters: tuple[str, ...] | None = None
    """Adapters that the caller has chosen row by row; ``None`` for those that are active."""
    names: frozenset[str] = frozenset()
    """Names of the keyword arguments."""


class PassEnd(NamedTuple):
    """Facts of a forward pass that has returned."""

    outputs: bool
    """Whether the pass has returned a mapping of outputs."""
    attention_mask: Any
    new_tokens: Any
    """Number of tokens that the pass has accepted, if the loop counts them."""


def generate_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments of ``generate(inputs, generation_config, ...)``."""
    inputs = kwargs.get("inputs", args[0] if args else None)
    rows = None
    for name in _ROWS:
        value = inputs if name == "inputs" else kwargs.get(name)
        if isinstance(value, Tensor) and value.dim():
            rows = int(value.shape[0])
            break
    return Arguments(
        inputs=inputs,
        input_ids=kwargs.get("input_ids"),
        inputs_embeds=kwargs.get("inputs_embeds"),
        attention_mask=kwargs.get("attention_mask"),
        encoded=_encoded(kwargs.get("encoder_outputs")),
        caches=(kwargs.get("cache"), kwargs.get("past_key_values")),
        streamed=kwargs.get("streamer") is not None,
        streamer=_weakly(kwargs.get("streamer")),
        seed=kwargs.get("seed"),
        assisted=kwargs.get("assistant_model") is not None,
        media=any(kwargs.get(name) is not None for name in _MEDIA),
        features=feature_modalities(kwargs),
        rows=rows,
        adapters=call_adapters(kwargs),
        names=frozenset(kwargs),
    )


def _encoded(outputs: Any) -> Tensor | None:
    """The hidden states among the outputs of an encoder, taken before the call: transformers widens that object in place for beams."""
    if isinstance(outputs, dict):
        outputs = _get(outputs, "last_hidden_state")
    elif isinstance(outputs, tuple | list) and outputs:
        outputs = outputs[0]
    return outputs if isinstance(outputs, Tensor) else None


def _weakly(item: Any) -> Callable[[], Any] | None:
    try:
        return None if item is None else weakref.ref(item)
    except TypeError:
        return None


def feature_modalities(kwargs: Mapping[str, Any]) -> frozenset[str]:
    """Modalities of the features among arguments."""
    return frozenset(_features(kwargs))


def _features(kwargs: Mapping[str, Any]) -> Iterator[str]:
    for key, value in kwargs.items():
        kind = next((kind for start, kind in _FEATURES.items() if key.startswith(start)), None)
        if kind is not None and isinstance(value, Tensor):
            yield kind


def features_of(arguments: Arguments, model: Any) -> Arguments:
    """``arguments`` adapted to the main input of ``model``: of a speech or vision model ``inputs`` are features, not tokens."""
    name = read_attribute(model, "main_input_name")
    if not isinstance(name, str) or name in _TEXTS:
        return arguments
    kind = next((kind for start, kind in _FEATURES.items() if name.startswith(start)), None)
    if kind is None:
        is_features = isinstance(arguments.inputs, Tensor) and arguments.inputs.is_floating_point()
        return arguments._replace(media=True) if is_features or name in arguments.names else arguments
    given = arguments.features | ({kind} if isinstance(arguments.inputs, Tensor) else set())
    return arguments._replace(media=True, features=given)


def loop_config(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The final configuration, which ``_get_stopping_criteria(generation_config, ...)`` is called with."""
    return kwargs.get("generation_config", args[0] if args else None)


def drafts_tokens(config: Any) -> bool:
    """Whether a final configuration says that tokens are drafted and then verified; a draft model is an argument of its own."""
    return any(read_attributes(config, *_DRAFTING))


def main_input(inputs: Any) -> tuple[str | None, Any]:
    """Among the inputs of a forward pass the tensor whose second dimension is that of the positions, with its name."""
    if isinstance(inputs, dict):
        for name in _MAIN_INPUTS:
            value = inputs.get(name)
            if isinstance(value, Tensor) and value.dim() >= 2:
                return name, value
    return None, None


def pass_end(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PassEnd:
    """The arguments of ``_update_model_kwargs_for_generation(outputs, model_kwargs, is_encoder_decoder, num_new_tokens)``."""
    outputs = args[0] if args else kwargs.get("outputs")
    model_kwargs = args[1] if len(args) > 1 else kwargs.get("model_kwargs")
    mask = model_kwargs.get("attention_mask") if isinstance(model_kwargs, dict) else None
    return PassEnd(isinstance(outputs, dict), mask, kwargs.get("num_new_tokens", args[3] if len(args) > 3 else None))
