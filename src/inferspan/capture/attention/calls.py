"""Calls of attention functions -> what they computed, as ``Scores``.

In: arguments of ``scaled_dot_product_attention`` of torch, or of an attention function of transformers. Out: the scores, or why there are
none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from inferspan.guard import read_attribute

from .scores import Scores

__all__ = ["of_interface", "of_torch", "part"]

_TORCH = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
_INTERFACE = ("module", "query", "key", "value", "attention_mask")
_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens_q", "cu_seqlens")
MOST_MASK = 1 << 26
"""Values of a mask that is made from a function."""


def part(names: Sequence[str], name: str, args: Sequence[Any], kwargs: Mapping[str, Any], default: Any = None) -> Any:
    """An argument by name, wherever it stands."""
    place = names.index(name)
    return args[place] if len(args) > place else kwargs.get(name, default)


def of_torch(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Scores | str:
    """Scores of a call of ``scaled_dot_product_attention``."""
    query, key, mask, causal, scale = (part(_TORCH, name, args, kwargs) for name in ("query", "key", "attn_mask", "is_causal", "scale"))
    if not isinstance(query, Tensor) or not isinstance(key, Tensor) or not isinstance(mask, Tensor | None):
        return "kind of tensor"
    return Scores(query, key, scale, mask, causal=bool(causal))


def of_interface(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Scores | str:
    """Scores of a call of an attention function that transformers knows by ``name``."""
    module, query, key, mask = (part(_INTERFACE, one, args, kwargs) for one in ("module", "query", "key", "attention_mask"))
    if not isinstance(query, Tensor) or not isinstance(key, Tensor):
        return "kind of tensor"
    if any(kwargs.get(one) is not None for one in _PACKED):
        return "packed sequences"
    causal = kwargs.get("is_causal")
    causal = bool(read_attribute(module, "is_causal", True) if causal is None else causal)
    # Functions of flash attention, and those that a program has registered, get a mask of keys, or none, and hide later keys themselves.
    flash = name not in ("sdpa", "flex_attention") and (not isinstance(mask, Tensor) or mask.dim() == 2)
    scores = Scores(
        query, key, kwargs.get("scaling"), softcap=kwargs.get("softcap"), bias=kwargs.get("position_bias"), sinks=kwargs.get("s_aux")
    )
    if mask is not None and type(mask).__name__ == "BlockMask":
        return _with_block_mask(scores, mask)
    if mask is not None and not isinstance(mask, Tensor):
        return "kind of mask"
    if mask is not None and mask.dim() == 2:
        if mask.shape[-1] < key.shape[2]:
            return "kind of mask"
        mask = mask[:, None, None, -key.shape[2] :].bool()
    elif mask is not None and name == "flex_attention" and mask.dim() == 4:
        mask = mask[:, :1]
    scores.mask = mask
    window = kwargs.get("sliding_window")
    if flash:
        scores.causal, scores.from_end = causal, True
        scores.window = int(window) if window else None
    else:
        scores.causal = causal and mask is None and query.shape[2] > 1 and name != "flex_attention"
    return scores


def _with_block_mask(scores: Scores, block: Any) -> Scores | str:
    """The scores with the mask of flex attention, which is a function of indices."""
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    batch, heads, queries, keys = scores.shape
    if flex is None or batch * queries * keys > MOST_MASK:
        return "kind of mask"
    number = heads if block.kv_num_blocks.shape[1] > 1 else 1
    scores.mask = flex.create_mask(block.mask_mod, batch, number, queries, keys, device=str(scores.query.device))
    return scores
