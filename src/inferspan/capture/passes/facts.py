"""Facts of one forward pass, from its arguments and its output; nothing here waits for a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from inferspan import semconv
from inferspan.capture.logits.heads import Masks, choices, masks_of, reads
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.logits.statistics import attributes as logit_attributes
from inferspan.capture.logits.statistics import whole_logits
from inferspan.capture.modules.shapes import Described, describe
from inferspan.capture.owner import Owner
from inferspan.guard import contain
from inferspan.records import AttributeValue

__all__ = ["PassInput", "attended", "embedding", "logit_facts", "look_at_input", "nonfinite_of"]


class PassInput(NamedTuple):
    """Facts of the arguments of a pass."""

    described: Described
    """Shapes and dtypes."""
    rows: int | None
    """Sequences or items; ``None`` if not known."""
    tokens: int | None
    """Input tokens without padding; ``None`` if not known or not asked for."""
    masks: Masks
    """Inputs that determine the positions of the logits; none if no statistics of them are wanted."""


def look_at_input(
    owner: Owner, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, recording: bool, counting: bool, is_forward: bool = True
) -> PassInput:
    """Take the facts of a pass from its arguments.

    Args:
        owner: instrumentation of the model.
        args: positional arguments.
        kwargs: keyword arguments.
        recording: whether the request is recorded.
        counting: whether its tokens are counted.
        is_forward: whether these are arguments of ``forward``; those of another method are only described.
    """
    described = describe((*args[:8], *kwargs.values())) if kwargs else describe(args)
    rows = tokens = None
    masks: Masks = (None, None)
    if is_forward:
        rows = owner.batch_rows(args, kwargs)
        if rows is None and args and isinstance(args[0], Mapping):
            # Sentence encoders take one mapping instead of keyword arguments.
            rows = owner.batch_rows((), args[0])
        if recording and owner.settings.logits:
            with contain("logit statistics"):
                masks = masks_of(owner.model, args, kwargs)
        if counting:
            with contain("counting input tokens"):
                tokens = attended(args, kwargs)
    return PassInput(described, rows, tokens, masks)


def embedding(output: Any, outputs: Described) -> Described:
    """Shape and dtype of the embeddings; sentence encoders return them beside their inputs."""
    found = dict.get(output, "sentence_embedding") if isinstance(output, dict) else None
    return describe(found) if isinstance(found, Tensor) else outputs


def attended(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """Input tokens of an embedding model without padding; ``None`` where counting would read from the device."""
    # Sentence encoders take one mapping instead of keyword arguments.
    given: Mapping[str, Any] = args[0] if args and isinstance(args[0], Mapping) else kwargs
    ids = given.get("input_ids", args[0] if args else None)
    mask = given.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return int(mask.sum()) if mask.device.type == "cpu" else None
    return int(ids.numel()) if mask is None and isinstance(ids, Tensor) and ids.dim() == 2 and not ids.is_floating_point() else None


def logit_facts(output: Any, owner: Owner, masks: Masks) -> tuple[dict[str, AttributeValue], bool]:
    """Statistics of the logits that choose the next token or a class, on CPU only.

    Args:
        output: of the pass.
        owner: instrumentation of the model.
        masks: what the positions of the logits depend on.

    Returns:
        Attributes, empty without logits; and whether the logits were parts of sharded ones.
    """
    logits = dict.get(output, "logits") if isinstance(output, dict) else None
    if logits is None:
        return {}, False
    with contain("logit statistics"):
        whole = whole_logits(logits, vocabulary=owner.sharded_vocabulary())
        rows = choices(whole, output, owner.model, masks) if reads(whole) and isinstance(whole, Tensor) else None
        if rows is None:
            return {}, whole is None
        ring = LogitRing(top_k=0, capacity=1)
        ring.append(rows, None)
        steps = ring.read()
        return logit_attributes(steps[0], content=False, decode=None) if steps else {}, False
    return {}, False


def nonfinite_of(attributes: Mapping[str, AttributeValue]) -> dict[tuple[str, str], int]:
    """Numbers of NaN and Inf among the logits, by place and kind, from the attributes of their statistics."""
    found: dict[tuple[str, str], int] = {}
    for kind, key in (("nan", semconv.LOGITS_NAN_COUNT), ("inf", semconv.LOGITS_INF_COUNT)):
        count = attributes.get(key)
        if isinstance(count, int) and count:
            found["logits", kind] = count
    return found
