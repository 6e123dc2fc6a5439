"""Statistics of the raw next-token logits of a step: computed on the device now, read at the end of the request.

In: logits ``[batch, vocabulary]`` and the chosen token ids, still on the device. Out: one ``StepLogits`` a step, plain floats.
Nothing before ``LogitRing.read`` waits for the device, writes to the logits, draws random numbers or keeps them alive. ``compute``
makes sums and extremes only; ``finish`` turns them into statistics later, in float64, for many steps at once. All functions may
raise on tensors that are not logits; the caller contains that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .. import semconv
from ..records import AttributeValue
from .device_rows import DeviceRows, Place, is_plain

__all__ = ["LogitRing", "LogitStatistics", "Statistics", "StepLogits", "attributes", "choose", "compute", "finish"]

ROWS_KEPT = 16
"""Largest batch whose rows are kept one by one; of larger ones the first row and the mean are."""
DETAIL_BYTES = 8 << 20
"""Bytes of row-by-row results that a request may hold; after that, the first row and the mean of each step are kept."""
CHUNK = 1 << 24
"""Logits worked on at once, which bounds the temporary memory of a large batch (four float copies of a chunk)."""
INF = math.inf


class Statistics(Protocol):
    """An implementation of ``compute``: same arguments, same columns; the names of the first two may differ."""

    def __call__(self, logits: Tensor, chosen: Tensor | None, /, *, top_k: int) -> Tensor:
        """Launch the reductions of ``[B, V]`` logits."""


class LogitStatistics(NamedTuple):
    """Statistics of one row, or their mean over a batch; ``None`` is "not defined", e.g. because every logit is masked.

    Over the finite logits, in nats. Counts are those of the whole batch in a batch's mean. ``chosen`` is the token's id.
    """

    entropy: float | None
    max: float | None
    min: float | None
    mean: float | None
    std: float | None
    margin: float | None
    top1: float | None
    logprob: float | None
    rank: float | None
    nan_count: float | None
    inf_count: float | None
    chosen: float | None


WIDTH = len(LogitStatistics._fields)
COUNTS = slice(LogitStatistics._fields.index("nan_count"), LogitStatistics._fields.index("inf_count") + 1)


class StepLogits(NamedTuple):
    """What one step's logits were like; ``rows`` are all rows of a small batch, else the first one only."""

    batch: int
    mean: LogitStatistics
    rows: tuple[LogitStatistics, ...]
    top_ids: tuple[int, ...]
    top_probabilities: tuple[float, ...]


def choose(device: torch.device) -> Statistics:
    """The fastest implementation for ``device``."""
    return compute


def compute(logits: Tensor, chosen: Tensor | None, *, top_k: int) -> Tensor:
    """Reduce each row to what its statistics are made of, in float32 (float64 logits: in float64), without waiting for the device.

    Args:
        logits: ``[B, V]``, any floating dtype. ``-inf`` is a mask; NaN and ``+inf`` are counted and left out of the rest.
        chosen: ``[B]`` ids of the tokens that were taken, or None. Ids outside of the vocabulary (padding) are allowed.
        top_k: how many of the most likely tokens are wanted.

    Returns:
        ``[B, 13 + 2 * top_k]``; m being the largest finite logit and p the softmax over the finite ones: m, second largest, p of m;
        sum of p (x - m); smallest, mean and variance of x - m with 0 for what is not finite; number of not finite, of NaN, of +inf;
        chosen id, chosen logit, number of larger logits (these three NaN without ``chosen``); ids and p of the ``top_k``.
    """
    if logits.dim() != 2 or not logits.numel() or not logits.is_floating_point():
        raise ValueError(f"logits must be floating point [batch, vocabulary], not {logits.dtype} {tuple(logits.shape)}")
    with torch.no_grad():
        rows = max(1, CHUNK // logits.shape[1])
        if logits.shape[0] <= rows:
            return _reduce(logits, chosen, top_k)
        ids = [None] * -(-logits.shape[0] // rows) if chosen is None else torch.split(chosen, rows)
        return torch.cat([_reduce(part, its, top_k) for part, its in zip(torch.split(logits, rows), ids, strict=True)])


def _reduce(logits: Tensor, chosen: Tensor | None, top_k: int) -> Tensor:
    x = logits if logits.dtype is torch.float64 else logits.float()
    missing = max(2, top_k) - x.shape[1]
    if missing > 0:
        x = torch.cat([x, x.new_full((x.shape[0], missing), -INF)], 1)
    low = torch.nan_to_num(x, nan=-INF, posinf=-INF, neginf=-INF)
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
    below = (low - top).nan_to_num_(0.0, 0.0, 0.0)
    columns = [top, second, top_p, p.mul_(below).sum(-1, keepdim=True), below.amin(-1, keepdim=True)]
    mean = below.mean(-1, keepdim=True)
    # Not vector_norm: on a CPU it adds float32 up one by one, while sums and means go in blocks.
    columns += [mean, below.sub_(mean).square_().mean(-1, keepdim=True)]
    # Comparisons go to a float buffer that is no longer needed: far faster to sum on a CPU than booleans, and no new memory.
    columns += [torch.eq(low, -INF, out=p).sum(-1, keepdim=True)]
    columns += [torch.ne(x, x, out=p).sum(-1, keepdim=True)]
    columns += [torch.eq(x, INF, out=p).sum(-1, keepdim=True)]
    if chosen is None or (chosen.device.type != "cpu" and x.device.type == "cpu"):
        columns.append(x.new_full((x.shape[0], 3), math.nan))  # reading an id from a device would wait for it
    else:
        wanted = chosen.to(x.device, non_blocking=True).unsqueeze(-1)
        logit = x.gather(1, wanted.clamp(0, logits.shape[1] - 1))
        columns += [wanted.to(x.dtype), logit, torch.gt(x, logit, out=p).sum(-1, keepdim=True)]
    # All of one dtype: otherwise cat copies one by one.
    return torch.cat([*columns, *likely], 1)


def finish(reductions: Tensor, *, vocabulary: int, top_k: int) -> Tensor:
    """Turn what ``compute`` returned into statistics; works on any leading dimensions and device.

    Args:
        reductions: ``[..., 13 + 2 * top_k]``.
        vocabulary: V of the logits.
        top_k: as given to ``compute``.

    Returns:
        ``[..., 12 + 2 * top_k]``: the fields of ``LogitStatistics``, then ids and probabilities of the ``top_k``; NaN is "undefined".
    """
    columns, likely = torch.split(reductions, [13, 2 * top_k], -1)
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
    return torch.where(result.isfinite(), result, math.nan)


def _mean(statistics: Tensor) -> Tensor:
    """Mean over the second last dimension of what is defined; counts are summed; top-k columns become meaningless."""
    mean = statistics.nanmean(-2)
    mean[..., COUNTS] = statistics[..., COUNTS].sum(-2)
    return mean


class _Kind(NamedTuple):
    batch: int
    vocabulary: int
    compact: bool


class LogitRing:
    """Statistics of the steps of one request, bounded, on the device until ``read``.

    Args:
        top_k: how many of the most likely tokens are kept per step (content: 0 unless it is captured).
        capacity: most steps that are kept until the next ``read``.
        statistics: implementation, default the one that ``choose`` names for the device.
    """

    def __init__(self, *, top_k: int, capacity: int, statistics: Statistics | None = None) -> None:
        self._top_k = top_k
        self._capacity = capacity
        self._statistics = statistics
        self._rows: DeviceRows[_Kind] = DeviceRows(self._pack)
        self._places: list[Place[_Kind]] = []
        self._detail_bytes = 0

    @property
    def full(self) -> bool:
        """Whether nothing more is taken until ``read``."""
        return len(self._places) >= self._capacity

    def append(self, logits: Tensor, chosen: Tensor | None) -> int | None:
        """Launch the statistics of one step.

        Args:
            logits: raw logits ``[B, V]`` of the last position.
            chosen: ``[B]`` ids that were taken.

        Returns:
            Index of the step in what ``read`` will return; None if the ring is full or statistics of such a tensor are not taken.
        """
        if self.full or not is_plain(logits):
            return None
        reductions = (self._statistics or choose(logits.device))(logits, chosen, top_k=self._top_k)
        batch = logits.shape[0]
        compact = batch > ROWS_KEPT or (batch > 1 and self._detail_bytes > DETAIL_BYTES)
        if not compact:
            self._detail_bytes += reductions.numel() * reductions.element_size()
        self._places.append(self._rows.append(_Kind(batch, logits.shape[1], compact), reductions))
        return len(self._places) - 1

    def read(self) -> list[StepLogits]:
        """The statistics of all steps in the order of their ``append``; empties the ring. May wait for the device."""
        places, self._places, self._detail_bytes = self._places, [], 0
        lanes = {key: self._to_steps(key[0], rows) for key, rows in self._rows.read().items()}
        return [lanes[place.lane][place.order] for place in places]

    def _pack(self, kind: _Kind, stacked: Tensor) -> Tensor:
        if not kind.compact:
            return stacked
        statistics = finish(stacked, vocabulary=kind.vocabulary, top_k=self._top_k)
        return torch.stack([_mean(statistics), statistics[:, 0]], 1)

    def _to_steps(self, kind: _Kind, rows: Tensor) -> list[StepLogits]:
        if not kind.compact:
            rows = finish(rows, vocabulary=kind.vocabulary, top_k=self._top_k)
            rows = torch.cat([_mean(rows).unsqueeze(1), rows], 1)
        return [_to_step(kind.batch, step, self._top_k) for step in rows.tolist()]


def _to_statistics(values: list[float]) -> LogitStatistics:
    return LogitStatistics(*(None if math.isnan(value) else value for value in values[:WIDTH]))


def _to_step(batch: int, values: list[list[float]], top_k: int) -> StepLogits:
    first = values[1]
    rows = tuple(_to_statistics(row) for row in values[1:])
    # One row is its own mean; keeping it once halves what a long request holds.
    mean = rows[0] if batch == 1 else _to_statistics(values[0])
    pairs = zip(first[WIDTH : WIDTH + top_k], first[WIDTH + top_k :], strict=True)
    likely = [(int(token), probability) for token, probability in pairs if probability > 0]
    return StepLogits(batch, mean, rows, tuple(token for token, _ in likely), tuple(probability for _, probability in likely))


_DOUBLES = (
    ("entropy", semconv.LOGITS_ENTROPY),
    ("max", semconv.LOGITS_MAX),
    ("min", semconv.LOGITS_MIN),
    ("mean", semconv.LOGITS_MEAN),
    ("std", semconv.LOGITS_STD),
    ("margin", semconv.LOGITS_MARGIN),
    ("top1", semconv.LOGITS_TOP1),
    ("logprob", semconv.LOGITS_CHOSEN_LOGPROB),
)


def attributes(step: StepLogits, *, content: bool, decode: Callable[[int], str] | None = None) -> dict[str, AttributeValue]:
    """The attributes of a step's span; what is not defined is absent, nothing is non-finite.

    Args:
        step: an element of what ``LogitRing.read`` returned.
        content: whether token ids and texts may be in them.
        decode: text of a token id, or None without a tokenizer.
    """
    result: dict[str, AttributeValue] = {}
    for name, key in _DOUBLES:
        value = getattr(step.mean, name)
        if value is not None:
            result[key] = value
        values = [getattr(row, name) for row in step.rows]
        if 2 <= step.batch == len(values) and None not in values:
            result[semconv.LOGITS_ROWS[key]] = values
    first = step.rows[0]
    for key, count in (
        (semconv.LOGITS_NAN_COUNT, step.mean.nan_count),
        (semconv.LOGITS_INF_COUNT, step.mean.inf_count),
        (semconv.LOGITS_CHOSEN_RANK, first.rank),
    ):
        if count is not None:
            result[key] = int(count)
    if content:
        result.update(_content(step, decode))
    return result


def _content(step: StepLogits, decode: Callable[[int], str] | None) -> dict[str, AttributeValue]:
    result: dict[str, AttributeValue] = {}
    chosen = step.rows[0].chosen
    if chosen is not None:
        result[semconv.TOKEN_ID] = int(chosen)
        if decode is not None:
            result[semconv.TOKEN_TEXT] = decode(int(chosen))
    if step.top_ids:
        result[semconv.LOGITS_TOP_K_IDS] = list(step.top_ids)
        result[semconv.LOGITS_TOP_K_PROBABILITIES] = list(step.top_probabilities)
        if decode is not None:
            result[semconv.LOGITS_TOP_K_TEXTS] = [decode(token) for token in step.top_ids]
    return result
