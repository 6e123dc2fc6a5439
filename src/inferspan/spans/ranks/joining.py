"""One trace for a request that several ranks run together.

The first rank publishes the context of its request span. The span of another rank begins in a trace of its own, because nothing is waited
for on the model's thread; off it, before the first of its spans leaves, it is moved below the request of the first rank. A span of the
program around it, or a tracer of another implementation, cannot be moved: it gets a link.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Protocol

from opentelemetry.trace import Span, SpanContext, TraceFlags

from inferspan import semconv
from inferspan.attribute_values import set_within_limits
from inferspan.export.sdk import move_span
from inferspan.records import RequestStart

__all__ = ["WAIT", "Joinable", "Joining", "RankGroup", "begins"]

WAIT = 0.5
"""Seconds that the hand-over thread waits for the context of the first rank."""
_TEXT = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2}) (.*)")


class RankGroup(Protocol):
    """Ranks that run each request on a model together. Nothing here waits for another rank, except what ``expect`` returns."""

    first: bool
    """Whether the other ranks join the requests of this one."""
    publish: Callable[[int, str], Callable[[int], None]]
    """Tell the others of a request: its start in nanoseconds since the epoch, and a line of text; what it returns tells them the end."""
    expect: Callable[[int], Callable[[float, int | None], str | None]]
    """Given the start of a request here, a function to call once: given seconds to wait and the end, it returns the text or ``None``."""


class Joinable(Protocol):
    """What is asked of the span of a request."""

    request: RequestStart
    span: Span
    context: SpanContext
    parts: Any
    joining: Joining | None
    tell_end: Callable[[int], None] | None
    end_ns: int | None


def begins(scope: Joinable, group: RankGroup, name: str) -> None:
    """A request with a span of this name has begun on a model of several ranks: publish it, or expect that of the first rank."""
    start, span = scope.request, scope.span
    if not group.first:
        scope.joining = Joining(group.expect(start.start_ns), name)
        return
    context = span.get_span_context()
    sampled = context.is_valid and context.trace_flags.sampled
    # One that is not sampled is published as well, so that nobody waits for it.
    ids = f"{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}" if sampled else ""
    scope.tell_end = group.publish(start.start_ns, f"{ids} {name}")


class Joining:
    """The request of a further rank until it has joined that of the first.

    Args:
        take: returns what the first rank has published of the same request; see ``RankGroup.expect``.
        name: of the request's span, the same on all ranks.
    """

    def __init__(self, take: Callable[[float, int | None], str | None], name: str) -> None:
        self._take, self._name = take, name
        self._lock = threading.Lock()

    def join(self, scope: Joinable, wait: float) -> None:
        """Move or link the span of a request; the first call decides, and one that would have to wait for another thread does nothing."""
        if not self._lock.acquire(blocking=False):
            return
        text = self._take(wait, scope.end_ns)
        found = _TEXT.fullmatch(text or "")
        if found is not None and found[4] == self._name and scope.span.is_recording():
            _join(scope, SpanContext(int(found[1], 16), int(found[2], 16), True, TraceFlags(int(found[3], 16))))
        scope.joining = None


def _join(scope: Joinable, above: SpanContext) -> None:
    if not above.is_valid:
        return
    span = scope.span
    if scope.context.trace_id != above.trace_id:
        if scope.parts is not None and move_span(span, above):
            scope.context = span.get_span_context()
        else:
            span.add_link(above)
            return
    set_within_limits(span, {semconv.RANKS_JOINED: True})
