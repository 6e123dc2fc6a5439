"""What it takes to make finished spans after the fact on a tracer of the SDK.

In comes a tracer, out come the resource, scope, processor and id generator that it would use, and how many spans its batch processors
can still take. A tracer of another implementation, or one that has no provider yet, gives ``None``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode

from inferspan.attribute_values import AttributeLimits
from inferspan.records import AttributeValue

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

__all__ = ["SpanParts", "attribute_limits", "next_chunk", "queue_room", "span_parts"]

_UNSET = Status()
MOST_ATTRIBUTES = 100
"""No span under a request has more attributes."""


@dataclasses.dataclass(frozen=True, slots=True)
class SpanParts:
    """What finished spans are made of on a tracer of the SDK; read anew each time, as the resource changes after ``fork``."""

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
        """Where a finished span is handed in, with ``on_end``."""
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
                kind=SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR, failure) if failure is not None else _UNSET,
                start_time=start,
                end_time=end,
                instrumentation_scope=tracer._instrumentation_scope,
            )
        )


def span_parts(tracer: Any) -> SpanParts | None:
    """What is needed to make finished spans on this tracer, or ``None`` if it is not (yet) one of the SDK."""
    real = getattr(tracer, "_tracer", tracer)
    needed = ("resource", "_instrumentation_scope", "span_processor", "id_generator")
    return SpanParts(real) if all(hasattr(real, name) for name in needed) else None


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
    return min((room for room, _, _ in _queues(tracer)), default=None)


def next_chunk(tracer: Any, most: int, spare: int) -> int:
    """How many spans, up to ``most``, to hand in now; 0 while a batch processor at work has hardly more than ``spare`` free places.

    A processor whose queue holds less than a batch sleeps for seconds, so that one is filled until it wakes up.
    """
    chunk = most
    for room, size, at_work in _queues(tracer):
        chunk = min(chunk, 0 if at_work and room < min(spare, max(1, size // 2)) else room)
    return chunk
