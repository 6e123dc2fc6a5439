"""Detail of requests on the direct OTLP path: records become OTLP bytes and go to the sender beside the provider.

A forward pass is packed into one or a few pieces, phases and steps into pieces of some thirty. After each piece the caller pauses, so
that packing never holds the interpreter for more than a fraction of a millisecond. Spans that the sender refuses are counted.
"""

from __future__ import annotations

from collections.abc import Callable

from inferspan.guard import guarded
from inferspan.records import ModuleBatch, Phase, Record, Stage, Step
from inferspan.spans.finished import FinishedSpan, finished_spans, one_span
from inferspan.spans.request import RequestSpan

from .modules import ModulePacker
from .steps import SpanPacker

__all__ = ["PackedDetail"]

STEPS_PER_PIECE = 32
"""Phases and steps in one piece, which takes some 0.2 ms to pack."""


class PackedDetail:
    """Packs records and offers them to the sender of their request."""

    def __init__(self) -> None:
        self._modules = ModulePacker()
        self._spans = SpanPacker()
        self._packed: list[bytes] = []

    def write(self, request: RequestSpan, record: Record, pause: Callable[[], None]) -> None:
        """Pack one record and call ``pause`` after each piece; phases, steps and stages are collected, at most until ``finish``."""
        if isinstance(record, ModuleBatch):
            if request.limits is None:
                self._write_modules(request, record, pause)
                return
            # Limits apply to a whole span, so the cached bytes of modules and shapes cannot be used.
            for made in finished_spans(request, record):
                self._write_module(request, made)
                if len(self._packed) >= STEPS_PER_PIECE:
                    self.finish(request)
                    pause()
            return
        self._write_one(request, record)
        if len(self._packed) >= STEPS_PER_PIECE:
            self.finish(request)
            pause()

    @guarded("span hand-over")
    def finish(self, request: RequestSpan) -> None:
        """Offer the spans that are packed and not yet offered."""
        packed, self._packed = self._packed, []
        if packed:
            self._offer(request, b"".join(packed), len(packed))

    @guarded("span hand-over")
    def _write_modules(self, request: RequestSpan, batch: ModuleBatch, pause: Callable[[], None]) -> None:
        for packed, count in self._modules.pack(request.context, batch, request.above(batch)):
            self._offer(request, packed, count)
            pause()

    @guarded("span hand-over")
    def _write_one(self, request: RequestSpan, record: Phase | Step | Stage) -> None:
        self._packed.append(self._spans.pack(request.context, one_span(request, record)))

    @guarded("span hand-over")
    def _write_module(self, request: RequestSpan, made: FinishedSpan) -> None:
        self._packed.append(self._spans.pack(request.context, made))

    @staticmethod
    def _offer(request: RequestSpan, packed: bytes, count: int) -> None:
        request.metrics.dropped(count - request.sender.offer(packed, count), "queue_full")
