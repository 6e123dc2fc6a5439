"""Loops in a sequence of tokens: the longest stretch that repeats itself.

In: token ids. Out: length, period and beginning. Exact, in O(n log n) at worst; text that does not repeat itself takes O(n), because only
places whose surroundings have come before are looked at again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass

__all__ = ["LEAST_TOKENS", "REPEATS", "Loop", "four_grams", "longest_loop"]

REPEATS = 3
"""How often a stretch of tokens must come in a row to be a loop. Twice is common in healthy text ("that that")."""
LEAST_TOKENS = 8
"""Tokens of a loop; a shorter stretch, such as a row of dots, is ordinary text."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A stretch of tokens, each equal to the one that is ``period`` places before it.

    Attributes:
        tokens: its length, the first period included; at least ``REPEATS`` periods and ``LEAST_TOKENS``.
        period: tokens after which it repeats, the smallest number of which this is true.
        start: number of its first token in the sequence, counted from 0.
    """

    tokens: int
    period: int
    start: int

    def as_dict(self) -> dict[str, int]:
        """The fields by name, for JSON."""
        return asdict(self)


def four_grams(ids: Sequence[Hashable]) -> list[tuple[Hashable, ...]]:
    """The groups of four neighbouring tokens, in order: one for each token but the last three."""
    return list(zip(ids, ids[1:], ids[2:], ids[3:], strict=False))


def longest_loop(ids: Sequence[Hashable], grams: Sequence[Hashable] | None = None) -> Loop | None:
    """The longest loop of a sequence; of several with one length that of the smallest period, then the first one. ``None`` without any.

    Windows of 4, 8, 16, ... tokens get names, equal ones the same, each from the names of its halves (Karp, Miller and Rosenberg, 1972).
    A loop of period p repeats the window at each of its places exactly p places later, and no sooner if the window has at least p tokens,
    because a sequence with no smaller period equals none of its rotations. So windows of at least p and less than 2p tokens find it: as a
    run of neighbouring places whose window came last p places before.

    Args:
        ids: the sequence.
        grams: its ``four_grams``, if they are known.
    """
    length = len(ids)
    names: dict[int, Hashable] = dict(enumerate(four_grams(ids) if grams is None else grams))
    best: Loop | None = None
    size, least = 4, 0
    while names and REPEATS * (least + 1) <= length:
        last: dict[Hashable, int] = {}
        again: set[Hashable] = set()
        first = end = run = -1
        for place, name in names.items():
            before = last.get(name, -1)
            last[name] = place
            if before < 0:
                continue
            again.add(name)
            period = place - before
            if period == run and place == end + 1:
                end = place
                continue
            best = _longer(best, first, end, run, size)
            first, end, run = (place, place, period) if least < period <= size else (-1, -1, -1)
        best = _longer(best, first, end, run, size)
        if best is not None and best.tokens == length:
            return best
        names = _doubled(names, again, size)
        size, least = 2 * size, size
    return best


def _longer(best: Loop | None, first: int, end: int, period: int, size: int) -> Loop | None:
    """``best``, or the loop whose windows of ``size`` tokens at the places ``first`` to ``end`` came ``period`` places before."""
    tokens = end - first + size + period
    if period < 0 or tokens < max(LEAST_TOKENS, REPEATS * period):
        return best
    return Loop(tokens, period, first - period) if best is None or (tokens, -period) > (best.tokens, -best.period) else best


def _doubled(names: dict[int, Hashable], again: set[Hashable], size: int) -> dict[int, Hashable]:
    """Names of the windows of twice the size, of places where both halves come more than once."""
    known: dict[tuple[Hashable, Hashable], int] = {}
    found: dict[int, Hashable] = {}
    for place, name in names.items():
        if name in again and (other := names.get(place + size)) is not None and other in again:
            found[place] = known.setdefault((name, other), len(known))
    return found
