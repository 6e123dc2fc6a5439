"""Logit statistics by their definitions, in float64, and awkward logits to compare them on."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.logits.statistics import LogitStatistics, StepLogits

__all__ = ["DTYPES", "HOST_READS", "INF", "KINDS", "NAN", "Operations", "agree", "flat", "measure", "numbers", "reference", "special"]



INF, NAN = math.inf, math.nan
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
HOST_READS = {"_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "item", "unique", "_unique2"}


def reference(row: Tensor, chosen: int | None) -> LogitStatistics:
    """The statistics of one row, with numpy in float64, by their definitions."""
    values = row.detach().double().numpy()
    finite = np.sort(values[np.isfinite(values)])[::-1]
    nan, inf = float(np.isnan(values).sum()), float(np.isposinf(values).sum())
    logprob = rank = None
    valid = chosen is not None and 0 <= chosen < len(values)
    log_z = math.log(math.fsum(np.exp(finite - finite[0]))) + finite[0] if len(finite) else NAN
    if valid and not np.isnan(values[chosen]):
        rank = 1.0 + float((values > values[chosen]).sum())
        if np.isfinite(values[chosen]):
            logprob = float(values[chosen] - log_z)
    if not len(finite):
        return LogitStatistics(None, None, None, None, None, None, None, logprob, rank, nan, inf, chosen)
    logs = finite - log_z
    return LogitStatistics(
        entropy=-math.fsum(math.exp(v) * v for v in logs),
        max=float(finite[0]),
        min=float(finite[-1]),
        mean=float(finite.mean()),
        std=float(finite.std()),
        margin=float(finite[0] - finite[1]) if len(finite) > 1 else None,
        top1=math.exp(logs[0]),
        logprob=logprob,
        rank=rank,
        nan_count=nan,
        inf_count=inf,
        chosen=chosen,
    )


def agree(got: LogitStatistics, want: LogitStatistics) -> None:
    """Same fields defined, and the same numbers within what float32 sums of such logits allow."""
    scale = max(abs(want.max or 0.0), abs(want.min or 0.0), 1.0)
    for name, have, expected in zip(LogitStatistics._fields, got, want, strict=True):
        assert (have is None) == (expected is None), f"{name}: {have} instead of {expected}"
        if have is not None and expected is not None:
            exact = name in ("rank", "nan_count", "inf_count", "chosen")
            tolerance = 0.0 if exact else 2e-6 * scale + 2e-5 * abs(expected)
            assert abs(have - expected) <= tolerance, f"{name}: {have} instead of {expected}"


def measure(logits: Tensor, chosen: Tensor | None, top_k: int = 0) -> StepLogits:
    """The statistics of one step."""
    ring = LogitRing(top_k=top_k, capacity=1)
    assert ring.append(logits, chosen) == 0
    (step,) = ring.read()
    return step


def numbers(step: StepLogits) -> tuple[Any, ...]:
    """All that a step says."""
    return step.batch, step.mean, step.rows, step.top, step.counts, step.confidence


def flat(step: StepLogits) -> Iterator[float]:
    """The same as one series."""
    for row in (step.mean, *step.rows):
        yield from (math.nan if value is None else value for value in row)
    for ids, probabilities in step.top:
        yield from ids
        yield from probabilities


def special(kind: str, logits: Tensor) -> Tensor:
    """Random logits made awkward in one way."""
    if kind == "half":
        logits[:, ::2] = -INF
    elif kind == "few":
        logits[:, 3:] = -INF
    elif kind == "one":
        logits[:, 1:] = -INF
    elif kind == "none":
        logits[:] = -INF
    elif kind == "nan":
        logits[:, -1] = NAN
    elif kind == "all nan":
        logits[:] = NAN
    elif kind == "+inf":
        logits[:, 0] = INF
    elif kind == "mixed":
        logits[:, 0], logits[:, -1], logits[0] = INF, NAN, -INF
    elif kind == "huge":
        logits = logits.sign() * 6e4
    elif kind == "equal":
        logits[:] = 3.0
    elif kind == "peaked":
        logits[:, 2 % logits.shape[1]] = 60.0
    return logits


KINDS = ["plain", "half", "few", "one", "none", "nan", "all nan", "+inf", "mixed", "huge", "equal", "peaked"]


class Operations(TorchDispatchMode):
    """Counts what reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))
