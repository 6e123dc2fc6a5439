"""Collapse: from which token on the model has had no doubt about any token, until the end.

In: the entropy of the model's distribution at each token. Out: where the stretch begins, its length and its mean entropy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

__all__ = ["Collapse", "collapse_of"]


@dataclass(frozen=True, slots=True)
class Collapse:
    """The last tokens of a sequence, each with an entropy next to nothing.

    Attributes:
        tokens: their number.
        start: number of the first of them in the sequence, counted from 0.
        entropy: mean of their entropies, in nats.
    """

    tokens: int
    start: int
    entropy: float

    def as_dict(self) -> dict[str, float]:
        """The fields by name, for JSON."""
        return asdict(self)


def collapse_of(entropies: Sequence[float], *, entropy: float, tokens: int) -> Collapse | None:
    """The collapse at the end of a sequence, ``None`` if there is none.

    Args:
        entropies: in nats, one for each token from the first one on; one that is not finite ends the stretch.
        entropy: nats that each is below.
        tokens: the smallest number of tokens of a collapse.
    """
    start = next((place for place in range(len(entropies), 0, -1) if not entropies[place - 1] < entropy), 0)
    count = len(entropies) - start
    return Collapse(count, start, math.fsum(entropies[start:]) / count) if count and count >= tokens else None
