"""Statistics of paired measurements: what a ratio is, how sure it is, and how a cost grows.

In: times of pairs (with, without), taken one after the other. Out: median, quartiles, the ratio of the fastest runs, and a bootstrap interval
of the median, so that a reader sees whether 1.01 can be told from 1. Plain floats, no numpy; the resampling has a seed of its own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

__all__ = ["Ratio", "exponent", "judge", "quantile", "ratio_of"]

RESAMPLES = 2000
CERTAINTY = 0.95


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie, interpolated linearly; ``nan`` of none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Ratio:
    """How many times as long something takes.

    ``low`` and ``high`` are the quartiles of the pairs, ``sure_low`` and ``sure_high`` the 95 % interval of their median, ``fastest`` is the
    fastest run with against the fastest without.
    """

    median: float
    low: float
    high: float
    sure_low: float
    sure_high: float
    fastest: float
    pairs: int


def ratio_of(ours: Sequence[float], plain: Sequence[float], *, groups: Sequence[Hashable] | None = None, seed: int = 0) -> Ratio:
    """Compare paired times.

    Args:
        ours: times with what is measured.
        plain: those of their partners.
        groups: what each pair belongs to, where some have a time in common: they are drawn together, and count as one. Each is
            on its own without.
        seed: of the resampling.

    Raises:
        ValueError: there is no pair, or a time has no partner.
    """
    ratios = [one / base for one, base in zip(ours, plain, strict=True)]
    if not ratios:
        raise ValueError("no pair was measured")
    together: dict[Hashable, list[float]] = {}
    for group, ratio in zip(range(len(ratios)) if groups is None else groups, ratios, strict=True):
        together.setdefault(group, []).append(ratio)
    generator = random.Random(seed)
    drawn = (generator.choices([*together.values()], k=len(together)) for _ in range(RESAMPLES))
    medians = [quantile([*chain.from_iterable(some)], 0.5) for some in drawn]
    edge = (1 - CERTAINTY) / 2
    return Ratio(
        median=quantile(ratios, 0.5),
        low=quantile(ratios, 0.25),
        high=quantile(ratios, 0.75),
        sure_low=quantile(medians, edge),
        sure_high=quantile(medians, 1 - edge),
        fastest=min(ours) / min(plain),
        pairs=len(together),
    )


def judge(ratio: Ratio, target: float) -> str:
    """Whether a target is met: only if the whole interval meets it; an interval on both sides of it is not resolved."""
    if ratio.pairs < 5:
        return "too few pairs"
    if ratio.sure_high <= target:
        return "met"
    if ratio.sure_low > target:
        return "missed"
    return "met, not resolved" if ratio.median <= target else "missed, not resolved"


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Slope of log(cost) over log(size): 1 is in proportion, less grows more slowly; ``nan`` unless two costs are above zero."""
    points = [(math.log(size), math.log(cost)) for size, cost in zip(sizes, costs, strict=True) if size > 0 and cost > 0]
    if len({x for x, _ in points}) < 2:
        return math.nan
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
