"""Modalities of the tokens of a request (text, images, audio), and the prompt tokens that were in a cache already.

Multimodal models of transformers put a placeholder token into the prompt for every image or audio position, so the ids tell the split.
It is given only where it adds up: a model without such a token, a video, features without placeholders or a prompt of embeddings leave
the tokens in one number of unknown modality. The ids are read once, in one host read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inferspan.guard import read_attribute

from .tokens import Loop

__all__ = ["Modalities", "given_modalities", "makes_media", "modalities", "placeholders", "takes_modalities"]

_PLACEHOLDERS = {kind: (f"{kind}_token_id", f"{kind}_token_index") for kind in ("image", "audio", "video")}
"""Attributes of configurations that hold the id of a placeholder."""
_PARTS = {"image": "vision_config", "audio": "audio_config"}
"""Attributes of a configuration whose model takes the modality; for versions of transformers whose models do not name theirs."""
_KNOWN = ("text", "image", "audio")
_ORDER = ("text", "image", "audio", "video")


class Modalities(NamedTuple):
    """Tokens by modality. An empty mapping is "not known", for ``cached`` also "none"."""

    given: Mapping[str, int]
    """Of the prompt; adds up to its tokens."""
    cached: Mapping[str, int]
    """Those of the prompt that were in the cache that the caller passed in."""
    generated: str
    """Modality of all generated tokens."""


def _listed(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value) else ()


def _taken(model: Any, *, text_only: bool = False) -> set[str]:
    """Modalities other than text that a model takes; ``text_only``: whether its configuration is known to name none."""
    told = set(_listed(read_attribute(model, "input_modalities"))) - {"text"}
    if text_only:
        return told
    config = read_attribute(model, "config")
    return told | {kind for kind, part in _PARTS.items() if read_attribute(config, part) is not None}


def _generated(model: Any, *, text_only: bool) -> str:
    kinds = _listed(read_attribute(model, "output_modalities"))
    if not kinds:
        return "text" if text_only else "unknown"
    return kinds[0] if len(kinds) == 1 and kinds[0] in _KNOWN else "unknown"


def makes_media(model: Any) -> bool:
    """Whether a model says that it generates something else than text, such as music."""
    kinds = _listed(read_attribute(model, "output_modalities"))
    return bool(kinds) and "text" not in kinds


def takes_modalities(model: Any) -> list[str]:
    """The modalities that a model takes, in a fixed order; empty if it takes text only, or says nothing."""
    media = _taken(model)
    told = _listed(read_attribute(model, "input_modalities"))
    text = {"text"} if "text" in told or not told else set()
    return [kind for kind in _ORDER if kind in media | text] if media else []


def _tokens(model: Any) -> dict[str, int]:
    """Id of the placeholder of each modality that the configuration has one for."""
    config = read_attribute(model, "config")
    found = {kind: [read_attribute(config, name) for name in names] for kind, names in _PLACEHOLDERS.items()}
    return {kind: values[0] for kind, each in found.items() if (values := [value for value in each if type(value) is int])}


def _attended(mask: Any, loop: Loop | None, rows: int) -> Tensor | None:
    """[rows, width], true where a position of the prompt counts; ``None`` if all of them do."""
    if mask is None and loop is not None and isinstance(loop.attention_mask, Tensor):
        mask = loop.attention_mask
        if mask.dim() == 2 and mask.shape[0] % rows == 0:
            mask = mask[:: mask.shape[0] // rows]
    return mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[0] == rows else None


def _counts(
    ids: Tensor | None, attended: Tensor | None, tokens: Mapping[str, int], *, rows: int, reused: int
) -> dict[str, tuple[int, int]]:
    """Of each placeholder, and of ``all`` positions, how many there are in the prompt and how many in its first ``reused`` positions."""
    parts: list[Tensor] = []
    names: list[str] = []
    if attended is not None:
        names.append("all")
        parts += [attended.sum(), attended[:, :reused].sum()]
    if ids is not None:
        # A mask of another width belongs to a cache whose ids were not passed again.
        fits = attended is None or attended.shape == ids.shape
        for kind, token in tokens.items() if fits else ():
            here = ids == token
            here = here if attended is None else here & attended.to(here.device)
            names.append(kind)
            parts += [here.sum(), here[:, :reused].sum()]
    numbers = torch.stack([part.to(parts[0].device) for part in parts]).tolist() if parts else []
    counts = dict(zip(names, zip(numbers[::2], numbers[1::2], strict=True), strict=True))
    if attended is None:
        width = reused if ids is None else int(ids.shape[1])
        counts["all"] = (width * rows, min(reused, width) * rows)
    return counts


def _split(whole: int, counts: Mapping[str, tuple[int, int]], place: int) -> dict[str, int]:
    parts = {kind: pair[place] for kind, pair in counts.items() if kind in _KNOWN}
    split = {"text": whole - sum(parts.values()), **parts}
    return {kind: number for kind, number in split.items() if number}


def modalities(
    model: Any,
    features: frozenset[str],
    mask: Any,
    *,
    text_only: bool,
    ids: Tensor | None,
    rows: Sequence[int] | None,
    loop: Loop | None,
    reused: int | None,
) -> Modalities:
    """The modalities of a request's tokens.

    Args:
        model: that generates.
        features: modalities that the caller passed features of.
        mask: attention mask of the caller, or ``None``.
        text_only: whether the configuration names no other input.
        ids: [rows, width] ids of the prompt, or ``None``.
        rows: tokens of each row of the prompt as they were counted, or ``None``.
        loop: the loop that was seen, whose mask counts where the caller passed none.
        reused: positions of a row that were in the cache already.
    """
    generated = _generated(model, text_only=text_only)
    taken = _taken(model, text_only=text_only) if rows else set()
    if reused and read_attribute(read_attribute(model, "config"), "is_encoder_decoder", False):
        reused = 0  # such a cache holds the decoder's tokens, which are no prompt
    reused = reused or 0
    if not rows or not (taken or reused):
        return Modalities({}, {}, generated)
    tokens = _tokens(model) if taken else {}
    attended = _attended(mask, loop, len(rows))
    counts = _counts(ids, attended, tokens, rows=len(rows), reused=reused)
    whole = sum(rows)
    placed = {kind for kind in tokens if counts.get(kind, (0, 0))[0]}
    complete = ids is not None and taken - {"video"} <= counts.keys() and counts["all"][0] == whole
    known = not taken or (complete and "video" not in placed and features <= placed)
    cached = min(counts["all"][1], whole)
    if not known:
        return Modalities({"unknown": whole}, {"unknown": cached} if cached else {}, generated)
    return Modalities(_split(whole, counts, 0), _split(cached, counts, 1) if cached else {}, generated)


def given_modalities(features: Set[str], split: Mapping[str, int], *, tokens: bool) -> Sequence[str]:
    """The modalities that a request had, in a fixed order.

    Args:
        features: modalities that the caller passed features of.
        split: input tokens by modality, as far as they are known.
        tokens: whether the caller passed token ids.
    """
    known = {kind for kind in split if kind in _ORDER}
    text = {"text"} if tokens and not known else set()
    return [kind for kind in _ORDER if kind in (features | known | text)]


def placeholders(model: Any, ids: Tensor, mask: Any) -> dict[str, int]:
    """Tokens of each modality in the ids of a plain forward pass, on the host only: nothing waits for a device."""
    if ids.device.type != "cpu" or ids.is_floating_point() or ids.dim() != 2:
        return {}
    attended = mask.bool() if isinstance(mask, Tensor) and mask.shape == ids.shape and mask.device.type == "cpu" else None
    counts = _counts(ids, attended, _tokens(model), rows=int(ids.shape[0]), reused=0)
    return {kind: pair[0] for kind, pair in counts.items() if kind != "all" and pair[0]}
