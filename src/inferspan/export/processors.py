"""Batch processors of the SDK that refuse what finds no place in their queue, and count it.

The SDK's own discard the oldest item instead and log a line for each, on the thread of the program that ended the span.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from inferspan.export.delivery import Delivery

__all__ = ["BoundedLogs", "BoundedSpans"]


def _queue(processor: Any) -> Any:
    # Private to the SDK; without it its own way of dropping counts.
    return getattr(getattr(processor, "_batch_processor", None), "_queue", None)


def _held(processor: Any) -> int:
    return len(_queue(processor) or ())


def _is_full(processor: Any) -> bool:
    queue, size = _queue(processor), getattr(getattr(processor, "_batch_processor", None), "_max_queue_size", None)
    return queue is not None and isinstance(size, int) and len(queue) >= size


class BoundedSpans(BatchSpanProcessor):
    """A batch processor for spans."""

    def __init__(self, exporter: Any, delivery: Delivery, **options: Any) -> None:
        super().__init__(exporter, **options)
        self._delivery = delivery
        delivery.waits_in(lambda: _held(self))

    def on_end(self, span: Any) -> None:
        """Queue a span that has ended."""
        if _is_full(self) and span.context is not None and span.context.trace_flags.sampled:
            self._delivery.overflowed(1)
        else:
            super().on_end(span)


class BoundedLogs(BatchLogRecordProcessor):
    """A batch processor for log records."""

    def __init__(self, exporter: Any, delivery: Delivery, **options: Any) -> None:
        super().__init__(exporter, **options)
        self._delivery = delivery
        delivery.waits_in(lambda: _held(self))

    def on_emit(self, log_record: Any) -> None:
        """Queue a log record."""
        if _is_full(self):
            self._delivery.overflowed(1)
        else:
            super().on_emit(log_record)
