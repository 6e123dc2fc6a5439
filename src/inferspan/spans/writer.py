"""The detail of requests as finished spans, made off the model's path.

Phases, steps and module calls are queued while a request runs and become spans afterwards, in small paced chunks, with ids of our own
generator. On a tracer that is not the SDK's they are started and ended through the API with their times. A span that cannot be made
costs itself and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.trace import SpanContext, Status, StatusCode

from inferspan import semconv
from inferspan.attribute_values import shape_texts
from inferspan.buffer import Buffer
from inferspan.export.ids import ids
from inferspan.export.sdk import next_chunk
from inferspan.guard import guarded
from inferspan.records import AttributeValue, ModuleBatch, Phase, RequestEnd, Step
from inferspan.spans.packed.detail import RawDetail

from .request import RequestSpan, step_name

__all__ = ["Detail", "RequestSpan", "SpanWriter", "inside_a_provider", "our_call"]

CHUNK = 32
"""Spans made at once before the thread lets others run."""
PAUSE = 0.001
ROOM = 256
PATIENCE = 2.0
"""Longest time in seconds that a chunk waits for a batch processor to empty its queue."""


class _Own(threading.local):
    busy = False


_own = _Own()


def inside_a_provider() -> bool:
    """Whether a call of ours into a provider runs on this thread. A model that runs inside it is no request: it would never end."""
    return _own.busy


@contextmanager
def our_call() -> Iterator[None]:
    """Mark a call of ours into a provider; see :func:`inside_a_provider`."""
    before, _own.busy = _own.busy, True
    try:
        yield
    finally:
        _own.busy = before


class Detail(NamedTuple):
    """Records of one request on their way to the writer."""

    records: Sequence[Phase | Step | ModuleBatch]
    spans: bool = True
    """Whether they become spans; else they are only measured."""
    metrics: bool = True
    """Whether modules are measured; else they have been."""


class SpanWriter:
    """Turns queued detail into finished spans and hands them to the processors."""

    def __init__(self) -> None:
        self._buffer: Buffer[tuple[RequestSpan, Detail | RequestEnd]] = Buffer(self._write)
        self._raw = RawDetail(shape_texts)

    def put(self, scope: RequestSpan, item: Detail | RequestEnd, weight: int) -> bool:
        """Queue detail of a request, or the end of one whose steps are to be measured; false if there is no room."""
        return self._buffer.put((scope, item), weight)

    def put_now(self, scope: RequestSpan, detail: Detail) -> bool:
        """Hand detail of a request over on the calling thread; false where others come first, or where it is to be measured as well."""
        if detail.metrics and any(isinstance(record, ModuleBatch) and scope.metrics.has_modules(record) for record in detail.records):
            return False
        return self._buffer.consume_now((scope, detail))

    def flush(self, timeout: float | None = None) -> bool:
        """Hand over everything that is queued, on the calling thread."""
        return self._buffer.flush(timeout)

    def _write(self, queued: tuple[RequestSpan, Detail | RequestEnd], until: float | None) -> None:
        with our_call():
            self._hand_over(queued, until)

    def _hand_over(self, queued: tuple[RequestSpan, Detail | RequestEnd], until: float | None) -> None:
        scope, item = queued
        if isinstance(item, RequestEnd):
            scope.metrics.steps(scope.request, item, scope.span, lambda: self._pause(until))
            return
        left, patience = CHUNK, PATIENCE
        for record in item.records:
            if item.metrics and isinstance(record, ModuleBatch) and scope.metrics.has_modules(record):
                self._measure(scope, record, until)
            if not item.spans:
                continue
            if scope.sink is not None:
                self._raw.write(scope, record, lambda: self._pause(until))
                continue
            for span in self._spans(scope, record):
                if not left:
                    left = self._pace(scope, until, patience)
                if not left:
                    # A processor that has taken nothing for so long has lost its receiver: no more waiting for it.
                    left, patience = CHUNK, 0.0
                self._hand_in(scope, span)
                left -= 1
        if scope.sink is not None and item.spans:
            self._raw.finish(scope)

    def _measure(self, scope: RequestSpan, batch: ModuleBatch, until: float | None) -> None:
        calls = batch.calls.rows()
        while some := list(islice(calls, CHUNK)):
            scope.metrics.modules(scope.request, batch, some, scope.span)
            self._pause(until)

    def _pause(self, until: float | None) -> None:
        """Let the model's thread have the interpreter, unless somebody waits for the hand-over."""
        if until is None and not self._buffer.awaited:
            time.sleep(PAUSE)

    def _pace(self, scope: RequestSpan, until: float | None, patience: float) -> int:
        """Let the model's thread have the interpreter, and a batch processor empty its queue; returns how many spans may follow."""
        self._pause(until)
        end = time.monotonic() + patience
        while not (chunk := next_chunk(scope.tracer, CHUNK, ROOM)):
            now = time.monotonic()
            if now >= end or (until is not None and now >= until):
                return 0
            time.sleep(10 * PAUSE)
        return chunk

    # ------------------------------------------------------------------------------------------------------- one span
    @guarded("span hand-over")
    def _hand_in(self, scope: RequestSpan, span: tuple[Any, ...]) -> None:
        name, span_id, parent_id, start, end, attributes, failure = span
        start, end = scope.within(start, end)
        if failure is not None:
            attributes[semconv.ERROR_TYPE] = failure
        context = scope.context
        if scope.parts is None:
            self._through_api(scope, name, start, end, attributes, failure)
            return
        scope.parts.hand_in(
            name,
            SpanContext(context.trace_id, span_id, False, context.trace_flags, context.trace_state),
            SpanContext(context.trace_id, parent_id or context.span_id, False, context.trace_flags, context.trace_state),
            start,
            end,
            attributes,
            failure,
        )

    @staticmethod
    def _through_api(
        scope: RequestSpan, name: str, start: int, end: int, attributes: Mapping[str, AttributeValue], failure: str | None
    ) -> None:
        """For tracers of another implementation: flat under the request, which is all that can be done after the fact."""
        span = scope.tracer.start_span(name, context=trace.set_span_in_context(scope.span), start_time=start, attributes=attributes)
        if failure is not None:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(end_time=end)

    def _spans(self, scope: RequestSpan, record: Phase | Step | ModuleBatch) -> Iterator[tuple[Any, ...]]:
        if isinstance(record, ModuleBatch):
            yield from self._modules(scope, record)
        elif isinstance(record, Step):
            attributes = dict(record.attributes() if callable(record.attributes) else record.attributes)
            attributes |= {semconv.PHASE: record.phase, semconv.STEP_INDEX: record.number, **dict(scope.device)}
            own, parent = scope.step_id(record.number), scope.phase_id(record.phase)
            yield step_name(record.phase), own, parent, record.start_ns, record.end_ns, attributes, record.failure
        else:
            attributes = {semconv.PHASE: record.name, **record.attributes}
            yield record.name, scope.phase_id(record.name), None, record.start_ns, record.end_ns, attributes, record.failure

    def _modules(self, scope: RequestSpan, batch: ModuleBatch) -> Iterator[tuple[Any, ...]]:
        above = scope.above(batch)
        calls = list(batch.calls.rows())
        own = {call[0]: ids().generate_span_id() for call in (*calls, *batch.profiled)}
        for number, parent, info, start, end, inputs, outputs, failure, statistics in calls:
            attributes: dict[str, AttributeValue] = {
                semconv.PHASE: batch.phase,
                semconv.MODULE_NAME: info.name,
                semconv.MODULE_TYPE: info.type,
            }
            if batch.step is not None:
                attributes[semconv.STEP_INDEX] = batch.step
            if info.layer_index is not None:
                attributes[semconv.MODULE_LAYER_INDEX] = info.layer_index
            if inputs:
                attributes[semconv.INPUT_SHAPES], attributes[semconv.INPUT_DTYPES] = shape_texts(inputs)
            if outputs:
                attributes[semconv.OUTPUT_SHAPES], attributes[semconv.OUTPUT_DTYPES] = shape_texts(outputs)
            if (seconds := batch.device.get(number)) is not None:
                attributes[semconv.DEVICE_TIME] = seconds
            if statistics is not None:
                attributes.update(batch.statistics.get(statistics, {}))
            yield info.span_name, own[number], own.get(parent, above), start + batch.offset, end + batch.offset, attributes, failure
        for number, parent, name, start, end, known in batch.profiled:
            attributes = {semconv.PHASE: batch.phase, **known}
            if batch.step is not None:
                attributes[semconv.STEP_INDEX] = batch.step
            yield name, own[number], own.get(parent, above), start + batch.offset, end + batch.offset, attributes, None
