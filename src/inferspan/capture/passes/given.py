"""Facts of a plain forward pass that follow from its arguments and its model: modalities, and what is not observed.

In: arguments. Out: plain values; what is not known is empty or ``None``. Nothing is read from a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from inferspan.capture.generate.arguments import feature_modalities
from inferspan.capture.generate.modalities import given_modalities, placeholders
from inferspan.capture.modules.hooks import STAGES_COMPILED
from inferspan.capture.owner import Owner
from inferspan.capture.signatures import positional_names

__all__ = ["Given", "given_of", "unobserved_of"]

_NO_TOKENS: Mapping[str, int] = MappingProxyType({})


class Given(NamedTuple):
    """What a pass of a model was given that takes more than text."""

    modalities: Sequence[str] = ()
    tokens: Mapping[str, int] = _NO_TOKENS
    """Positions of the ids that stand for images or sound, by modality; empty on a device other than the CPU."""


def given_of(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Given:
    """The modalities of the arguments of ``forward``; none if embeddings went in, which do not tell what they stand for."""
    named = {**dict(zip(positional_names(type(model)), args, strict=False)), **kwargs}
    if any(named.get(name) is not None for name in ("inputs_embeds", "encoder_outputs", "mm_encoder_outputs")):
        return Given()
    ids = named.get("input_ids")
    has_ids = isinstance(ids, Tensor) and not ids.is_floating_point()
    tokens = placeholders(model, ids, named.get("attention_mask")) if isinstance(ids, Tensor) else {}
    return Given(given_modalities(feature_modalities(named), {}, tokens=has_ids), tokens)


def unobserved_of(owner: Owner, *, compiled: bool) -> list[str]:
    """The parts of a pass that were not observed, and the reasons.

    Args:
        owner: the instrumentation of the model.
        compiled: whether Dynamo evaluates the frames of the pass.
    """
    engine = owner.engine
    reasons = [owner.unobserved] if owner.unobserved else []
    if compiled and engine.expected:
        reasons = ["modules: compiled"]
    if compiled and engine.has_stages:
        reasons = [*(["modules: compiled"] if engine.expected else []), STAGES_COMPILED]
    return reasons
