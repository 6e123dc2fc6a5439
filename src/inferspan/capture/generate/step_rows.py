"""Rows of the steps that have ended, until records are made of them and handed over.

In: a row for each step, noted by the step log. Out: records, with the statistics of their logits, in batches while the request runs and the
rest at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from inferspan.capture.call import Call
from inferspan.capture.owner import Owner
from inferspan.guard import contain, report
from inferspan.records import ModuleBatch, PassRun, PhaseKey, Profiled, Step

from .pass_shapes import Mark, add_mark
from .step_attributes import AnyStepRow, StepFacts
from .step_logits import StepStatistics

__all__ = ["StepRows"]

LIVE = 512
"""Steps that are kept before they are handed over while the request still runs."""
MOST_LIVE = 8 * LIVE
"""Steps that are kept at most before their statistics are waited for."""
ROW_BYTES = 550
"""Statistics of one row of a step's logits as Python numbers."""
SIZE = Step._field_defaults["size"]


class StepRows:
    """Rows of one request.

    Args:
        request: gets the records.
        owner: instrumentation of the model.
        statistics: of the logits, if any are taken.

    Attributes:
        kept: rows that have not been handed over.
        most: how many of them there may be until some are.
        marks: passes that are unlike the one before.
        run: shape, phase, and length less number of the steps that the last of them begins.
        running: sequences that run in every step, where the statistics of the logits do not tell; ``None`` if that is not known.
    """

    __slots__ = ("_owner", "_request", "kept", "marks", "most", "run", "running", "statistics")

    def __init__(self, request: Call, owner: Owner, statistics: StepStatistics | None) -> None:
        self._request = request
        self._owner = owner
        self.statistics = statistics
        self.kept: list[AnyStepRow] = []
        self.most = LIVE
        self.running: int | None = None
        self.marks: list[Mark] = []
        self.run: tuple[Any, PhaseKey, int] | None = None

    def mark(self, index: int, phase: PhaseKey, main: Any, length: int | None, cached: int) -> None:
        """Note a pass that does not continue the run before; see ``add_mark``."""
        self.run = None if length is None else (getattr(main, "shape", None), phase, length - index)
        add_mark(self.marks, index, phase, main, length, cached)

    def holds(self, number: int) -> bool:
        """Whether the step ``number`` is the newest one that is kept."""
        return bool(self.kept) and self.kept[-1][0] == number

    def add_attributes(self, number: int, attributes: dict[str, Any]) -> None:
        """Add attributes to the step ``number``, which has ended last; the mapping may still change until the request ends."""
        if self.holds(number):
            row = self.kept[-1]
            attributes.update({**(row[9] or {}), **attributes})
            self.kept[-1] = (*row[:9], attributes, *row[10:])

    def stretch(self, number: int, end: int) -> bool:
        """Let the step ``number`` end later; whether it is kept.

        It cannot be left to the writer: the record of a step may have been handed over before the pass that makes it longer.
        """
        held = self.holds(number)
        if held:
            row = self.kept[-1]
            self.kept[-1] = (*row[:2], end, *row[3:])
        return held

    def add_logits(self, number: int, logits: Any) -> Tensor | None:
        """Add logits that came after the end of the step ``number``; those of its last position, if statistics are taken of such."""
        if self.statistics is None or not self.holds(number):
            return None
        last = self.statistics.last_position(logits)
        if last is not None:
            row = self.kept[-1]
            self.kept[-1] = (*row[:6], self.statistics.describe(last), *row[7:])
        return last

    def hand_over_some(self) -> None:
        """Hand over those whose statistics have come, all but the newest; with very many kept, wait for the statistics."""
        count = len(self.kept)
        self.hand_over(count - 1, wait=count > MOST_LIVE)
        # Those whose statistics are still on the device come with the next ones.
        self.most = len(self.kept) + LIVE

    def hand_over(self, count: int, *, wait: bool, last: bool = False) -> None:
        """Give the first ``count`` rows to the request as records; the last ones leave with its end. Contains errors of its own.

        Without ``wait`` only those go that have their statistics by now.
        """
        request, statistics = self._request, self.statistics
        with contain("hand-over of steps"):
            if statistics is not None:
                statistics.fetch(wait=wait)
                if not wait:
                    count = statistics.known_of([row[0] for row in self.kept[:count]])
            records = self._records(self.kept[:count])
            # Without a call in between, so that no interrupt has them handed over twice, or never.
            request.pending += records
            del self.kept[:count]
            if statistics is not None:
                statistics.drop_taken()
            if not last:
                if request.clock is not None:
                    request.clock.read(leave=len(self.kept))
                request.hand_over()

    def _records(self, rows: list[AnyStepRow]) -> list[Step]:
        """Records of steps, with the statistics of their logits where there are any."""
        owner, statistics, offset = self._owner, self.statistics, self._request.offset
        content = owner.ids_on_spans
        decode = owner.decode_token if content and owner.tokenizer is not None else None
        records = []
        wanted = self._request.roofline if self._request.roofline is not None and self._request.roofline.every else None
        profiled = {} if wanted is None else self._profiled()
        for row in rows:
            number, start, end, phase, failure = row[:5]
            logits = None
            # On its own, because the modules of the step need it as their parent.
            try:
                logits = None if statistics is None else statistics.take(number)
            except Exception as error:
                report("logit statistics", error)
            size = SIZE if logits is None else SIZE + ROW_BYTES * logits.rows_kept
            facts = StepFacts(row, logits, running=self.running, content=content, decode=decode)
            roofline = None if wanted is None or not row[5] or row[7] is None else wanted.of_step(
                PassRun(int(row[5][0][0][0]), row[7], row[8], first=number == 0), profiled.get(number, ())
            )
            records.append(Step(number, phase, start + offset, end + offset, failure, facts, size, roofline=roofline))
        return records

    def _profiled(self) -> dict[int | None, Sequence[Profiled]]:
        """Rows of profiler windows by the number of their step, of steps whose modules wait as well."""
        batches = [record for record in self._request.pending if isinstance(record, ModuleBatch) and record.profiled]
        return {batch.step: batch.profiled for batch in batches}
