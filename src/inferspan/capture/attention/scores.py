"""Attention weights again, from what a fused kernel was given.

In: queries, keys, mask and options of one call. Out: weights of some of its queries, without dropout. Nothing here waits for the device or
writes to a tensor of the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inferspan.capture.modules.device_rows import is_plain

__all__ = ["Scores", "allowed_rows", "masked", "no_autocast"]


def no_autocast(tensor: Tensor) -> Any:
    """A context without autocast, which would change the dtype of the products."""
    return torch.autocast(tensor.device.type, enabled=False)


def masked(mask: Tensor) -> Tensor:
    """Where a mask forbids a key: false of a boolean one, at least half of the lowest value of a number's dtype otherwise."""
    return ~mask if mask.dtype is torch.bool else mask <= torch.finfo(mask.dtype).min / 2


def allowed_rows(mask: Tensor, keys: int) -> Tensor:
    """Queries that may see some key, of a mask ``[batch or 1, heads or 1, queries or 1, at least keys]``, without the last dimension."""
    return (~masked(mask[..., :keys])).any(-1)


@dataclass
class Scores:
    """What one call of attention was given.

    Attributes:
        query: ``[batch, heads, queries, width]``.
        key: ``[batch, key heads, keys, width]``; each of its heads serves as many query heads.
        scale: of the products; ``None`` is one over the root of the width.
        mask: boolean (true is allowed) or added to the products, and broadcast to ``[batch, heads, queries, keys]``.
        causal: whether later keys are hidden; the first query is the first key then, or with ``from_end`` the last is the last.
        from_end: see ``causal``.
        window: keys that a query sees, itself among them.
        softcap: of the products.
        bias: added to the products.
        sinks: logits ``[heads]`` that take part in the softmax without a key.
    """

    query: Tensor
    key: Tensor
    scale: float | None = None
    mask: Tensor | None = None
    causal: bool = False
    from_end: bool = False
    window: int | None = None
    softcap: float | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None

    def refusal(self) -> str | None:
        """Why the weights cannot be computed; ``None`` if they can."""
        query, key = self.query, self.key
        if not (is_plain(query) and is_plain(key)):
            return "kind of tensor"
        if query.dim() != 4 or key.dim() != 4 or query.shape[-1] != key.shape[-1] or not key.shape[1] or query.shape[1] % key.shape[1]:
            return "shape"
        if key.shape[0] not in (1, query.shape[0]) or not query.numel() or not key.numel():
            return "shape"
        others = [one for one in (self.bias, self.sinks) if one is not None]
        if self.mask is not None and self.mask.dtype is not torch.bool:
            others.append(self.mask)
        if not all(is_plain(one) for one in others):
            return "kind of mask"
        return "kind of mask" if self.mask is not None and type(self.mask) is not Tensor else None

    def choose(self, heads: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Compute these heads only, as far as there are such; which these are, ``None`` for all."""
        if heads is None:
            return None
        number = self.query.shape[1]
        chosen = [head for head in heads if head < number]
        groups = number // self.key.shape[1]
        self.query = torch.stack([self.query[:, head] for head in chosen], 1) if chosen else self.query[:, :0]
        self.key = torch.stack([self.key[:, head // groups] for head in chosen], 1) if chosen else self.key[:, :0]
        self.mask, self.bias = (self._of_heads(one, chosen) for one in (self.mask, self.bias))
        if self.sinks is not None and chosen:
            self.sinks = torch.stack([self.sinks.reshape(-1)[head] for head in chosen])
        return tuple(chosen)

    @staticmethod
    def _of_heads(tensor: Tensor | None, heads: list[int]) -> Tensor | None:
        if tensor is None or tensor.dim() < 3 or tensor.shape[-3] == 1 or not heads:
            return tensor
        return torch.stack([tensor.select(-3, head) for head in heads], -3)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the weights: batch, heads, queries, keys."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    def weights(self, rows: slice, queries: slice) -> Tensor:
        """Weights of some sequences and queries, float32, or float64 where the queries are; 0 for a query that sees no key."""
        batch, heads, length, keys = self.shape
        dtype = torch.float64 if self.query.dtype is torch.float64 else torch.float32
        query = self.query[rows, :, queries].to(dtype)
        key = (self.key[rows] if self.key.shape[0] == batch else self.key).to(dtype).transpose(-1, -2)
        some, _, number, width = query.shape
        groups = heads // self.key.shape[1]
        if groups > 1:
            scores = torch.matmul(query.reshape(some, -1, groups * number, width), key).reshape(some, heads, number, keys)
        else:
            scores = torch.matmul(query, key)
        scores = scores * (1 / math.sqrt(width) if self.scale is None else self.scale)
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        for added in (self.bias, None if self.mask is None or self.mask.dtype is torch.bool else self.mask):
            if added is not None:
                scores = scores + self._part(added, rows, queries, batch, length)[..., :keys].to(dtype)
        hidden = self._hidden(rows, queries)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
            none = hidden.all(-1, keepdim=True)
        if self.sinks is not None:
            sinks = self.sinks.reshape(1, -1, 1, 1).to(dtype).expand(some, heads, number, 1)
            found = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
        else:
            found = torch.softmax(scores, -1)
        return found if hidden is None else found.masked_fill(none, 0.0)

    @staticmethod
    def _part(tensor: Tensor, rows: slice, queries: slice, batch: int, length: int) -> Tensor:
        """The part of a tensor that is broadcast to the scores."""
        while tensor.dim() < 4:
            tensor = tensor.unsqueeze(0)
        if tensor.shape[0] == batch:
            tensor = tensor[rows]
        return tensor[:, :, queries] if tensor.shape[2] == length else tensor

    def _hidden(self, rows: slice, queries: slice) -> Tensor | None:
        """Keys that queries do not see; ``None`` if they see all."""
        batch, _, length, keys = self.shape
        hidden = None
        if self.mask is not None:
            hidden = masked(self._part(self.mask, rows, queries, batch, length)[..., :keys])
        if not self.causal and self.window is None:
            return hidden
        device = self.query.device
        shift = keys - length if self.from_end else 0
        at = torch.arange(length, device=device)[queries].unsqueeze(1) + shift
        keys_at = torch.arange(keys, device=device)
        if self.causal:
            later = keys_at > at
            hidden = later if hidden is None else hidden | later
        if self.window is not None:
            far = keys_at <= at - self.window
            if not self.causal:
                far = far | (keys_at >= at + self.window)
            hidden = far if hidden is None else hidden | far
        return hidden
