"""Which recordings a request or stage belongs to, and what it lies in: that of its model or recorder, and those of the sessions around it.

In: a context and a span. Out: ``summaries`` objects that count. Requests and stages that are open are known by their span's id, because
what is current between them and what is inside may be a span of another library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace

from inferspan import semconv
from inferspan.records import RequestStart
from inferspan.summaries.notebook import page
from inferspan.summaries.parts import RequestParts, add_stage
from inferspan.summaries.recording import Around, Recording
from inferspan.summaries.requests import RecordedRequest
from inferspan.summaries.summary import RunSummary, summary_of

from .current import Scope, innermost

__all__ = ["CountedStage", "Summarised", "closes", "parts_of", "stage_begins", "stage_ends"]

MOST_OPEN = 10_000
"""Requests and stages that may be open at once; time in further ones counts as their own and as that of what is around them."""
_open: dict[int, Around] = {}


def _recordings_in(context: otel_context.Context, own: Recording | None) -> tuple[Recording, ...]:
    """A recording, and those of the sessions that are open in a context, the innermost first."""
    found = [] if own is None else [own]
    scope: Scope | None = innermost(context)
    while scope is not None:
        recording: Recording | None = getattr(scope, "recording_of_session", None)
        if recording is not None:
            found.append(recording)
        scope = scope.around()
    return tuple(found)


def _around(context: otel_context.Context) -> Around | None:
    """The open request or stage whose span is current in a context."""
    return _open.get(trace.get_current_span(context).get_span_context().span_id) if _open else None


def _opens(span: Any, made: Around) -> None:
    """A request or stage has begun."""
    number = span.get_span_context().span_id
    if number and len(_open) < MOST_OPEN:
        _open[number] = made


def closes(span: Any) -> None:
    """It has ended."""
    _open.pop(span.get_span_context().span_id, None)


def parts_of(recording: Recording, name: str, start: RequestStart, span: Any, context: otel_context.Context) -> RequestParts:
    """What counts a request that begins in a context."""
    parts = RequestParts(_recordings_in(context, recording), name, start, _around(context))
    _opens(span, parts.around_inside)
    return parts


class CountedStage(NamedTuple):
    """A stage that is open: itself, and what it lies in."""

    own: Around
    around: Around | None


def stage_begins(stage: Any, name: str, attributes: Mapping[str, Any], context: otel_context.Context) -> CountedStage:
    """A stage or session of the program begins in a context; ``name`` and ``attributes`` are those of its span."""
    recordings = _recordings_in(context, stage.recorder.recording)
    of_session: Recording | None = getattr(stage, "recording_of_session", None)
    kind = "stage" if semconv.STAGE_NAME in attributes else "session"
    own = Around((kind, name), recordings if of_session is None else (*recordings, of_session))
    _opens(stage.span, own)
    return CountedStage(own, _around(context))


def stage_ends(span: Any, stage: CountedStage | None, times: tuple[int, int], *, failed: bool) -> None:
    """It has ended: see ``add_stage``."""
    closes(span)
    if stage is not None:
        add_stage(stage.own.recordings, stage.around, stage.own.operation, times, span, failed=failed)


class Summarised:
    """What a session says about itself."""

    __slots__ = ()
    recorder: Any
    recording_of_session: Recording

    def summary(self) -> RunSummary:
        """Figures of what was recorded inside so far, and of the session itself once it has ended: see ``Handle.summary``."""
        self.recorder.hand_over()
        return summary_of(self.recording_of_session)

    def requests(self) -> list[RecordedRequest]:
        """The latest requests inside that have ended, at most 32, the newest last."""
        self.recorder.hand_over()
        return self.recording_of_session.requests()

    def _repr_html_(self) -> str:
        return page(repr(self).strip("<>"), self.summary(), self.requests())
