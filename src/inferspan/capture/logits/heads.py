"""Which logits of a plain forward pass choose something: the next token or a class.

In: the logits that a model returned and what it was called with. Out: the rows ``[n, classes]`` whose softmax is the distribution of a
choice, or ``None`` where there is none or it is not known: a single score, independent labels, a label for each position, queries of a
detector, rows whose last real position cannot be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from inferspan.capture.signatures import positional_names
from inferspan.guard import ask, read_attribute

__all__ = ["Masks", "choices", "masks_of", "reads"]

_NO_CHOICE = frozenset({"regression", "multi_label_classification"})
"""Kinds of problem, as configurations of transformers name them, whose scores do not exclude each other."""

Masks = tuple[Any, Any]
"""Mask of the (decoder's) positions, and their ids or else the first tensor, as the model was given them."""


def _is_seq2seq(model: object) -> bool:
    return bool(read_attribute(read_attribute(model, "config"), "is_encoder_decoder", False))


def masks_of(model: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Masks:
    """The masks that tell the last real position of each row, whichever way they were passed."""
    given = dict(zip(positional_names(type(model)), args, strict=False)) | dict(kwargs) if args else kwargs
    prefix = "decoder_" if _is_seq2seq(model) else ""
    mask, ids = given.get(f"{prefix}attention_mask"), given.get(f"{prefix}input_ids")
    labels = given.get("labels")
    if mask is None and prefix and isinstance(labels, Tensor):
        # The decoder's input is made of them; what does not count for the loss is padding.
        mask = labels != -100
    if ids is None:
        ids = next((value for value in given.values() if isinstance(value, Tensor)), None)
    return mask, ids


def _generates(model: object) -> bool:
    """Whether the logits of a position are those of the token after it."""
    return bool(ask(model, "can_generate"))


def choices(logits: Tensor, model: object, masks: Masks) -> Tensor | None:
    """The rows of ``logits`` that choose a token or class.

    Args:
        logits: ``[rows, classes]`` or ``[rows, positions, classes]``.
        model: that returned them.
        masks: see ``masks_of``.
    """
    problem = read_attribute(read_attribute(model, "config"), "problem_type")
    if logits.dim() not in (2, 3) or logits.shape[-1] < 2 or problem in _NO_CHOICE:
        return None
    if logits.dim() == 2:
        return logits
    mask, ids = masks
    if not _generates(model):
        # A model of the user's own: one position of logits for each that went in.
        own = not callable(read_attribute(model, "can_generate"))
        if not (own and isinstance(ids, Tensor) and ids.shape == logits.shape[:2]):
            return None
    if mask is None:
        mask = _not_padding(logits, model, ids)
    return logits[:, -1] if mask is None else _last_real(logits, mask)


def _not_padding(logits: Tensor, model: object, ids: object) -> Tensor | None:
    """Which of the ids are none of padding, if the model has an id for that and for nothing else."""
    config = read_attribute(model, "config")
    pad, eos = read_attribute(config, "pad_token_id"), read_attribute(config, "eos_token_id")
    if not isinstance(pad, int) or pad in (eos if isinstance(eos, list) else [eos]):
        return None
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point() or ids.shape[0] != logits.shape[0]:
        return None
    return ids != pad if ids.device == logits.device else None


def _last_real(logits: Tensor, mask: object) -> Tensor | None:
    """The logits at the last position of each row that is no padding; rows of nothing else have none."""
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[0] != logits.shape[0] or mask.device != logits.device:
        return None
    positions = logits.shape[1]
    real = mask != 0
    if mask.shape[1] < positions:
        return None
    full = real[:, -1]
    if bool(full.all()):
        return logits[:, -1]
    if mask.shape[1] > positions:
        # The mask covers a cache as well, or the logits only the last positions: those stand at its end.
        real = real[:, -positions:]
        if not bool(real.any(1).all()):
            return None
    rows = real.any(1).nonzero()[:, 0]
    if not len(rows):
        return None
    last = positions - 1 - real.flip(1).int().argmax(1)
    return logits[rows, last[rows]]


def reads(logits: object) -> bool:
    """Whether statistics of a plain pass are taken of such logits: on a device, reading them would make the pass wait."""
    if type(logits) is not Tensor or logits.device.type != "cpu" or not logits.is_floating_point() or logits.layout is not torch.strided:
        return False
    return logits.dim() in (2, 3) and not logits.is_nested and 0 not in logits.shape and logits.element_size() >= 2
