"""Ranks -> how far their clocks are apart, estimated from what they did together.

The processes of a host share a clock. Across hosts, the ranks of a synchronous job leave a collective at the same moment, so the ends of
requests that correspond to each other are compared, and the median of their differences is the estimate. It is right to within the time
that the ranks take from the last collective to the end of the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferspan.metrics.summary import percentile
from inferspan.text.numbers import counted

from .ranks import Rank

__all__ = ["Offset", "offsets"]

_FEWEST = 3
"""Requests; the median of fewer says little."""


class Offset(NamedTuple):
    """How many seconds a rank's clock is ahead of that of the first one, and how that is known; ``None`` where it is not."""

    seconds: float | None
    source: str


def offsets(ranks: Sequence[Rank]) -> list[Offset]:
    """One for each rank, the first of them with offset 0."""
    if not ranks:
        return []
    first = ranks[0]
    return [Offset(0.0, "reference"), *(_offset(first, rank) for rank in ranks[1:])]


def _offset(first: Rank, rank: Rank) -> Offset:
    if rank.host and rank.host == first.host:
        return Offset(0.0, "same host")
    if len(first.ends) != len(rank.ends):
        return Offset(None, f"{len(first.ends)} and {len(rank.ends)} requests do not correspond")
    if len(first.ends) < _FEWEST:
        return Offset(None, f"{counted(len(first.ends), 'request is', 'requests are')} too few")
    differences = [(theirs - ours) / 1e9 for theirs, ours in zip(rank.ends, first.ends, strict=True)]
    return Offset(percentile(differences, 0.5), f"ends of {counted(len(differences), 'request')}")
