"""Facts of a plain forward pass that follow from its arguments and its output: input tokens, modalities, embeddings, logits.

In: arguments and output. Out: plain values; what is not known is empty or ``None``. Nothing is read from a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from inferspan.capture.generate.arguments import feature_modalities
from inferspan.capture.generate.modalities import given_modalities, placeholders
from inferspan.capture.logits.heads import Masks, choices, reads
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.logits.statistics import attributes as logit_attributes
from inferspan.capture.modules.hooks import STAGES_COMPILED
from inferspan.capture.modules.shapes import Described, describe
from inferspan.records import AttributeValue

from .owner import Owner
from .signatures import positional_names

__all__ = ["Given", "attended_tokens", "embedding_of", "given_of", "statistics_of", "unobserved_of"]

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


def embedding_of(output: Any, outputs: Described) -> Described:
    """Shape and dtype of the embeddings; sentence encoders return them beside their inputs."""
    found = dict.get(output, "sentence_embedding") if isinstance(output, dict) else None
    return describe(found) if isinstance(found, Tensor) else outputs


def attended_tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """Input tokens of an embedding model without padding; ``None`` where counting would read from the device."""
    # Sentence encoders take one mapping instead of keyword arguments.
    given: Mapping[str, Any] = args[0] if args and isinstance(args[0], Mapping) else kwargs
    ids = given.get("input_ids", args[0] if args else None)
    mask = given.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return int(mask.sum()) if mask.device.type == "cpu" else None
    return int(ids.numel()) if mask is None and isinstance(ids, Tensor) and ids.dim() == 2 and not ids.is_floating_point() else None


def statistics_of(logits: object, model: object, masks: Masks) -> dict[str, AttributeValue]:
    """Statistics of the logits that choose the next token or a class, on CPU only."""
    rows = choices(logits, model, masks) if reads(logits) and isinstance(logits, Tensor) else None
    if rows is None:
        return {}
    ring = LogitRing(top_k=0, capacity=1)
    ring.append(rows, None)
    steps = ring.read()
    return logit_attributes(steps[0], content=False, decode=None) if steps else {}
