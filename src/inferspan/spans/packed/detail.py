"""Detail of requests on the raw way out: records become OTLP bytes and go to the sink beside the provider.

A forward pass leaves as one piece or a few, phases and steps as pieces of some thirty. After each piece the caller is asked to pause, so
that the interpreter is never kept from the model for more than a fraction of a millisecond. What the sink refuses is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferspan import semconv
from inferspan.guard import guarded
from inferspan.records import ModuleBatch, Phase, Step
from inferspan.spans.request import RequestSpan, step_name

from .modules import Described, ModulePacker
from .steps import SpanPacker

__all__ = ["RawDetail"]

STEPS = 32
"""Phases and steps in one piece: some 0.2 ms of packing."""


class RawDetail:
    """Packs records and offers them to the sink of their request.

    Args:
        described: texts of shapes and dtypes.
    """

    def __init__(self, described: Described) -> None:
        self._modules = ModulePacker(described)
        self._spans = SpanPacker()
        self._packed: list[bytes] = []

    def write(self, request: RequestSpan, record: Phase | Step | ModuleBatch, pause: Callable[[], None]) -> None:
        """Pack one record and call ``pause`` after each piece; phases and steps wait for others, at most until ``finish``."""
        if isinstance(record, ModuleBatch):
            self._write_modules(request, record, pause)
            return
        self._write_span(request, record)
        if len(self._packed) >= STEPS:
            self.finish(request)
            pause()

    @guarded("span hand-over")
    def finish(self, request: RequestSpan) -> None:
        """Offer the phases and steps that wait."""
        packed, self._packed = self._packed, []
        if packed:
            self._offer(request, b"".join(packed), len(packed))

    @guarded("span hand-over")
    def _write_modules(self, request: RequestSpan, batch: ModuleBatch, pause: Callable[[], None]) -> None:
        for packed, count in self._modules.pack(request.context, batch, request.above(batch)):
            self._offer(request, packed, count)
            pause()

    @guarded("span hand-over")
    def _write_span(self, request: RequestSpan, record: Phase | Step) -> None:
        fixed: tuple[tuple[str, Any], ...]
        if isinstance(record, Step):
            name, own, parent = step_name(record.phase), request.step_id(record.number), request.phase_id(record.phase)
            attributes = dict(record.attributes() if callable(record.attributes) else record.attributes)
            attributes[semconv.STEP_INDEX] = record.number
            fixed = (semconv.PHASE, record.phase), *request.device
        else:
            name, own, parent = record.name, request.phase_id(record.name), request.context.span_id
            attributes, fixed = dict(record.attributes), ((semconv.PHASE, record.name),)
        if record.failure is not None:
            attributes[semconv.ERROR_TYPE] = record.failure
        times = request.within(record.start_ns, record.end_ns)
        self._packed.append(self._spans.pack(request.context, name, own, parent, times, attributes, record.failure, fixed))

    @staticmethod
    def _offer(request: RequestSpan, packed: bytes, count: int) -> None:
        request.metrics.dropped(count - request.sink.offer(packed, count), "queue_full")
