"""Statistics of the logits of a request's steps, from their launch until the records of the steps are made.

In: logits and chosen tokens, one step at a time. Out: one ``StepLogits`` for a step, and the series by token for the request's span and
metrics. They come from the device in order, later than the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.logits.figures import FigureSeries
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.logits.statistics import StepLogits, whole_logits
from inferspan.capture.modules.shapes import Described, describe
from inferspan.capture.values.unseen import hidden
from inferspan.guard import contain

from .end import MAX_TOKENS_IN_ARRAYS

__all__ = ["StepStatistics"]


class StepStatistics:
    """Statistics of one request's steps.

    Args:
        top_k: how many of the likeliest tokens are kept a step.
        entropy_metric: whether the probability of the likeliest token is wanted as a series.
        vocabulary: entries of whole logits, if the model may return parts of them; else 0.

    Attributes:
        ring: computes them; the step log launches them there.
        sharded: whether logits were seen that are a part of the vocabulary's.
        slots: where the statistics of a step will be found, by number of the step; of several tokens the first.
        logprobs: of the chosen tokens of the first row, as long as it runs.
        entropies: of their distributions.
        top1_probabilities: of the likeliest tokens.
        nonfinite: values that were NaN or infinite, by (place, kind).
        figures: of the steps of each sequence.
    """

    __slots__ = (
        "_base",
        "_described",
        "_entropy_metric",
        "_known",
        "_noted",
        "_noted_index",
        "_several",
        "entropies",
        "figures",
        "logprobs",
        "nonfinite",
        "ring",
        "sharded",
        "slots",
        "top1_probabilities",
        "vocabulary",
    )

    def __init__(self, *, top_k: int, entropy_metric: bool, vocabulary: int = 0) -> None:
        self.ring = LogitRing(top_k=top_k, capacity=1 << 20)
        self.vocabulary = vocabulary
        self.sharded = False
        self._described: Described = ()
        self.slots: dict[int, int] = {}
        self._several: dict[int, int] = {}
        """Tokens of a step, by its number, where it has taken more than one."""
        self._known: list[StepLogits] = []
        """Statistics that have come to the host, from slot ``_base`` on."""
        self._base = 0
        self._entropy_metric = entropy_metric
        self._noted = 0
        self._noted_index = 0
        self.logprobs: list[float] = []
        self.entropies: list[float] = []
        self.top1_probabilities: list[float] = []
        self.nonfinite: dict[tuple[str, str], int] = {}
        self.figures = FigureSeries()

    @hidden
    def last_position(self, logits: Any, *, whole: bool = False) -> Tensor | None:
        """The logits of the last position, ``[rows, 1, vocabulary]``, or of the whole pass, if statistics are taken of such."""
        if logits is None:
            return None
        if type(logits) is not Tensor or self.vocabulary:
            logits = whole_logits(logits, vocabulary=self.vocabulary)
            self.sharded = self.sharded or logits is None
        if type(logits) is not Tensor or logits.dim() != 3 or not logits.is_floating_point() or 0 in logits.shape:
            return None
        # A view of a whole prompt's logits would keep them alive longer than the loop does.
        positions = logits.shape[1]
        return logits if positions == 1 or whole else logits.narrow(1, positions - 1, 1).clone()

    @hidden
    def describe(self, logits: Tensor) -> Described:
        """Shape and type of the logits of one position, in most steps those of the last one."""
        rows, _, vocabulary = logits.shape
        known = self._described
        if not known or known[0][0] != (rows, vocabulary) or known[0][1] is not logits.dtype:
            self._described = describe(logits.select(1, -1))
        return self._described

    @hidden
    def launch_several(self, number: int, logits: Tensor, ids: Tensor) -> bool:
        """Launch the statistics of a step that has taken several tokens, of one row.

        Args:
            number: of the step.
            logits: ``[1, tokens, vocabulary]`` that have chosen them.
            ids: ``[1, tokens]``.

        Returns:
            Whether all of them were launched.
        """
        if logits.device.type == "cuda" and is_capturing():
            return False
        count = int(ids.shape[1])
        ids = ids.to(logits.device, non_blocking=True)
        slots = [self.ring.append(logits.select(1, place), ids.select(1, place)) for place in range(count)]
        first = slots[0]
        if first is None or slots != [*range(first, first + count)]:
            return False
        self.slots[number] = first
        if count > 1:
            self._several[number] = count
        return True

    def fetch(self, *, wait: bool) -> None:
        """Take the statistics that have reached the host; with ``wait`` all that were launched."""
        with contain("logit statistics"):
            if wait:
                self._known.extend(self.ring.read())
            elif not is_capturing():
                self._known.extend(self.ring.landed())

    def known_of(self, numbers: Sequence[int]) -> int:
        """How many of these steps, from the first on, wait for no statistics."""
        known = self._base + len(self._known)
        several = self._several
        late = (place for place, number in enumerate(numbers) if self.slots.get(number, -1) + several.get(number, 1) > known)
        return next(late, len(numbers))

    def take(self, number: int) -> StepLogits | None:
        """The statistics of a step, once, those of the last token that it has taken; ``None`` if there are none."""
        place = self.slots.pop(number, self._base - 1) - self._base
        count = self._several.pop(number, 1)
        if not 0 <= place <= len(self._known) - count:
            return None
        if number == self._noted_index:
            self._noted_index += 1
            for found in self._known[place : place + count]:
                self._note(found)
        return self._known[place + count - 1]

    def drop_taken(self) -> None:
        """Forget the statistics that no step waits for."""
        done = min([len(self._known), *(slot - self._base for slot in self.slots.values())])
        del self._known[:done]
        self._base += done

    def _note(self, values: StepLogits) -> None:
        """Add a token to the figures, and to the series, which end at the first one that has no value or was thinned out."""
        counts = values.counts
        if counts != (0, 0):
            for kind, count in zip(("nan", "inf"), counts, strict=True):
                if count:
                    self.nonfinite["logits", kind] = self.nonfinite.get(("logits", kind), 0) + count
        self.figures.add(values)
        noted = self._noted
        self._noted = noted + 1
        if noted >= MAX_TOKENS_IN_ARRAYS:
            return
        entropy, top1, logprob = values.confidence
        # An array with holes looks like a shorter one.
        if entropy is not None and len(self.entropies) == noted:
            self.entropies.append(entropy)
            if top1 is not None and self._entropy_metric:
                self.top1_probabilities.append(top1)
        if logprob is not None and len(self.logprobs) == noted:
            self.logprobs.append(logprob)
