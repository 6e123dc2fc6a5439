"""The OTLP bytes of passes that the C extension has recorded: it fills them into their template itself, mostly without the lock.

``template`` has the same for all passes in Python. Kernels of a profiler, links of the data flow and what a setting adds to single calls
are packed there.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from inferspan.records import ModuleBatch, ModuleColumns, ModuleRow

from .template import DEVICE_TIME, PassHead

__all__ = ["MIN_TEMPLATE_CALLS", "SPANS_PER_TEMPLATE", "TEMPLATE_CALLS", "RecordedPasses", "places_of_parents"]

TEMPLATE_CALLS = 16_384
"""Module calls for which templates are cached; each takes some 500 bytes."""
SPANS_PER_TEMPLATE = 1024
"""Spans filled into a template before other threads can run."""
MIN_TEMPLATE_CALLS = 16
"""Smallest number of calls for which a template is worth its fixed cost."""


class RecordedPasses:
    """Templates of the passes that the C extension has recorded, by structure.

    Args:
        tail: the bytes that are equal for all calls of a module with the same shapes, of a call in a phase.
        extra: the bytes that few calls have, of a call of a pass.
    """

    def __init__(self, tail: Callable[[ModuleRow, str], bytes], extra: Callable[[ModuleBatch, ModuleRow], bytes]) -> None:
        self._tail, self._extra = tail, extra
        self._templates: OrderedDict[tuple[str, int, int, int], Any] = OrderedDict()
        """``None`` for passes that were seen once, and may not come again."""
        self._kept_calls = 0

    def template(self, batch: ModuleBatch) -> tuple[Any, list[int]] | None:
        """The template of a pass, and the places of calls with statistics or a failure; ``None`` if it has to be packed in Python."""
        if batch.flow is not None or batch.profiled or batch.tokens or batch.collectives or batch.roofline is not None:
            return None
        calls: Any = batch.calls
        count, phase = len(calls), batch.phase.name
        if count < MIN_TEMPLATE_CALLS or not hasattr(calls, "template"):
            return None
        key = (phase, count, id(calls[0][2]), id(calls[count - 1][2]))
        if key not in self._templates:
            self._remember(key)
            return None
        self._templates.move_to_end(key)
        known = self._templates[key]
        if known is None:
            known = self._templates[key] = self._build(calls, phase)
        compared = known.compare(calls)
        if compared is None:
            self._templates[key] = None
            return None
        changed, special = compared
        for place in changed:
            known.renew(place, calls, self._tail(calls[place], phase))
        return known, special

    def fill(self, found: tuple[Any, list[int]], head: PassHead, batch: ModuleBatch, above: int) -> Iterator[tuple[bytes, int]]:
        """Fill a pass into its template, in pieces, between which the caller may pause.

        Args:
            found: what ``template`` gave for the pass.
            head: the values that its spans share.
            batch: the pass.
            above: span id of the parent of calls without a parent in it.

        Yields:
            Framed spans and their number.
        """
        template, special = found
        calls: Any = batch.calls
        count, device = len(calls), batch.device or None
        extra = {place: self._extra(batch, calls[place]) for place in special}
        # One read for all ids. Eight zero bytes would be an invalid id, with a probability of 2**-64.
        ids = os.urandom(8 * count) + above.to_bytes(8, "big")
        chunk = head.chunk(timed=device is not None)
        time_size = 0 if device is None else len(DEVICE_TIME)
        for first in range(0, count, SPANS_PER_TEMPLATE):
            stop = min(first + SPANS_PER_TEMPLATE, count)
            yield template.fill(calls, first, stop, chunk, time_size, head.offset, ids, device, extra), stop - first

    def _build(self, calls: Any, phase: str) -> Any:
        columns = calls.columns()
        return calls.template(places_of_parents(columns), [self._tail(columns.row(place), phase) for place in range(len(calls))])

    def _remember(self, key: tuple[str, int, int, int]) -> None:
        self._templates[key] = None
        self._kept_calls += key[1]
        while self._kept_calls > TEMPLATE_CALLS and len(self._templates) > 1:
            (_, count, *_), _ = self._templates.popitem(last=False)
            self._kept_calls -= count


def places_of_parents(calls: ModuleColumns) -> list[int]:
    """For each call the place of its parent, or the number of calls where the span above them is the parent."""
    place_of = {number: place for place, number in enumerate(calls.numbers)}
    return [place_of.get(parent, len(place_of)) for parent in calls.parents]
