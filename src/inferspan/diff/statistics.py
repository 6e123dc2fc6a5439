"""Two series of measurements -> by which factor the second one is larger, with an interval that counts on outliers and drift.

In come positive measurements of requests, in order, by run of the program. Out comes a ``Change``: the ratio B / A and its interval, or
``None`` where there are too few values. The estimate is the mean of the middle half of the logarithms; its standard error comes from a
bootstrap with a seed of its own, so that equal input gives equal output and the random stream of the program is left alone. Runs are
resampled as a whole where there are enough of them, else blocks of consecutive requests, because neighbours are alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

__all__ = ["FEWEST", "FEWEST_RUNS", "Change", "change", "middle_mean", "student"]

FEWEST = 8
"""Requests on each side, or pairs of them, below which nothing is said."""
FEWEST_RUNS = 5
"""Runs on each side from which on they are resampled as a whole."""
_RESAMPLES = 400
_TRIM = 0.25
_LONG_BLOCKS = 5
"""Of a recording that was not made in turns."""

Runs = Sequence[Sequence[float]]
"""Values by run of the program, each in order of time."""


@dataclass(frozen=True)
class Change:
    """By which factor something is larger in B than in A.

    Attributes:
        log_ratio: estimate of log(B / A).
        error: its standard error.
        freedom: degrees of freedom of the error.
        count: pairs, or requests of the side that has fewer.
        paired: whether each request of A has its counterpart in B.
        runs: runs that were resampled as a whole; 0 where blocks of requests were.
    """

    log_ratio: float
    error: float
    freedom: float
    count: int
    paired: bool
    runs: int

    @property
    def ratio(self) -> float:
        """B / A."""
        return _exp(self.log_ratio)

    def reach(self, alpha: float) -> float:
        """Half the width of the interval, as a logarithm, that is exceeded at each end with the probability ``alpha``."""
        return student(alpha, self.freedom) * self.error

    def interval(self, alpha: float) -> tuple[float, float]:
        """Ends of the interval of the ratio; each is passed with the probability ``alpha``."""
        reach = self.reach(alpha)
        return _exp(self.log_ratio - reach), _exp(self.log_ratio + reach)

    def needed(self, alpha: float, size: float, missed: float) -> int:
        """Requests with which a growth by the share ``size`` is found but for the share ``missed`` of cases, with the same noise."""
        wanted = math.log1p(size) / (student(alpha, self.freedom) + student(missed, self.freedom))
        times = min(1e3, self.error / wanted) if wanted > 0 else 1e3
        return max(FEWEST, math.ceil(self.count * times**2))


def change(a: Runs, b: Runs, *, turns: bool = True, seed: int = 0, most: int = 1_000) -> Change | None:
    """Compare two series.

    Args:
        a: positive values by run.
        b: the same of the other side. Where all runs have as many values in both, the n-th ones are pairs.
        turns: whether A and B were recorded in turns, so that drift is the same on both sides. Else it counts as noise.
        seed: of the bootstrap.
        most: values that are resampled; of more, neighbours are joined.

    Returns:
        ``None`` with fewer than ``FEWEST`` values on a side.
    """
    a, b = [run for run in a if run], [run for run in b if run]
    count = min(sum(map(len, a)), sum(map(len, b)))
    if count < FEWEST:
        return None
    draw = random.Random(seed)
    logs_a, logs_b = ([[math.log(value) for value in run] for run in side] for side in (a, b))
    paired = [len(run) for run in a] == [len(run) for run in b]
    if paired:
        differences = [[y - x for x, y in zip(one, other, strict=True)] for one, other in zip(logs_a, logs_b, strict=True)]
        estimate, error, freedom, runs = _estimate([differences], lambda sides: middle_mean(sides[0]), draw, most, turns)
    else:
        sides = [logs_a, logs_b]
        estimate, error, freedom, runs = _estimate(sides, lambda drawn: middle_mean(drawn[1]) - middle_mean(drawn[0]), draw, most, turns)
    return Change(estimate, error, freedom, count, paired, runs)


def middle_mean(values: Sequence[float]) -> float:
    """Mean of the middle half: a quarter of the values may be anything."""
    cut = int(len(values) * _TRIM)
    middle = sorted(values)[cut : len(values) - cut]
    return math.fsum(middle) / len(middle)


def _exp(value: float) -> float:
    return math.exp(min(700.0, value))


def _estimate(
    sides: Sequence[Runs], figure: Callable[[Sequence[Sequence[float]]], float], draw: random.Random, most: int, turns: bool
) -> tuple[float, float, float, int]:
    """The figure of all values, its standard error, degrees of freedom, and the number of runs if they were resampled."""
    by_run = min(len(side) for side in sides) >= FEWEST_RUNS
    if by_run:
        units = min(float(len(side)) for side in sides)
        resamplers = [_runs([_joined(run, max(1, most // len(side))) for run in side], draw) for side in sides]
    else:
        flat = [_joined([value for run in side for value in run], most) for side in sides]
        units = min(len(values) / _block(len(values), turns) for values in flat)
        resamplers = [_blocks(values, _block(len(values), turns), draw) for values in flat]
    estimate = figure([[value for run in side for value in run] for side in sides])
    found = [figure([resample() for resample in resamplers]) for _ in range(_RESAMPLES)]
    mean = math.fsum(found) / len(found)
    variance = math.fsum((value - mean) ** 2 for value in found) / (len(found) - 1)
    # Resampling m units understates the variance by (m - 1) / m.
    return estimate, math.sqrt(variance * units / (units - 1)), units - 1, int(units) if by_run else 0


def _runs(side: Runs, draw: random.Random) -> Callable[[], list[float]]:
    return lambda: [value for run in draw.choices(side, k=len(side)) for value in run]


def _blocks(values: Sequence[float], size: int, draw: random.Random) -> Callable[[], list[float]]:
    """Blocks from a ring of the values: each is in as many blocks as any other."""
    number = len(values)
    ring = [*values, *values[: size - 1]]

    def resample() -> list[float]:
        starts = draw.choices(range(number), k=math.ceil(number / size))
        return [value for start in starts for value in ring[start : start + size]][:number]

    return resample


def _block(number: int, turns: bool) -> int:
    """Consecutive values that are drawn together; long ones hold bursts of other work, and drift that one side alone has.

    Of recorded requests on a busy machine, blocks of the cube root let 6 of 500 equal sides pass for slower, these none.
    """
    return max(1, round(math.sqrt(number)), 0 if turns else number // _LONG_BLOCKS)


def _joined(values: Sequence[float], most: int) -> Sequence[float]:
    """At most ``most`` values, neighbours joined."""
    size = math.ceil(len(values) / most)
    return values if size == 1 else [middle_mean(values[start : start + size]) for start in range(0, len(values), size)]


def student(alpha: float, freedom: float) -> float:
    """The value that Student's t exceeds with the probability ``alpha`` below 0.5 (Hill, Algorithm 396, for two tails)."""
    tails, n = 2 * alpha, freedom
    if n <= 2:
        # Exact at 1 and 2; what lies between takes the wider one.
        return 1 / math.tan(tails * math.pi / 2) if n < 2 else math.sqrt(2 / (tails * (2 - tails)) - 2)
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * tails) ** (2 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tails / 2)
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (n + 1) / (n + 2) + 1 / y
    return math.sqrt(n * y)
