"""Events of the program: moments with a name and attributes of its own.

In: a name, attributes, and what is open. Out: an event on the span of the innermost stage, session or request; without one a log record, or
a span without duration where no logs are sent. What is not sampled is not evaluated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any, Protocol

from opentelemetry._logs import LogRecord, SeverityNumber

from inferspan.attribute_values import add_event_within_limits, exportable_or_text, exportable_text, set_within_limits
from inferspan.guard import contain, report
from inferspan.records import AttributeValue

from .content import wants
from .writer import our_call

__all__ = ["EventTarget", "emit"]

MOST_ATTRIBUTES = 128
"""OpenTelemetry's default limit of attributes of an event. It logs each attribute beyond it, for every event."""


class EventTarget(Protocol):
    """What is open where an event happens."""

    @property
    def span(self) -> Any:
        """Its span."""

    @property
    def began(self) -> int:
        """When it began, on the monotonic clock in nanoseconds."""

    @property
    def offset(self) -> int:
        """Added to a reading of that clock, gives nanoseconds since the epoch."""


def emit(
    tracer: Callable[[], Any],
    logger: Callable[[], Any] | None,
    name: str,
    describe: Callable[[], Mapping[str, Any]],
    target: EventTarget | None,
    session: Mapping[str, AttributeValue],
    context: Any,
) -> None:
    """Record an event.

    Args:
        tracer: returns the tracer, for an event that is a span.
        logger: returns the logger, for one that is a log record.
        name: of the event.
        describe: returns its attributes; called only if they are recorded.
        target: whose span it belongs to.
        session: attributes of the session around it.
        context: the current one.
    """
    name = exportable_text(name)
    if target is not None:
        if target.span.is_recording():
            now = perf_counter_ns() + target.offset
            attributes = _sendable(describe(), session)
            with our_call():
                add_event_within_limits(target.span, name, attributes, now)
        return
    now = time.time_ns()
    with our_call():
        found = None if logger is None else logger()
        if found is not None and not wants(found, context, name, SeverityNumber.INFO):
            found = None
    if found is not None:
        attributes = _sendable(describe(), session)
        record = LogRecord(timestamp=now, context=context, severity_number=SeverityNumber.INFO, event_name=name, attributes=attributes)
        with our_call():
            found.emit(record)
        return
    with our_call():
        span = tracer().start_span(name, context=context, start_time=now, record_exception=False, set_status_on_exception=False)
    attributes = _sendable(describe(), session) if span.is_recording() else {}
    with our_call():
        set_within_limits(span, attributes)
        span.end(end_time=now)


def _sendable(attributes: Mapping[str, Any], session: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """The attributes as they can be sent, and those of the session.

    A value that cannot even be written as text is left out, so is one without a name, and what is over ``MOST_ATTRIBUTES``.
    """
    found: dict[str, AttributeValue] = {}
    for key, value in attributes.items():
        if len(found) + len(session) >= MOST_ATTRIBUTES:
            report("attributes of an event", ValueError(), reason=f"more than {MOST_ATTRIBUTES} of one event, the last ones left out")
            break
        with contain("attributes of an event"):
            plain = exportable_or_text(value)
            if plain is not None and key:
                found[exportable_text(key)] = plain
    return {**found, **session}
