"""Stages and sessions of the user's program as live spans.

In: names, attributes, beginnings and ends on any thread and in any order. Out: a span for each, current in its context, with what is inside
as children. A stage that ends first ends the stages inside it. Errors of a provider are contained and cost the span.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Protocol

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from inferspan import clock, semconv
from inferspan.attribute_values import (
    add_event_within_limits,
    exportable_attributes,
    exportable_text,
    set_within_limits,
    start_within_limits,
)
from inferspan.guard import contain
from inferspan.metrics.stages import StageMetrics
from inferspan.records import AttributeValue, Failure
from inferspan.setting_checks import brief, warn_once
from inferspan.settings import Settings
from inferspan.summaries.recording import Recording

from . import figures, origin
from .content import exception_attributes
from .current import Scope, innermost, of_this_thread, session_attributes, suppressed
from .program_events import EventTarget, emit
from .writer import inside_a_provider, our_call

__all__ = ["Session", "Stage", "StageRecorder"]

_STARTING, _ENDING, _MEMORY = contain("start of a stage"), contain("end of a stage"), contain("memory of a stage")
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


class _Reading(Protocol):
    def since(self, before: Any) -> int | None: ...


class Stage(Scope):
    """A part of the program, from ``start`` to ``end``: see :func:`inferspan.program.stages.stage`.

    Args:
        recorder: makes its span.
        name: of the span.
        attributes: of the span.
        decorate: makes a function whose calls are such stages.

    Attributes:
        memory_delta: bytes in use at its end minus at its start; ``None`` until it has ended, and where nothing measures them.
    """

    __slots__ = ("_attributes", "_begun", "_closing", "_counted", "_covered", "_covered_since", "_decorate", "_ended", "_inside", "_memory",
                 "_start", "counted", "memory_delta", "name", "offset", "parent", "recorder", "span")  # fmt: skip

    def __init__(
        self, recorder: StageRecorder, name: str, attributes: dict[str, Any], decorate: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__()
        self.recorder = recorder
        self.name = name
        self._attributes = attributes
        self.span: Span = trace.INVALID_SPAN
        self.parent: Stage | None = None
        self._begun = self._closing = False
        self._start = self.offset = 0
        self._decorate = decorate
        self._counted: figures.CountedStage | None = None
        self._memory: _Reading | None = None
        self.memory_delta: int | None = None
        self.counted = True
        """Whether it is a value of the metrics."""
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
        with _STARTING:
            self._open()
        return self

    def end(self, /, **attributes: Any) -> None:
        """End, after the stages inside that are still open; a second call does nothing.

        Args:
            **attributes: further attributes of the span, by their exact name.
        """
        self._close(attributes, None)

    def __call__(self, function: Any) -> Any:
        """Decorate a function: see :func:`inferspan.program.stages.stage`."""
        return function if self._decorate is None else self._decorate(function)

    def __enter__(self) -> Any:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None) -> None:
        self._close({}, error)

    # ---------------------------------------------------------------------------------------------------------- internals
    @property
    def recording(self) -> bool:
        """Whether its span is open and sampled."""
        return bool(self.span.is_recording())

    @property
    def began(self) -> int:
        """When it began, on the monotonic clock in nanoseconds."""
        return self._start

    def add(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set attributes of the span while it is open."""
        with our_call():
            set_within_limits(self.span, attributes)

    def _describe(self, context: otel_context.Context) -> tuple[str, dict[str, Any]]:
        """Name of the span and its attributes, which can be sent."""
        self.session = session_attributes(context)
        name = exportable_text(self.name)
        own = exportable_attributes(self._attributes) if self._attributes else {}
        return name, {**own, **self.session, semconv.STAGE_KIND: semconv.STAGE_KIND_USER, semconv.STAGE_NAME: name}

    def _open(self) -> None:
        current = of_this_thread()
        if suppressed(current) or inside_a_provider():
            return
        self._memory = self.recorder.read_memory()
        self._start = perf_counter_ns()
        current, links = origin.resolve(current, None)
        around = _innermost_stage(current)
        if around is not None:
            self.recorder = around.recorder
        self.offset = clock.offset() if around is None else around.offset
        name, attributes = self._describe(current)
        with our_call():
            self.span = start_within_limits(
                self.recorder.tracer(),
                name,
                attributes,
                context=current,
                kind=SpanKind.INTERNAL,
                links=links,
                start_time=self._start + self.offset,
                record_exception=False,
                set_status_on_exception=False,
            )
        with contain("summary"):
            self._counted = figures.stage_begins(self, name, attributes, current)
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
            with _ENDING:
                self.leave()
            memory = self.recorder.read_memory()
            if memory is not None:
                self.memory_delta = memory.since(self._memory)
            with _ENDING, our_call():
                self._finish(attributes, error, now + self.offset)
            with contain("summary"):
                figures.stage_ends(self.span, self._counted, (self._start + self.offset, now + self.offset), failed=error is not None)
            if self.counted and self.recorder.metrics is not None:
                self.recorder.metrics.ended(self.name, self.duration or 0.0, self.memory_delta, self.span)

    def _finish(self, attributes: dict[str, Any], error: BaseException | None, end_ns: int) -> None:
        span = self.span
        try:
            if span.is_recording():
                found: dict[str, AttributeValue] = exportable_attributes(attributes) if attributes else {}
                found[semconv.STAGE_SELF_TIME] = self.self_time or 0.0
                if self.memory_delta is not None:
                    found[semconv.MEMORY_DELTA] = self.memory_delta
                set_within_limits(span, found)
                if error is not None:
                    failure = self.recorder.failure_of(error, content=self.recorder.settings.content_on_spans)
                    set_within_limits(span, {semconv.ERROR_TYPE: failure.type, semconv.FAILED: True})
                    add_event_within_limits(span, semconv.EXCEPTION_EVENT, exception_attributes(failure), end_ns)
                    span.set_status(Status(StatusCode.ERROR, failure.message or failure.type))
        finally:
            span.end(end_time=end_ns)

    def __repr__(self) -> str:
        state = "not started" if not self._begun else "open" if self._ended is None else f"{self.duration:.3f} s"
        return f"<inferspan.{type(self).__name__} {self.name}: {state}>"


class Session(figures.Summarised, Stage):
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

    __slots__ = ("_hold", "_release", "id", "recording_of_session", "tags")

    def __init__(self, recorder: StageRecorder, name: str, tags: Mapping[str, str], hold: Callable[[], Callable[[], None]]) -> None:
        super().__init__(recorder, name, {})
        # Not from the random module: its state belongs to the program.
        self.id = os.urandom(16).hex()
        self.tags = dict(tags)
        self._hold = hold
        self._release: Callable[[], None] | None = None
        self.recording_of_session = Recording()

    def _describe(self, context: otel_context.Context) -> tuple[str, dict[str, Any]]:
        outer = session_attributes(context)
        tags = {f"{semconv.SESSION_TAG}.{key}": value for key, value in self.tags.items()}
        if outer:
            # A session in a session is a stage of it.
            self.id = str(outer[semconv.SESSION_ID])
            name, attributes = super()._describe(context)
            self.session = {**outer, **exportable_attributes(tags)}
            return name, {**attributes, **self.session}
        self.counted = False
        name = exportable_text(self.name)
        self.session = {semconv.SESSION_ID: self.id, semconv.SESSION_NAME: name, **exportable_attributes(tags)}
        return f"{semconv.SPAN_SESSION} {name}", dict(self.session)

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


def _next_stage(scope: Scope | None) -> Stage | None:
    while scope is not None and not isinstance(scope, Stage):
        scope = scope.around()
    return scope


def _innermost_stage(context: otel_context.Context) -> Stage | None:
    return _next_stage(innermost(context))


class StageRecorder:
    """Makes stages, sessions and events: one for each set of settings and providers.

    Args:
        settings: options.
        tracer: returns the tracer; called for every stage, because a host may set its provider late.
        failure_of: reduces an exception to text.
        logger: returns the logger of events that belong to no span.
        metrics: counts the stages.
        memory: reads the memory in use.
        recording: gets the figures of stages, beside the sessions around them.
        hand_over: has everything recorded so far counted.
    """

    def __init__(
        self,
        settings: Settings,
        tracer: Callable[[], Any],
        failure_of: _FailureOf,
        *,
        logger: Callable[[], Any] | None = None,
        metrics: StageMetrics | None = None,
        memory: Callable[[], Any] | None = None,
        recording: Recording | None = None,
        hand_over: Callable[[], Any] = lambda: None,
    ) -> None:
        self.settings = settings
        self.tracer = tracer
        self.failure_of = failure_of
        self.logger = logger
        self.metrics = metrics
        self.recording = recording
        self.hand_over = hand_over
        self._memory = memory

    def read_memory(self) -> Any:
        """The memory in use now, with ``bytes`` and ``since(before)``; ``None`` where nothing measures it."""
        if self._memory is not None:
            with _MEMORY:
                return self._memory()
        return None

    def stage(self, name: str, attributes: dict[str, Any], decorate: Callable[[Any], Any] | None = None) -> Stage:
        """A stage that has not begun."""
        return Stage(self, name, attributes, decorate)

    def event(self, name: str, describe: Callable[[], Mapping[str, Any]], request: EventTarget | None) -> None:
        """A moment of the program, on the innermost stage or request, or on its own.

        Args:
            name: of the event.
            describe: returns its attributes; called only if something records them.
            request: the innermost request of this thread.
        """
        current = of_this_thread()
        if suppressed(current) or inside_a_provider():
            return
        stage = _innermost_stage(origin.resolve(current, None)[0])
        target = stage if request is None or (stage is not None and stage.began > request.began) else request
        session = session_attributes(current) if stage is None else stage.session
        emit(self.tracer, self.logger, name, describe, target, session, current)

    def describe_session(self, describe: Callable[[], Mapping[str, Any]]) -> None:
        """Put attributes on the session around here, else on the outermost stage; ``describe`` is called only if it records them."""
        stage = _innermost_stage(origin.resolve(otel_context.get_current(), None)[0])
        found = stage
        while stage is not None and not isinstance(found, Session):
            found, stage = stage, _next_stage(stage.around())
        if found is not None and found.span.is_recording():
            found.add(exportable_attributes(describe()))

    def session(self, name: str, tags: Mapping[str, str], hold: Callable[[], Callable[[], None]]) -> Session:
        """A session that has not begun; the tags of the settings count where ``tags`` has none."""
        return Session(self, name, {**dict(self.settings.session_tags), **tags}, hold)
