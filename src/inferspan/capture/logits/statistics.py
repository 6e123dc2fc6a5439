"""Statistics of the raw next-token logits of a step, as numbers and as the attributes of its span.

In: reduced rows of logits, on the host (of large batches also on the device). Out: one ``StepLogits`` a step, plain floats, and the
``inferspan.logits.*`` attributes. ``ring`` takes them while a request runs.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inferspan import semconv
from inferspan.capture.compile.state import loaded
from inferspan.records import AttributeValue

from .reductions import finish, finish_few

__all__ = ["Kind", "LogitStatistics", "StepLogits", "attributes", "pack", "to_steps", "whole_logits"]


class LogitStatistics(NamedTuple):
    """Statistics of one row, or their mean over a batch; ``None`` is "not defined", e.g. because every logit is masked.

    Over the finite logits, in nats. A row that has ended has none, and is not in the mean. In a batch's mean the counts are those of all
    rows, and ``chosen`` is the number of rows whose token is known. Elsewhere ``chosen`` is the token's id.
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
FEW = 32
"""Rows that take less time one by one than by operations of torch."""
COUNTS = slice(LogitStatistics._fields.index("nan_count"), LogitStatistics._fields.index("inf_count") + 1)


ENTROPY, MEAN, STD, TOP1, LOGPROB, NANS, INFS, CHOSEN = (
    LogitStatistics._fields.index(name) for name in ("entropy", "mean", "std", "top1", "logprob", "nan_count", "inf_count", "chosen")
)


class StepLogits:
    """Statistics of one step's logits. Created on the model's path, so the numbers are unpacked on access only.

    Args:
        batch: rows of the step.
        top_k: most likely tokens of each.
        values: numbers of several steps: for each the mean unless ``batch`` is 1, then its rows, ``12 + 2 * top_k`` numbers each.
        start: where this step begins in ``values``.
        end: where it ends.
    """

    __slots__ = ("_end", "_start", "_top_k", "_values", "batch")

    def __init__(self, batch: int, top_k: int, values: list[float], start: int, end: int) -> None:
        self.batch = batch
        self._top_k, self._values, self._start, self._end = top_k, values, start, end

    @property
    def mean(self) -> LogitStatistics:
        """Mean over the batch."""
        return _to_statistics(self._values[self._start : self._start + WIDTH])

    @property
    def rows(self) -> tuple[LogitStatistics, ...]:
        """All rows of a small batch, else the first one only."""
        step = WIDTH + 2 * self._top_k
        return tuple(_to_statistics(self._values[at : at + WIDTH]) for at in range(self._first, self._end, step))

    @property
    def rows_kept(self) -> int:
        """Number of ``rows``."""
        return 1 if self.batch == 1 else (self._end - self._first) // (WIDTH + 2 * self._top_k)

    @property
    def top(self) -> list[tuple[list[int], list[float]]]:
        """Ids and probabilities of the most likely tokens of each of ``rows``, best first; empty for one that had ended before."""
        k, step, values = self._top_k, WIDTH + 2 * self._top_k, self._values
        found = []
        for start in range(self._first + WIDTH, self._end, step):
            ids, shares = values[start : start + k], values[start + k : start + 2 * k]
            found.append(([int(one) for one in ids], shares) if k and shares[0] == shares[0] else ([], []))
        return found

    @property
    def running(self) -> int | None:
        """Rows that had not ended before the step; ``None`` if it is not known which tokens were chosen."""
        count = self._values[self._start + CHOSEN]
        if count != count or (self.batch > 1 and not count):
            return None
        return int(count) if self.batch > 1 else 1

    @property
    def counts(self) -> tuple[int, int]:
        """NaN and plus infinity in the whole batch."""
        return int(self._values[self._start + NANS]), int(self._values[self._start + INFS])

    @property
    def confidence(self) -> tuple[float | None, float | None, float | None]:
        """Entropy, probability of the most likely token and log-probability of the chosen one, in the first row."""
        # Asked for at the end of a request, for every step: written out, and only NaN is no number equal to itself.
        values, first = self._values, self._start if self.batch == 1 else self._first
        entropy, top1, logprob = values[first + ENTROPY], values[first + TOP1], values[first + LOGPROB]
        return entropy if entropy == entropy else None, top1 if top1 == top1 else None, logprob if logprob == logprob else None

    def follows(self, other: StepLogits) -> bool:
        """Whether its numbers come behind those of ``other`` in one list."""
        return self._start == other._end and self._values is other._values

    def add_figures(
        self, last: StepLogits, top1: array[float], logprobs: array[float], means: array[float], stds: array[float]
    ) -> None:
        """Append the values of every row of the steps until ``last``, step by step, to these arrays; NaN where there is none."""
        values, width, end = self._values, WIDTH + 2 * self._top_k, last._end
        for column, place in ((top1, TOP1), (logprobs, LOGPROB), (means, MEAN), (stds, STD)):
            found = values[self._start + place : end : width]
            if self.batch > 1:
                # The mean over the rows stands before them.
                del found[:: self.batch + 1]
            column.extend(found)

    @property
    def _first(self) -> int:
        # One row is its own mean, and comes without it.
        return self._start if self.batch == 1 else self._start + WIDTH + 2 * self._top_k


class Kind(NamedTuple):
    """The common properties of rows that are kept together; of ``compact`` ones only the mean and the first row are kept."""

    batch: int
    vocabulary: int
    compact: bool


def _distributed_tensor() -> Any:
    """The class ``DTensor``, if the program has imported it; torch before 2.5 has it elsewhere."""
    return loaded("torch.distributed.tensor", "DTensor") or loaded("torch.distributed._tensor", "DTensor")


def whole_logits(logits: object, *, vocabulary: int = 0) -> Tensor | None:
    """The logits that a model returned, as a tensor of this process, or ``None`` if it has only a part of them.

    Args:
        logits: a tensor, or a ``DTensor``, which is not imported here; anything else is returned as it is.
        vocabulary: size that logits of a tensor-parallel model have when they are whole; 0 for a model that is not.
    """
    if type(logits) is not Tensor and (distributed := _distributed_tensor()) is not None and isinstance(logits, distributed):
        sharded: Any = logits
        # Those on every process alike are there without communication.
        with torch.no_grad():
            return sharded.to_local() if all(placement.is_replicate() for placement in sharded.placements) else None
    if vocabulary and isinstance(logits, Tensor) and logits.dim() and logits.shape[-1] < vocabulary:
        return None
    return logits  # type: ignore[return-value]  # other objects are refused later, like tensors that are no logits


def _mean(statistics: Tensor) -> Tensor:
    """Mean of the defined values over the second last dimension; see ``LogitStatistics``; top-k columns become meaningless."""
    mean = statistics.nanmean(-2)
    mean[..., COUNTS] = statistics[..., COUNTS].nansum(-2)
    mean[..., CHOSEN] = statistics[..., CHOSEN].isfinite().sum(-1).to(mean.dtype)
    return mean


def pack(kind: Kind, top_k: int, stacked: Tensor) -> Tensor:
    """Mean and first row of compact rows ``[n, B, 13 + 2 * top_k]``, as statistics ``[n, 2, 12 + 2 * top_k]``; runs on any device."""
    statistics = finish(stacked, vocabulary=kind.vocabulary, top_k=top_k)
    return torch.stack([_mean(statistics), statistics[:, 0]], 1)


def to_steps(kind: Kind, top_k: int, rows: Tensor) -> list[StepLogits]:
    """The steps whose ``rows`` are on the host: ``[n, B, 13 + 2 * top_k]``, or what ``pack`` made of compact ones."""
    if kind.batch == 1 and len(rows) <= FEW and (few := finish_few(rows.flatten().tolist(), vocabulary=kind.vocabulary, top_k=top_k)):
        size = WIDTH + 2 * top_k
        return [StepLogits(1, top_k, few, start, start + size) for start in range(0, len(few), size)]
    if not kind.compact:
        rows = finish(rows, vocabulary=kind.vocabulary, top_k=top_k)
        if kind.batch > 1:
            rows = torch.cat([_mean(rows).unsqueeze(1), rows], 1)
    size = rows[0].numel()
    values = rows.flatten().tolist()
    return [StepLogits(kind.batch, top_k, values, start, start + size) for start in range(0, len(values), size)]


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _to_statistics(values: list[float]) -> LogitStatistics:
    return LogitStatistics(*map(_defined, values))


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
    """The attributes of a step's span; undefined values are absent, none is non-finite.

    Args:
        step: an element of what ``LogitRing.read`` returned.
        content: whether token ids and texts may be in them.
        decode: text of a token id, or None without a tokenizer.
    """
    result: dict[str, AttributeValue] = {}
    mean, rows = step.mean, step.rows
    # Those that have ended have not even a count.
    running = [row for row in rows if row.nan_count is not None] if 2 <= step.batch == len(rows) else []
    for name, key in _DOUBLES:
        value = getattr(mean, name)
        if value is not None:
            result[key] = value
        if running and None not in (values := [getattr(row, name) for row in running]):
            result[semconv.LOGITS_ROWS[key]] = values
    for key, count in (
        (semconv.LOGITS_NAN_COUNT, mean.nan_count),
        (semconv.LOGITS_INF_COUNT, mean.inf_count),
        (semconv.LOGITS_CHOSEN_RANK, rows[0].rank),
    ):
        if count is not None:
            result[key] = int(count)
    if content:
        result.update(_content(step, decode))
    return result


def _content(step: StepLogits, decode: Callable[[int], str] | None) -> dict[str, AttributeValue]:
    """Chosen and likeliest tokens of the rows that run, in order, as in the arrays of ``LOGITS_ROWS``; the rows after the kept ones."""
    result: dict[str, AttributeValue] = {}
    rows = step.rows
    running = [place for place, row in enumerate(rows) if row.nan_count is not None]
    chosen = [None if (token := rows[place].chosen) is None else int(token) for place in running]
    if running and None not in chosen:
        ids = [token for token in chosen if token is not None]
        result[semconv.STEP_TOKEN_IDS] = ids
        if decode is not None:
            result[semconv.STEP_TOKEN_TEXTS] = [decode(token) for token in ids]
    top = step.top
    likely = [top[place] for place in running] if top else []  # empty with top_k=0
    # As many of each row, so that they can be told apart; a token of a probability that is 0 is masked.
    width = max((sum(share > 0 for share in shares) for _, shares in likely), default=0)
    if width:
        ids = [token for tokens, _ in likely for token in tokens[:width]]
        result[semconv.LOGITS_TOP_K_IDS] = ids
        result[semconv.LOGITS_TOP_K_PROBABILITIES] = [share for _, shares in likely for share in shares[:width]]
        if decode is not None:
            result[semconv.LOGITS_TOP_K_TEXTS] = [decode(token) for token in ids]
    if result and len(rows) < step.batch:
        result[semconv.STEP_ROWS_OMITTED] = step.batch - len(rows)
    return result
