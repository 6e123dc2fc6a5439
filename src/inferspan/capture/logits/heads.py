"""Which logits of a plain forward pass choose something: the next token or a class.

In: the logits that a model returned and what it was called with. Out: the rows ``[n, classes]`` whose softmax is the distribution of a
choice, or ``None`` where there is none or it is not known: a single score, independent labels, a label or a score for each position,
queries of a detector, an embedding, rows whose last real position cannot be told. What the shapes of input and output and the
configuration tell decides; heads for which these cannot tell are listed by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from inferspan.capture.model_info import unwrapped
from inferspan.capture.signatures import positional_names
from inferspan.guard import ask, read_attribute

__all__ = ["Masks", "choices", "masks_of", "reads"]

_NO_CHOICE = frozenset({"regression", "multi_label_classification"})
"""Kinds of problem, as configurations of transformers name them, whose scores do not exclude each other."""

_NO_CHOICE_HEADS = {
    "ElectraForPreTraining": "whether each token was replaced",
    "FunnelForPreTraining": "whether each token was replaced",
    "TapasForQuestionAnswering": "whether each token is in a cell of the answer",
    "TvpForVideoGrounding": "begin and length of a scene, as shares of the video",
    "ViltForQuestionAnswering": "answers that do not exclude each other: its loss and its pipeline take the sigmoid of each",
}
"""Classes of transformers whose two-dimensional logits are no choice, with what they are. Their shapes may be those of one: as many
positions as the configuration has labels, which are two by default, or independent answers without a ``problem_type``."""
_TOKENS = frozenset({"input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds"})

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
    if not ask(model, "can_generate"):
        return False
    if read_attribute(model, "main_input_name", "input_ids") in _TOKENS:
        return True
    # A recognizer with a CTC loss has the same method, but its positions are frames of the sound: no token goes in.
    names = positional_names(type(_base(model)))
    return not names or not _TOKENS.isdisjoint(names)


def _base(model: object) -> object:
    return unwrapped(model) if isinstance(model, nn.Module) else model


def _of_transformers(model: object) -> bool:
    return callable(read_attribute(model, "can_generate"))


def _is_listed(model: object) -> bool:
    kinds = type(_base(model)).__mro__
    return any(kind.__name__ in _NO_CHOICE_HEADS and kind.__module__.startswith("transformers.") for kind in kinds)


def _is_choice(logits: Tensor, output: dict[str, Any], model: object, ids: object) -> bool:
    """Whether logits ``[rows, classes]`` are scores of classes, one of which is chosen in each row."""
    beside = dict.get(output, "embeddings")
    if isinstance(beside, Tensor) and beside.shape == logits.shape:
        return False  # of a speaker: the states before its last layer go by the name of logits
    if _is_listed(model):
        return False
    if not isinstance(ids, Tensor) or ids.dim() < 2 or ids.is_nested:
        return True
    if _of_transformers(model) and ids.shape[0] != logits.shape[0]:
        return False  # of the masked positions only
    # Ids have two axes and embeddings three; three of ids are those of a multiple choice, which has one score for each of the second.
    positions = ids.dim() == (3 if ids.is_floating_point() else 2) and ids.shape[:2] == logits.shape
    return not positions or read_attribute(read_attribute(model, "config"), "num_labels") == logits.shape[1]


def choices(logits: Tensor, output: dict[str, Any], model: object, masks: Masks) -> Tensor | None:
    """The rows of ``logits`` that choose a token or class.

    Args:
        logits: ``[rows, classes]`` or ``[rows, positions, classes]``.
        output: what they were returned in.
        model: that returned them.
        masks: see ``masks_of``.
    """
    problem = read_attribute(read_attribute(model, "config"), "problem_type")
    if logits.dim() not in (2, 3) or logits.shape[-1] < 2 or problem in _NO_CHOICE:
        return None
    mask, ids = masks
    if logits.dim() == 2:
        return logits if _is_choice(logits, output, model, ids) else None
    # A model of the user's own: one position of logits for each that went in.
    own = not _of_transformers(model) and isinstance(ids, Tensor) and ids.shape == logits.shape[:2]
    if not (own or _generates(model)):
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
