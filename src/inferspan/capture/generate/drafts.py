"""Assisted decoding: which positions of a verification pass have chosen which tokens, and how many drafted ones were accepted.

A pass verifies ``n`` candidates with the logits of their ``n`` positions and of the one behind them; the first of these that the model
agrees with are taken, and one token of its own. In: the logits of the pass, the candidates and the chosen ids. Out: statistics for every
token that was taken, and counts. Nothing is read from the device before the request ends.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inferspan import semconv
from inferspan.records import AttributeValue

from .step_log import StepLog

__all__ = ["Drafts"]


class Drafts:
    """The drafts of one ``generate()``.

    Attributes:
        candidates: ids ``[1, width]`` that the open pass verifies, those before them included.
        verified: raw logits ``[1, positions, vocabulary]`` of the pass that has returned last.
        width: of the ids before the drafts of the next pass; 0 while it is not known.
        seen: whether a pass was seen that may take several tokens.
        unplaced: whether the positions of some pass are not known.
    """

    __slots__ = ("_accepted", "_drafted", "_last", "candidates", "seen", "unplaced", "verified", "width")

    def __init__(self) -> None:
        self.candidates: Any = None
        self.verified: Any = None
        self.seen = self.unplaced = False
        self._drafted = self._accepted = self.width = 0
        self._last: tuple[Tensor, int, int, int, dict[str, AttributeValue]] | None = None

    def keep(self, output: Any) -> None:
        """A pass has returned: copy the logits that the loop's processors are about to change in place, which it does with float32."""
        logits, candidates = dict.get(output, "logits") if isinstance(output, dict) else None, self.candidates
        if type(logits) is not Tensor or logits.dtype is not torch.float32 or logits.dim() != 3 or not isinstance(candidates, Tensor):
            return
        positions = int(logits.shape[1])
        wanted = min(positions, int(candidates.shape[1]) - self.width + 1)
        self.verified = logits.detach().narrow(1, positions - wanted, wanted).clone()

    def choose(self, steps: StepLog, ids: Any, before: int, width: int) -> None:
        """Tokens ``before`` to ``width`` of ``ids`` were taken after a pass."""
        candidates, verified = self.candidates, self.verified
        self.candidates = self.verified = None
        self.width = width
        self.seen, steps.logits = True, None
        taken = width - before
        if not isinstance(candidates, Tensor) or candidates.dim() != 2 or candidates.shape[0] != 1 or taken < 1:
            self.unplaced = True
            return
        drafted = int(candidates.shape[1]) - before
        if not 0 <= taken - 1 <= drafted:
            self.unplaced = True
            return
        # An end token among the drafts may be the last one that was taken; ``settle`` looks at that.
        accepted = taken - 1
        self._drafted += drafted
        self._accepted += accepted
        told: dict[str, AttributeValue] = {semconv.SPECULATIVE_DRAFTED: drafted, semconv.SPECULATIVE_ACCEPTED: accepted}
        self._last = (candidates, before + accepted, drafted, accepted, told)
        steps.rows.add_attributes(steps.index - 1, told)
        if steps.statistics is None or not steps.rows.holds(steps.index - 1):
            return
        logits = steps.statistics.last_position(verified, whole=True)
        if logits is None or logits.shape[0] != 1 or logits.shape[1] < drafted + 1:
            self.unplaced = True
            return
        first = int(logits.shape[1]) - drafted - 1
        self.unplaced |= not steps.statistics.launch_several(
            steps.index - 1, logits.narrow(1, first, taken), ids.narrow(1, before, taken)
        )

    def settle(self, sequences: Any) -> None:
        """Count the last token of a finished request as accepted if it was drafted; reads two ids.

        A pass ends with a token of the model's own, except the last one, which an end token among the drafts may cut off.
        """
        last, self._last = self._last, None
        self.candidates = self.verified = None
        if last is None:
            return
        candidates, place, drafted, accepted, told = last
        if accepted >= drafted or not isinstance(sequences, Tensor) or sequences.shape[1] != place + 1 or sequences.shape[0] != 1:
            return
        if int(candidates[0, place]) == int(sequences[0, place]):
            self._accepted += 1
            told[semconv.SPECULATIVE_ACCEPTED] = accepted + 1

    @property
    def counts(self) -> tuple[int, int] | None:
        """Tokens drafted and accepted; ``None`` where no draft was seen or some were not."""
        return (self._drafted, self._accepted) if self.seen and not self.unplaced else None
