"""Stages and sessions of the user's program as live spans.

In: names, attributes, beginnings and ends on any thread and in any order. Out: a span for each, current in its context, with what is inside
as children. A stage that ends first ends the stages inside it. Errors of a provider are contained and cost the span.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Protocol

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from inferspan import semconv
from inferspan.attribute_values import exportable_attributes
from inferspan.guard import contain
from inferspan.records import Failure
from inferspan.setting_checks import brief, warn_once
from inferspan.settings import Settings

from . import origin
from .content import exception_attributes
from .current import Scope, innermost, session_attributes, suppressed
from .writer import inside_a_provider, our_call

__all__ = ["Session", "Stage", "StageRecorder"]

_lock = threading.RLock()
"""Guards the lists of open stages and the covered times. Reentrant: a collected generator may end its stage at any instruction."""


def _forked() -> None:
    global _lock
    # The thread that held it does not exist in the child.
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _FailureOf(Protocol):
    def __call__(self, error: BaseException, *, content: bool) -> Failure: ...


class Stage(Scope):
    """A part of the program, from ``start`` to ``end``: see :func:`inferspan.program.stages.stage`.

    Args:
        recorder: makes its span.
        name: of the span.
        attributes: of the span.
    """

    __slots__ = ("_attributes", "_begun", "_closing", "_covered", "_covered_since", "_ended", "_inside", "_offset", "_start", "name",
                 "parent", "recorder", "span")  # fmt: skip

    def __init__(self, recorder: StageRecorder, name: str, attributes: dict[str, Any]) -> None:
        super().__init__()
        self.recorder = recorder
        self.name = name
        self._attributes = attributes
        self.span: Span = trace.INVALID_SPAN
        self.parent: Stage | None = None
        self._begun = self._closing = False
        self._start = self._offset = 0
        self._ended: int | None = None
        self._inside: dict[Stage, None] = {}
        """Stages inside that are open, oldest first."""
        self._covered = self._covered_since = 0
        """Nanoseconds in which a stage inside was open, as far as it has ended; and since when one is open now."""

    # ----------------------------------------------------------------------------------------------------------- the user
    @property
    def duration(self) -> float | None:
        """Seconds from start to end, what is inside included; ``None`` until it has ended."""
        return None if self._ended is None else (self._ended - self._start) / 1e9

    @property
    def self_time(self) -> float | None:
        """Seconds in which no stage inside was open; ``None`` until it has ended."""
        return None if self._ended is None else max(0, self._ended - self._start - self._covered) / 1e9

    def start(self) -> Any:
        """Begin; once only. Returns itself."""
        if self._begun:
            warn_once("stage %s was started twice: make a new one with inferspan.stage() for each time", brief(self.name))
            return self
        self._begun = True
        with contain("start of a stage"):
            self._open()
        return self

    def end(self, /, **attributes: Any) -> None:
        """End, after the stages inside that are still open; a second call does nothing.

        Args:
            **attributes: further attributes of the span, by their exact name.
        """
        self._close(attributes, None)

    def __enter__(self) -> Any:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None) -> None:
        self._close({}, error)

    # ---------------------------------------------------------------------------------------------------------- internals
    def _describe(self, context: otel_context.Context) -> tuple[str, dict[str, Any]]:
        """Name of the span and its attributes."""
        self.session = session_attributes(context)
        return self.name, {**self._attributes, **self.session, semconv.STAGE_KIND: semconv.STAGE_KIND_USER, semconv.STAGE_NAME: self.name}

    def _open(self) -> None:
        current = otel_context.get_current()
        if suppressed(current) or inside_a_provider():
            return
        base, self._start = time.time_ns(), perf_counter_ns()
        self._offset = base - self._start
        current, links = origin.resolve(current, None)
        around = innermost(current)
        while around is not None and not isinstance(around, Stage):
            around = around.around()
        if around is not None:
            self.recorder = around.recorder
        name, attributes = self._describe(current)
        with our_call():
            self.span = self.recorder.tracer().start_span(
                name,
                context=current,
                kind=SpanKind.INTERNAL,
                attributes=exportable_attributes(attributes),
                links=links,
                start_time=base,
                record_exception=False,
                set_status_on_exception=False,
            )
        if around is not None:
            around._begins(self, self._start)
        self.enter(trace.set_span_in_context(self.span, current) if self.span is not trace.INVALID_SPAN else current)

    def _begins(self, inner: Stage, now: int) -> None:
        """A stage inside has begun."""
        with _lock:
            if self._closing:
                return
            if not self._inside:
                self._covered_since = now
            self._inside[inner] = None
            inner.parent = self

    def _ends(self, inner: Stage, now: int) -> None:
        """A stage inside has ended."""
        with _lock:
            if self._inside.pop(inner, self) is None and not self._inside:
                self._covered += max(0, now - self._covered_since)

    def _close(self, attributes: dict[str, Any], error: BaseException | None) -> None:
        with _lock:
            if self._closing or not self._start:
                return
            self._closing = True
            inside = list(self._inside)
        try:
            if inside:
                names = ", ".join(brief(stage.name) for stage in inside[:5])
                warn_once("stage %s ended before the stages inside it (%s), which were ended with it", brief(self.name), names)
            for stage in reversed(inside):
                stage._close({}, None)
        finally:
            now = perf_counter_ns()
            self._ended = now
            if self.parent is not None:
                self.parent._ends(self, now)
            with contain("end of a stage"):
                self.leave()
            with contain("end of a stage"), our_call():
                self._finish(attributes, error, now + self._offset)

    def _finish(self, attributes: dict[str, Any], error: BaseException | None, end_ns: int) -> None:
        span = self.span
        try:
            if span.is_recording():
                span.set_attributes({**exportable_attributes(attributes), semconv.STAGE_SELF_TIME: self.self_time or 0.0})
                if error is not None:
                    failure = self.recorder.failure_of(error, content=self.recorder.settings.content_on_spans)
                    span.set_attributes({semconv.ERROR_TYPE: failure.type, semconv.FAILED: True})
                    span.add_event(semconv.EXCEPTION_EVENT, exception_attributes(failure), timestamp=end_ns)
                    span.set_status(Status(StatusCode.ERROR, failure.message or failure.type))
        finally:
            span.end(end_time=end_ns)

    def __repr__(self) -> str:
        state = "not started" if not self._begun else "open" if self._ended is None else f"{self.duration:.3f} s"
        return f"<inferspan.{type(self).__name__} {self.name}: {state}>"


class Session(Stage):
    """Requests and stages that belong together, under one id: see :func:`inferspan.program.blocks.session`.

    Args:
        recorder: makes its span.
        name: of the session.
        tags: of the session, and of all spans and events inside.
        hold: called when it begins; returns what is called when it has ended.

    Attributes:
        id: random; inside another session, that of the outer one.
        tags: as above, with those of the settings.
    """

    __slots__ = ("_hold", "_release", "id", "tags")

    def __init__(self, recorder: StageRecorder, name: str, tags: Mapping[str, str], hold: Callable[[], Callable[[], None]]) -> None:
        super().__init__(recorder, name, {})
        # Not from the random module: its state belongs to the program.
        self.id = os.urandom(16).hex()
        self.tags = dict(tags)
        self._hold = hold
        self._release: Callable[[], None] | None = None

    def _describe(self, context: otel_context.Context) -> tuple[str, dict[str, Any]]:
        outer = session_attributes(context)
        tags = {f"{semconv.SESSION_TAG}.{key}": value for key, value in self.tags.items()}
        if outer:
            # A session in a session is a stage of it.
            self.id = str(outer[semconv.SESSION_ID])
            name, attributes = super()._describe(context)
            self.session = {**outer, **exportable_attributes(tags)}
            return name, {**attributes, **self.session}
        self.session = {semconv.SESSION_ID: self.id, semconv.SESSION_NAME: self.name, **exportable_attributes(tags)}
        return f"{semconv.SPAN_SESSION} {self.name}", dict(self.session)

    def _open(self) -> None:
        with contain("start of a session"):
            self._release = self._hold()
        super()._open()

    def _close(self, attributes: dict[str, Any], error: BaseException | None) -> None:
        super()._close(attributes, error)
        release, self._release = self._release, None
        if release is not None:
            with contain("end of a session"):
                release()


class StageRecorder:
    """Makes stages and sessions: one for each set of settings and providers.

    Args:
        settings: options.
        tracer: returns the tracer; called for every stage, because a host may set its provider late.
        failure_of: reduces an exception to text.
    """

    def __init__(self, settings: Settings, tracer: Callable[[], Any], failure_of: _FailureOf) -> None:
        self.settings = settings
        self.tracer = tracer
        self.failure_of = failure_of

    def stage(self, name: str, attributes: dict[str, Any]) -> Stage:
        """A stage that has not begun."""
        return Stage(self, name, attributes)

    def session(self, name: str, tags: Mapping[str, str], hold: Callable[[], Callable[[], None]]) -> Session:
        """A session that has not begun; the tags of the settings count where ``tags`` has none."""
        return Session(self, name, {**dict(self.settings.session_tags), **tags}, hold)
