"""Sums and extremes of a row of logits, from which its statistics are computed; taken on the device by torch operations.

In: logits ``[batch, vocabulary]`` and the chosen token ids. Out: rows of float32 that ``finish`` turns into statistics later, in float64
and for many steps at once. ``kernel`` does the same in two launches; both leave the logits, their graph and the random state
alone, and wait for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["COLUMNS", "ENDED", "Statistics", "check", "compute", "finish", "finish_few"]

COLUMNS = 13
"""Columns of a reduced row besides the most likely tokens."""
ENDED = -(1 << 30)
"""Added to the chosen id of a row that has ended: no vocabulary and no padding has such an id, so the mark travels with the row."""
CHUNK = 1 << 24
"""Logits worked on at once, which bounds the temporary memory of a large batch (four float copies of a chunk)."""
INF = math.inf


class Statistics(Protocol):
    """An implementation of ``compute``: same arguments, same columns; the names of the first two may differ."""

    def __call__(self, logits: Tensor, chosen: Tensor | None, /, *, top_k: int, out: Tensor | None = None) -> Tensor:
        """Launch the reductions of ``[B, V]`` logits."""


def check(logits: Tensor) -> None:
    """Refuse a tensor that is no batch of logits.

    Raises:
        ValueError: ``logits`` is not floating point ``[B, V]``, or empty.
    """
    if logits.dim() != 2 or not logits.numel() or not logits.is_floating_point():
        raise ValueError(f"logits must be floating point [batch, vocabulary], not {logits.dtype} {tuple(logits.shape)}")


def compute(logits: Tensor, chosen: Tensor | None, *, top_k: int, out: Tensor | None = None) -> Tensor:
    """Reduce each row to the values of its statistics, in float32 (float64 logits: in float64), without waiting for the device.

    Args:
        logits: ``[B, V]``, any floating dtype. ``-inf`` is a mask; NaN and ``+inf`` are counted and left out of the rest.
        chosen: ``[B]`` ids of the tokens that were taken, or None. Ids outside of the vocabulary (padding) are allowed.
        top_k: how many of the most likely tokens are wanted.
        out: where the result is written; a new tensor by default.

    Returns:
        ``[B, 13 + 2 * top_k]``; m being the largest finite logit and p the softmax over the finite ones: m, second largest, p of m;
        sum of p (x - m); smallest, mean and variance of x - m with 0 for what is not finite; number of not finite, of NaN, of +inf;
        chosen id, chosen logit, number of larger logits (these three NaN without ``chosen``); ids and p of the ``top_k``.
    """
    check(logits)
    with torch.no_grad():
        rows = max(1, CHUNK // logits.shape[1])
        if logits.shape[0] <= rows:
            return _reduce(logits, chosen, top_k, out)
        ids = [None] * -(-logits.shape[0] // rows) if chosen is None else torch.split(chosen, rows)
        return torch.cat([_reduce(part, its, top_k) for part, its in zip(torch.split(logits, rows), ids, strict=True)], out=out)


def _reduce(logits: Tensor, chosen: Tensor | None, top_k: int, out: Tensor | None = None) -> Tensor:
    x = logits if logits.dtype is torch.float64 else logits.float()
    missing = max(2, top_k) - x.shape[1]
    if missing > 0:
        x = torch.cat([x, x.new_full((x.shape[0], missing), -INF)], 1)
    # Asking costs nothing on a CPU, where logits are rarely anything else, and halves the work.
    finite = x.device.type == "cpu" and _is_finite(x)
    low = x if finite else torch.nan_to_num(x, nan=-INF, posinf=-INF, neginf=-INF)
    p = low.softmax(-1)
    likely: list[Tensor] = []
    if top_k:
        values, ids = low.topk(max(2, top_k))
        ids = ids.narrow(1, 0, top_k)
        top, second = values.narrow(1, 0, 1), values.narrow(1, 1, 1)
        likely = [ids.to(x.dtype), p.gather(1, ids)]
        top_p = likely[1].narrow(1, 0, 1)
    else:
        # Three launches instead of the ten or so of topk on CUDA.
        top, ids = low.max(-1, keepdim=True)
        second, top_p = low.scatter(1, ids, -INF).amax(-1, keepdim=True), p.gather(1, ids)
    below = low - top
    if not finite:
        below.nan_to_num_(0.0, 0.0, 0.0)
    columns = [top, second, top_p, p.mul_(below).sum(-1, keepdim=True), below.amin(-1, keepdim=True)]
    mean = below.mean(-1, keepdim=True)
    # Not vector_norm: on a CPU it adds float32 up one by one, while sums and means go in blocks.
    columns += [mean, below.sub_(mean).square_().mean(-1, keepdim=True)]
    # Comparisons go to a float buffer that is no longer needed: far faster to sum on a CPU than booleans, and no new memory.
    if finite:
        columns.append(x.new_zeros((x.shape[0], 3)))
    else:
        columns += [torch.eq(low, -INF, out=p).sum(-1, keepdim=True)]
        columns += [torch.ne(x, x, out=p).sum(-1, keepdim=True)]
        columns += [torch.eq(x, INF, out=p).sum(-1, keepdim=True)]
    if chosen is None or (chosen.device.type != "cpu" and x.device.type == "cpu"):
        columns.append(x.new_full((x.shape[0], 3), math.nan))  # reading an id from a device would wait for it
    else:
        wanted = chosen.to(x.device, non_blocking=True).unsqueeze(-1)
        logit = x.gather(1, wanted.clamp(0, logits.shape[1] - 1).long())  # an older torch gathers by no other type
        columns += [wanted.to(x.dtype), logit, torch.gt(x, logit, out=p).sum(-1, keepdim=True)]
    # All of one dtype: otherwise cat copies one by one.
    return torch.cat([*columns, *likely], 1, out=out)


def _is_finite(x: Tensor) -> bool:
    """Whether all of it is finite, and every difference of two as well; waits for the device."""
    low, high = (extreme.item() for extreme in x.aminmax())
    return bool(high - low <= torch.finfo(x.dtype).max)


def finish(reductions: Tensor, *, vocabulary: int, top_k: int) -> Tensor:
    """Turn what ``compute`` returned into statistics; works on any leading dimensions and device.

    Args:
        reductions: ``[..., 13 + 2 * top_k]``.
        vocabulary: V of the logits.
        top_k: as given to ``compute``.

    Returns:
        ``[..., 12 + 2 * top_k]``: the fields of ``LogitStatistics``, then ids and probabilities of the ``top_k``; NaN is "undefined", and
        all that a row has which had ended before (see ``ENDED``).
    """
    columns, likely = torch.split(reductions, [COLUMNS, 2 * top_k], -1)
    largest, second, top_p, weighted, low, shift, spread, nonfinite, nan_count, inf_count, chosen, logit, larger = columns.unbind(-1)
    width = max(vocabulary, 2, top_k)
    finite = width - nonfinite
    log_top = top_p.log()
    # Mean and variance of x - m were taken over all entries, 0 standing for those that are not finite; take these out again.
    offset = shift * (width / finite)
    variance = (width * spread - nonfinite * shift.square()) / finite - (offset - shift).square()
    known = (chosen >= 0) & (chosen < vocabulary) & ~logit.isnan()
    statistics = [
        0.0 - log_top - weighted,
        largest,
        largest + low,
        largest + offset,
        variance.clamp_min(0.0).sqrt(),
        largest - second,
        top_p,
        torch.where(known, logit - largest + log_top, math.nan),
        torch.where(known, larger + 1, math.nan),
        nan_count,
        inf_count,
        chosen,
    ]
    result = torch.cat([torch.stack(statistics, -1), likely], -1)
    # Not "chosen >= ENDED / 2": an id that is not known is NaN.
    return torch.where(result.isfinite() & ~(chosen < ENDED / 2).unsqueeze(-1), result, math.nan)


def finish_few(values: Sequence[float], *, vocabulary: int, top_k: int) -> list[float] | None:
    """What ``finish`` gives, for a few rows one by one: its thirty operations take as long for one row as for many.

    The logarithms may differ in their last bit.

    Args:
        values: the reductions, row after row.
        vocabulary: V of the logits.
        top_k: as given to ``compute``.

    Returns:
        The statistics; ``None`` if a row is not an ordinary one: it has logits that are not finite, or had ended before.
    """
    found: list[float] = []
    width, step = max(vocabulary, 2, top_k), COLUMNS + 2 * top_k
    for start in range(0, len(values), step):
        largest, second, top_p, weighted, low, shift, spread, nonfinite, _, _, chosen, logit, larger = values[start : start + COLUMNS]
        likely = values[start + COLUMNS : start + step]
        total = sum((largest, second, weighted, low, shift, spread, *likely))
        if nonfinite or chosen < ENDED / 2 or not top_p > 0 or not math.isfinite(total):
            return None
        log_top = math.log(top_p)
        # In the order of ``finish``, so that the others do not.
        spread = width * spread / width
        known = 0 <= chosen < vocabulary and math.isfinite(logit)
        found += (
            0.0 - log_top - weighted, largest, largest + low, largest + shift, math.sqrt(max(spread, 0.0)), largest - second, top_p,
            logit - largest + log_top if known else math.nan, larger + 1 if known else math.nan,
            0.0, 0.0, chosen if math.isfinite(chosen) else math.nan, *likely,
        )  # fmt: skip
    return found
