"""Figures of many calls of a layer together, in memory that does not grow with their number."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .results import AttentionCall, HeadAttention, LayerAttention

__all__ = ["LayerTotals"]


class Spread:
    """Mean and deviation of several groups of queries together, the largest weight, and means of other figures."""

    def __init__(self) -> None:
        self.rows = self.calls = 0
        self._sums = [0.0] * 5
        self.max = 0.0

    def add(self, rows: int, mean: float, deviation: float, largest: float, others: Sequence[float]) -> None:
        """Take in the queries of one call: their number, mean entropy, its deviation, the largest weight, and other means."""
        self.rows += rows
        self.calls += 1
        for place, value in enumerate((mean, deviation * deviation + mean * mean, *others)):
            self._sums[place] += rows * value
        self.max = max(self.max, largest)

    def merge(self, other: Spread) -> None:
        """Take in those of another one."""
        self.rows += other.rows
        self.calls += other.calls
        self._sums = [one + more for one, more in zip(self._sums, other._sums, strict=True)]
        self.max = max(self.max, other.max)

    def means(self) -> list[float]:
        """Of the entropy, its deviation, and the other figures."""
        mean, square, *others = (one / self.rows for one in self._sums)
        return [mean, math.sqrt(max(0.0, square - mean * mean)), *others]


class LayerTotals:
    """All calls of a layer; ``last`` is the latest one."""

    def __init__(self) -> None:
        self.all = Spread()
        self.heads: dict[int, Spread] = {}
        self.last: AttentionCall | None = None

    def add(self, call: AttentionCall) -> None:
        """Take in a call."""
        self.last = call
        self.all.add(call.rows, call.entropy_mean, call.entropy_std, call.max, (call.mean, call.sink_share, call.peak_per_query_mean))
        for head in call.heads:
            # Each head has as many queries, for all heads see the same keys.
            rows = max(1, call.rows // len(call.heads))
            spread = self.heads.setdefault(head.head, Spread())
            spread.add(rows, head.entropy_mean, head.entropy_std, head.max, (head.mean, head.sink_share))

    def merge(self, other: LayerTotals) -> None:
        """Take in the calls of another one."""
        self.last = other.last
        self.all.merge(other.all)
        for head, spread in other.heads.items():
            self.heads.setdefault(head, Spread()).merge(spread)

    def result(self, module: str) -> LayerAttention:
        """Them as they are shown."""
        assert self.last is not None
        entropy, deviation, mean, sink, peak = self.all.means()
        heads = []
        for number, spread in sorted(self.heads.items()):
            of_head = spread.means()
            heads.append(HeadAttention(number, of_head[0], of_head[1], spread.max, of_head[2], of_head[3]))
        return LayerAttention(
            module, self.all.calls, self.last.source, self.all.rows, entropy, deviation, self.all.max, mean, sink, peak, tuple(heads),
            self.last,
        )  # fmt: skip
