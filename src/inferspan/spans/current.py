"""Makes spans current, which stays right when scopes end in another order, in another context or on another thread.

OpenTelemetry's tokens restore what was current before, whatever has happened meanwhile. Blocks of the user's may be left in any order
(generators, tasks, ``end()`` by hand), so each scope knows the one around it. A scope that ends uncovers the next one that is still open.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context

from inferspan.records import AttributeValue

__all__ = ["OwnContext", "Scope", "innermost", "of_this_thread", "session_attributes", "suppressed"]

_KEY = otel_context.create_key("inferspan-scope")
_NONE: Mapping[str, AttributeValue] = {}


class Scope:
    """Something that is current in its context from ``enter`` to ``leave``.

    Attributes:
        session: attributes of the session that requests and stages inside carry.
    """

    __slots__ = ("_before", "_span", "_thread", "left", "session")

    def __init__(self) -> None:
        self._before: Context | None = None
        self._span = 0
        """Id of the span that is current inside."""
        self._thread = 0
        """The thread in whose own context it was entered; 0 in an event loop, where each task has one."""
        self.left = False
        self.session: Mapping[str, AttributeValue] = _NONE

    def enter(self, inside: Context) -> None:
        """Make ``inside`` the current context, with this scope in it."""
        before = otel_context.get_current()
        if not self.session:
            self.session = session_attributes(inside)
        otel_context.attach(otel_context.set_value(_KEY, self, inside))
        self._span = trace.get_current_span(inside).get_span_context().span_id
        self._thread = 0 if asyncio._get_running_loop() is not None else threading.get_ident()
        self._before = before

    def leave(self) -> None:
        """Make current what was before, unless something else is current here; twice, or without ``enter``, does nothing."""
        if self.left:
            return
        self.left = True
        before = self._before
        # A scope around this one may have been left before it. Noted, so that overlapping scopes make no endless chain.
        while before is not None and isinstance(around := before.get(_KEY), Scope) and around.left:
            before = around._before
        self._before = before
        if before is not None and otel_context.get_current().get(_KEY) is self:
            otel_context.attach(before)

    def around(self) -> Scope | None:
        """The innermost scope around this one that is still open."""
        return None if self._before is None else innermost(self._before)


class OwnContext:
    """The context of a generator: current while a step of it runs, and its reader's is current in between."""

    __slots__ = ("_inside",)

    def __init__(self) -> None:
        self._inside = otel_context.get_current()

    def enter(self) -> Context:
        """A step begins; returns what ``leave`` takes."""
        outside = otel_context.get_current()
        otel_context.attach(self._inside)
        return outside

    def leave(self, outside: Context) -> None:
        """The step has ended: its context is kept for the next one, and the reader's is current again."""
        self._inside = otel_context.get_current()
        otel_context.attach(outside)


def of_this_thread() -> Context:
    """The current context. A stage that another thread has ended, which could not take it off here, is taken off before.

    Not in a context that was copied inside of the stage: what goes on after its end in another thread or a task has come from it.
    """
    context = otel_context.get_current()
    found = context
    while isinstance(scope := found.get(_KEY), Scope) and scope.left and scope._before is not None:
        if scope._thread != threading.get_ident() or trace.get_current_span(found).get_span_context().span_id != scope._span:
            break
        if asyncio._get_running_loop() is not None:
            break
        found = scope._before
    if found is not context:
        otel_context.attach(found)
    return found


def innermost(context: Context) -> Scope | None:
    """The innermost scope that is still open in a context."""
    scope = context.get(_KEY)
    while isinstance(scope, Scope) and scope.left:
        scope = None if scope._before is None else scope._before.get(_KEY)
    return scope if isinstance(scope, Scope) else None


def session_attributes(context: Context) -> Mapping[str, AttributeValue]:
    """Attributes of the session in a context, also of one that has ended meanwhile."""
    scope = context.get(_KEY)
    return scope.session if isinstance(scope, Scope) else _NONE


def suppressed(context: Context) -> bool:
    """Whether the caller has switched telemetry off."""
    return bool(context.get(otel_context._SUPPRESS_INSTRUMENTATION_KEY) or context.get("suppress_instrumentation"))
