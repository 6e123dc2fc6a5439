"""The parts of an SDK tracer needed to build spans that have already ended.

In: a tracer. Out: its resource, scope, processor, id generator and attribute limits, and how many spans its batch processors can still
take. A tracer of another implementation, or one that has no provider yet, gives ``None``. Besides, flushes of a provider are preceded by
ours.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import dataclasses
import functools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, set_span_in_context

from inferspan.attribute_values import AttributeLimits, count_dropped
from inferspan.guard import contain
from inferspan.records import AttributeValue

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

__all__ = [
    "SpanParts", "SpanStarter", "attribute_limits", "do_before_flush", "move_span", "next_chunk", "queue_room", "record_at", "span_parts",
    "wants_order", "wants_start",
]  # fmt: skip

_UNSET = Status()
MOST_ATTRIBUTES = 120
"""No span under a request has more attributes."""


@dataclasses.dataclass(frozen=True, slots=True)
class SpanParts:
    """The parts of a finished span that an SDK tracer determines; read anew each time, as the resource changes after ``fork``."""

    tracer: Any

    @property
    def resource(self) -> Resource:
        """Resource of the tracer's provider."""
        resource: Resource = self.tracer.resource
        return resource

    @property
    def scope(self) -> InstrumentationScope:
        """Instrumentation scope of the tracer."""
        scope: InstrumentationScope = self.tracer._instrumentation_scope
        return scope

    @property
    def processor(self) -> SpanProcessor:
        """The span processor, whose ``on_end`` takes a finished span."""
        processor: SpanProcessor = self.tracer.span_processor
        return processor

    @property
    def ids(self) -> IdGenerator:
        """Generator of span ids."""
        generator: IdGenerator = self.tracer.id_generator
        return generator

    def hand_in(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext,
        start: int,
        end: int,
        attributes: Mapping[str, AttributeValue],
        failure: str | None,
        dropped: int = 0,
        links: Sequence[tuple[SpanContext, Mapping[str, AttributeValue]]] = (),
    ) -> None:
        """Make a finished span and pass it to the processors.

        Args:
            name: of the span.
            context: of the span.
            parent: context of its parent.
            start: nanoseconds since the epoch.
            end: likewise.
            attributes: of the span alone, since a processor may change them.
            failure: type of the exception that ended it.
            dropped: how many attributes it has lost to the limit of their number.
            links: contexts of the spans that it is linked to, with attributes of each link.
        """
        from opentelemetry.sdk.trace import ReadableSpan

        if dropped:
            bounded = BoundedAttributes(attributes=attributes)
            bounded.dropped, attributes = dropped, bounded  # type: ignore[assignment]  # its values may be of further types

        tracer = self.tracer
        tracer.span_processor.on_end(
            ReadableSpan(
                name=name,
                context=context,
                parent=parent,
                resource=tracer.resource,
                attributes=attributes,
                links=[Link(linked, described or None) for linked, described in links],
                kind=SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR, failure) if failure is not None else _UNSET,
                start_time=start,
                end_time=end,
                instrumentation_scope=tracer._instrumentation_scope,
            )
        )


def span_parts(tracer: Any) -> SpanParts | None:
    """The parts of finished spans on this tracer, or ``None`` if it is not (yet) one of the SDK."""
    real = getattr(tracer, "_tracer", tracer)
    needed = ("resource", "_instrumentation_scope", "span_processor", "id_generator")
    return SpanParts(real) if all(hasattr(real, name) for name in needed) else None


class _ChosenIds:
    """An id generator that returns a given span id; everything else is that of another generator."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self.span_id = 0

    def generate_span_id(self) -> int:
        """The id of the next span."""
        return self.span_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


class SpanStarter:
    """Starts and ends spans after the fact on a tracer of the SDK, for processors that act when a span starts.

    One thread at a time may use it.

    Args:
        tracer: a tracer of the SDK.
        context: the context in which the request started, with its baggage.
        request: span of the request.
    """

    def __init__(self, tracer: Any, context: Context, request: Span) -> None:
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._original = getattr(tracer, "_tracer", tracer)
        self._ids = _ChosenIds(self._original.id_generator)
        self._tracer = copy.copy(self._original)
        self._tracer.id_generator = self._ids
        # The sampler has decided about the request; a second answer could leave spans without their parent.
        self._tracer.sampler = ALWAYS_ON
        self._context, self._request = context, request

    def record(
        self,
        name: str,
        span_id: int,
        parent: SpanContext,
        start: int,
        end: int,
        attributes: Mapping[str, AttributeValue],
        failure: str | None,
        links: Sequence[tuple[SpanContext, Mapping[str, AttributeValue]]] = (),
        dropped: int = 0,
    ) -> None:
        """Start a span and end it.

        Args:
            name: of the span.
            span_id: id that it gets; children may have been made before it.
            parent: context of its parent.
            start: nanoseconds since the epoch.
            end: likewise.
            attributes: of the span, within the limits of the tracer.
            failure: type of the exception that ended it.
            links: contexts of the spans that it is linked to, with attributes of each link.
            dropped: how many attributes it has lost to the limit of their number.
        """
        above = self._request if parent.span_id == self._request.get_span_context().span_id else NonRecordingSpan(parent)
        around = set_span_in_context(above, self._context)
        self._ids.span_id = span_id
        self._tracer.resource = self._original.resource  # another one after fork()
        # Some processors read the current context instead of the one that they are given.
        token = attach(around)
        try:
            linked = [Link(link, described or None) for link, described in links]
            span = self._tracer.start_span(name, context=around, attributes=attributes, links=linked, start_time=start)
        finally:
            detach(token)
        count_dropped(span, dropped)
        if failure is not None:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(end_time=end)


def wants_start(tracer: Any) -> bool:
    """Whether a processor of this tracer acts on a span before it ends: such a span has to be started, not only handed in."""
    return not _idle_methods().issuperset(_methods(tracer, _BEFORE_THE_END))


def wants_order(tracer: Any) -> bool:
    """Whether a processor of this tracer may need the end of a span before that of its parent; those that queue spans do not."""
    return not _queueing_methods().issuperset(_methods(tracer, ("on_end",)))


def _methods(tracer: Any, names: Sequence[str]) -> Iterator[Any]:
    """These methods of each processor, as functions of their classes."""
    waiting = [getattr(getattr(tracer, "_tracer", tracer), "span_processor", None)]
    while waiting:
        processor = waiting.pop()
        parts = getattr(processor, "_span_processors", None)
        if parts is not None:
            waiting.extend(parts)
            continue
        for name in names:
            method = getattr(processor, name, None)
            if method is not None:
                yield getattr(method, "__func__", method)


def move_span(span: Span, above: SpanContext) -> bool:
    """Put a running root span of the SDK below a span of another process, in its trace; false where that cannot be done."""
    context = getattr(span, "_context", None)
    if not isinstance(context, SpanContext) or getattr(span, "_parent", span) is not None or not span.is_recording():
        return False
    span._context = SpanContext(above.trace_id, context.span_id, False, above.trace_flags, context.trace_state)  # type: ignore[attr-defined]
    span._parent = above  # type: ignore[attr-defined]
    return True


_BEFORE_THE_END = ("on_start", "_on_ending")


@functools.cache
def _idle_methods() -> frozenset[Any]:
    """The SDK's own methods that are called before a span ends and do nothing."""
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    kinds = (SpanProcessor, SimpleSpanProcessor, BatchSpanProcessor)
    return frozenset(getattr(kind, name) for kind in kinds for name in _BEFORE_THE_END if hasattr(kind, name))


@functools.cache
def _queueing_methods() -> frozenset[Any]:
    """Methods of the SDK's processors and of ours that only queue a span that has ended, or do nothing."""
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from inferspan.export.processors import BoundedSpans

    return frozenset(kind.on_end for kind in (SpanProcessor, BatchSpanProcessor, BoundedSpans))


def attribute_limits(tracer: Any) -> AttributeLimits | None:
    """The limits of a tracer of the SDK, or ``None`` if they leave every span under a request as it is."""
    limits = getattr(getattr(tracer, "_tracer", tracer), "_span_limits", None)
    count, length = getattr(limits, "max_span_attributes", None), getattr(limits, "max_span_attribute_length", None)
    if length is None and (count is None or count >= MOST_ATTRIBUTES):
        return None
    return AttributeLimits(count, length)


def _queues(tracer: Any) -> Iterator[tuple[int, int, bool]]:
    """Free places and size of the queue of each batch processor, and whether its thread has enough in it to be at work."""
    waiting = [getattr(getattr(tracer, "_tracer", tracer), "span_processor", None)]
    while waiting:
        processor = waiting.pop()
        waiting.extend(getattr(processor, "_span_processors", ()))
        batch = getattr(processor, "_batch_processor", None)
        queue, size = getattr(batch, "_queue", None), getattr(batch, "_max_queue_size", None)
        if queue is not None and isinstance(size, int):
            held = len(queue)
            yield max(0, size - held), size, held >= getattr(batch, "_max_export_batch_size", 0)


def queue_room(tracer: Any) -> int | None:
    """Spans that can be handed in at once before a batch processor of this tracer drops some; ``None`` if that is not known."""
    return min((free for free, _, _ in _queues(tracer)), default=None)


def next_chunk(tracer: Any, most: int, spare: int) -> int:
    """How many spans, up to ``most``, to hand in now; 0 while a batch processor at work has hardly more than ``spare`` free places.

    A processor whose queue holds less than a batch sleeps for seconds, so that one is filled until it wakes up.
    """
    chunk = most
    for free, size, at_work in _queues(tracer):
        chunk = min(chunk, 0 if at_work and free < min(spare, max(1, size // 2)) else free)
    return chunk


def record_at(instrument: Any, value: float, attributes: Mapping[str, AttributeValue], context: Context, time_ns: int) -> bool:
    """Record a value of the past, whose exemplar has that time; false, and nothing recorded, where the SDK is not known to take it.

    Args:
        instrument: a synchronous instrument.
        value: finite, and not negative.
        attributes: of the value.
        context: the span of the exemplar is in it.
        time_ns: nanoseconds since the epoch.
    """
    # One that was made before the program has set its provider stands for another one.
    instrument = getattr(instrument, "_real_instrument", None) or instrument
    if not type(instrument).__module__.startswith("opentelemetry.sdk."):
        return False
    consumer, enabled = getattr(instrument, "_measurement_consumer", None), getattr(instrument, "_is_enabled", None)
    measurement = _measurement()
    if consumer is None or measurement is None or not math.isfinite(value) or value < 0 or (enabled is not None and not enabled()):
        return False
    consumer.consume_measurement(measurement(value, time_ns, instrument, context, attributes))
    return True


@functools.cache
def _measurement() -> Any:
    """The SDK's class of recorded values, private to it; ``None`` if it takes other arguments."""
    with contextlib.suppress(ImportError, TypeError):
        from opentelemetry.sdk.metrics._internal.measurement import Measurement

        fields = [field.name for field in dataclasses.fields(Measurement)]
        return Measurement if fields == ["value", "time_unix_nano", "instrument", "context", "attributes"] else None
    return None


_FLUSHES = ("force_flush", "shutdown")


class _ThisThread(threading.local):
    flushing = False


_this_thread = _ThisThread()
_preceded: weakref.WeakSet[Any] = weakref.WeakSet()
"""Providers and processors whose flushes are preceded by ours."""


def do_before_flush(owner: Any, flush: Callable[[float], bool], exits: Callable[[], None]) -> None:
    """Call ``flush`` before each flush and shutdown of a provider of the SDK, and ``exits`` before it closes at the exit; once for each.

    Spans of ours end on our thread, soon after their request. A program that flushes or closes its provider must not be ahead of it, so
    these two methods of the object are wrapped. A provider that closes itself at the exit has registered that before; what is registered
    here comes first.

    Args:
        owner: a tracer provider, or the processor that its tracers have: all flushes reach this one, also those of a provider that stands
            before the SDK's and those by methods that the program has kept. Others are left as they are.
        flush: what to do first; is given the seconds that it may take, infinite if the caller has set no limit, and returns whether it
            has done all. Its errors are contained.
        exits: called as the interpreter exits.
    """
    if not (hasattr(owner, "_active_span_processor") or hasattr(owner, "_span_processors")) or owner in _preceded:
        return
    _preceded.add(owner)
    for name in _FLUSHES:
        # In the object's own dictionary: its class belongs to all providers.
        setattr(owner, name, _after(flush, weakref.ref(owner), name, owner.__dict__.get(name)))
    atexit.register(exits)


def _after(flush: Callable[[float], bool], owner: weakref.ref[Any], name: str, own: Any) -> Callable[..., Any]:
    """The method ``name`` of ``owner``, after ``flush``; ``own`` is what the object has instead of its class's."""
    kind = type(owner())

    @functools.wraps(getattr(kind, name))
    def method(*args: Any, **kwargs: Any) -> Any:
        call = own if own is not None else functools.partial(getattr(kind, name), owner())
        if _this_thread.flushing:  # a provider flushes its processor
            return call(*args, **kwargs)
        done = True
        with contain("flush of a provider"):
            limit = (args[0] if args else kwargs.get("timeout_millis")) if name == "force_flush" else None
            done = flush(limit / 1000 if isinstance(limit, (int, float)) else math.inf)
        _this_thread.flushing = True
        try:
            result = call(*args, **kwargs)
        finally:
            _this_thread.flushing = False
        return False if result is True and not done else result

    return method
