"""Writes the detail of requests as spans, off the model's path.

Phases, steps and module calls are queued while a request runs and become spans afterwards, in small paced chunks: packed bytes, finished
spans for the processors of the SDK, or, if a processor acts when a span starts or the tracer is not the SDK's, spans that are started and
ended with their times. A span that cannot be made costs itself and nothing else.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from types import FrameType
from typing import NamedTuple, Protocol

from opentelemetry import trace
from opentelemetry.trace import SpanContext, Status, StatusCode

from inferspan.buffer import CAPACITY, Buffer
from inferspan.export.sdk import next_chunk
from inferspan.guard import contain, guarded
from inferspan.records import ModuleBatch, Record, RequestEnd
from inferspan.spans.packed.detail import PackedDetail

from .finished import FinishedSpan, finished_spans
from .ranks.joining import WAIT
from .request import RequestSpan

__all__ = ["Detail", "RequestSpan", "SpanWriter", "inside_a_provider", "our_call"]

SPANS_PER_CHUNK = 32
"""Spans made in a row before other threads can run."""
PAUSE = 0.001
"""Seconds of sleep between chunks."""
HOLD_NS = 60_000
"""Nanoseconds of work that no pause follows: sleeping costs the model's thread a hand-over of the interpreter as well."""
PAUSE_OF_ENDS = 0.0002
"""Seconds of sleep between the parts of an end of a request, of which there may be thousands a second."""
SPARE_QUEUE_PLACES = 256
"""Free places that the queue of a batch processor keeps for other spans."""
EXIT_WAIT = 2.0
"""Longest time in seconds that the interpreter's exit waits for detail to be written."""
MAX_QUEUE_WAIT = 2.0
"""Longest time in seconds that a chunk waits for a batch processor to empty its queue."""


class _ThisThread(threading.local):
    busy: FrameType | None = None
    """The frame of ours that is inside a provider."""


_this_thread = _ThisThread()


def inside_a_provider() -> bool:
    """Whether this thread is inside a call of ours into a provider; a model that runs there is not recorded, which would never end."""
    inside = _this_thread.busy
    if inside is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame is inside:
            return True
        frame = frame.f_back
    # An interrupt has kept ``our_call`` from saying that it has ended.
    _this_thread.busy = None
    return False


class our_call:
    """Mark a call of ours into a provider; see :func:`inside_a_provider`."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before, _this_thread.busy = _this_thread.busy, sys._getframe(1)

    def __exit__(self, *raised: object) -> None:
        _this_thread.busy = self._before


class Detail(NamedTuple):
    """Records of one request on their way to the writer."""

    records: Sequence[Record]
    spans: bool = True
    """Whether they become spans; else they are only measured."""
    metrics: bool = True
    """Whether modules are measured; else they have been."""


class Ending(Protocol):
    """The end of a request, as the hand-over thread completes it."""

    def finish(self, pause: Callable[[], None]) -> None:
        """End the span and record the metrics; ``pause`` is called in between, to let others have the interpreter."""


_Queued = tuple[RequestSpan, Detail | RequestEnd] | Ending | Callable[[], None]


class SpanWriter:
    """Turns queued detail into finished spans and hands them to the processors.

    Args:
        capacity: spans that may wait; further detail is refused.
    """

    def __init__(self, *, capacity: int = CAPACITY) -> None:
        self._buffer: Buffer[_Queued] = Buffer(self._write, capacity=capacity)
        self._packed = PackedDetail()
        self._sources: tuple[Callable[[], None], ...] = ()
        self._lock = threading.Lock()
        self._exiting = False
        self._slept_ns = 0
        """When the hand-over thread has slept last, on the monotonic clock."""

    def add_source(self, collect: Callable[[], None]) -> Callable[[], None]:
        """Call ``collect`` at each flush, before all else; returns what ends that."""
        with self._lock:
            self._sources = (*self._sources, collect)

        def remove() -> None:
            with self._lock:
                self._sources = tuple(source for source in self._sources if source != collect)

        return remove

    def soon(self, collect: Callable[[], None]) -> bool:
        """Call ``collect`` on the hand-over thread; false if the buffer is full."""
        return self._buffer.put(collect, 1, hurry=True)

    def renew_lock(self) -> None:
        """Called in a forked child, where nobody is left to release it."""
        self._lock = threading.Lock()

    def put(self, scope: RequestSpan, item: Detail | RequestEnd, weight: int) -> bool:
        """Queue detail of a request, or the end of one whose steps are to be measured; false if the buffer is full."""
        return self._buffer.put((scope, item), weight)

    def put_now(self, scope: RequestSpan, detail: Detail, weight: int) -> bool:
        """Write detail of a request on the calling thread; false if other detail comes first, or if it has to be measured as well."""
        if detail.metrics and any(map(scope.metrics.measures, detail.records)):
            return False
        return self._buffer.consume_now((scope, detail), weight)

    def put_end(self, ending: Ending) -> bool:
        """Queue the end of a request, before the detail that waits if that is much.

        Returns:
            False if the caller has to complete it, because nobody else would in time.
        """
        if self._exiting:
            return False
        # Behind its own detail: who forgets what was exported would otherwise lose the parents of what comes.
        return (self._buffer.has_few and self._buffer.put(ending, 1)) or self._buffer.put_first(ending)

    def exits(self) -> None:
        """The interpreter exits: write what is queued, and complete the ends of further requests on their own threads."""
        self._exiting = True
        self.flush(EXIT_WAIT)

    def flush(self, timeout: float | None = None) -> bool:
        """Write everything that is collected and queued, on the calling thread."""
        for collect in self._sources:
            with contain("collecting"):
                collect()
        return self._buffer.flush(timeout)

    def _write(self, queued: _Queued, until: float | None) -> None:
        if isinstance(queued, tuple):
            with our_call():
                self._hand_over(queued, until)
        elif callable(queued):
            # It may start requests, which are not ours into a provider.
            queued()
        else:
            with our_call():
                queued.finish(lambda: self._pause(until, PAUSE_OF_ENDS))

    def _hand_over(self, queued: tuple[RequestSpan, Detail | RequestEnd], until: float | None) -> None:
        scope, item = queued
        if isinstance(item, RequestEnd):
            scope.metrics.waiting.settle(lambda: self._between(until))
            scope.metrics.steps(scope.request, item, scope.span, lambda: self._between(until))
            return
        scope.join(WAIT)
        left, patience = SPANS_PER_CHUNK, MAX_QUEUE_WAIT
        for record in item.records:
            if item.metrics and scope.metrics.measures(record):
                self._measure(scope, record, until)
            if not item.spans:
                continue
            if isinstance(record, ModuleBatch) and scope.figures is not None:
                with contain("summary"):
                    scope.figures.calls(record, lambda: self._between(until))
            if scope.sender is not None:
                self._packed.write(scope, record, lambda: self._between(until))
                continue
            for span in finished_spans(scope, record):
                if not left:
                    left = self._pace(scope, until, patience)
                if not left:
                    # A processor that has accepted nothing for so long has lost its receiver: stop waiting for it.
                    left, patience = SPANS_PER_CHUNK, 0.0
                self._hand_in(scope, span)
                left -= 1
        if scope.sender is not None and item.spans:
            self._packed.finish(scope)

    def _measure(self, scope: RequestSpan, batch: Record, until: float | None) -> None:
        if not isinstance(batch, ModuleBatch):
            return
        calls = batch.calls.rows()
        while some := list(islice(calls, SPANS_PER_CHUNK)):
            scope.metrics.modules(scope.request, batch, some, scope.span)
            self._between(until)

    def _between(self, until: float | None) -> None:
        """Between the parts of a long item: complete requests that have ended, which come soon however much detail there is, and pause."""
        self._buffer.first(until)
        self._pause(until)

    def _pause(self, until: float | None, seconds: float = PAUSE) -> None:
        """Release the interpreter to the model's thread, unless a flush is waiting or this has just been done."""
        if until is None and not self._buffer.awaited and time.perf_counter_ns() - self._slept_ns >= HOLD_NS:
            time.sleep(seconds)
            self._slept_ns = time.perf_counter_ns()

    def _pace(self, scope: RequestSpan, until: float | None, patience: float) -> int:
        """Release the interpreter, and wait for batch processors to empty their queues; returns how many spans may follow."""
        self._between(until)
        end = time.monotonic() + patience
        while not (chunk := next_chunk(scope.tracer, SPANS_PER_CHUNK, SPARE_QUEUE_PLACES)):
            now = time.monotonic()
            if now >= end or (until is not None and now >= until):
                return 0
            time.sleep(10 * PAUSE)
            self._buffer.first(until)
        return chunk

    # ------------------------------------------------------------------------------------------------------- one span
    @guarded("span hand-over")
    def _hand_in(self, scope: RequestSpan, span: FinishedSpan) -> None:
        if scope.parts is None:
            self._through_api(scope, span)
            return
        name, span_id, parent_id, start, end, attributes, failure, dropped, links = span
        context = scope.context
        trace_id, flags, state = context.trace_id, context.trace_flags, context.trace_state
        own = SpanContext(trace_id, span_id, False, flags, state)
        parent = SpanContext(trace_id, parent_id, False, flags, state)
        if scope.starter is not None:
            scope.starter.record(name, span_id, parent, start, end, attributes, failure, links, dropped)
            return
        scope.parts.hand_in(name, own, parent, start, end, attributes, failure, dropped, links)

    @staticmethod
    def _through_api(scope: RequestSpan, made: FinishedSpan) -> None:
        """For tracers of another implementation: flat under the request, because ids cannot be chosen through the API."""
        inside = trace.set_span_in_context(scope.span)
        # The modules of a pass, which links with attributes are to, cannot be found there.
        links = [trace.Link(linked.context) for linked in made.links if not linked.attributes]
        span = scope.tracer.start_span(made.name, context=inside, start_time=made.start_ns, attributes=made.attributes, links=links)
        if made.failure is not None:
            span.set_status(Status(StatusCode.ERROR, made.failure))
        span.end(end_time=made.end_ns)
