"""The span of a request as its detail needs it: ids and the destination of spans.

Ids of phases and steps are known before these have ended, so that children can be made before their parents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanContext

from inferspan import semconv
from inferspan.attribute_values import AttributeLimits
from inferspan.export.ids import ids
from inferspan.export.sdk import SpanParts, SpanStarter
from inferspan.guard import contain
from inferspan.metrics.requests import RequestMetrics
from inferspan.records import ModuleBatch, PhaseKey, RequestStart, Stage
from inferspan.summaries.parts import RequestParts

from .current import Scope
from .ranks.joining import Joining

__all__ = ["RequestSpan"]

GOLDEN_RATIO_64 = 0x9E3779B97F4A7C15


class RequestSpan:
    """The span of a request, as the writers of its detail need it: ids and destination. It may have ended when its detail is written.

    Attributes:
        parts: the parts of the SDK's tracer, ``None`` for a tracer of another implementation.
        tracer: the tracer of the request.
        starter: starts and ends spans, if a processor acts when they start; else ``None``.
        sender: takes packed spans; ``None`` where spans go through the provider.
        limits: limits of the provider that attributes may exceed; ``None`` if none can.
        figures: counts what becomes spans, for summaries.
    """

    def __init__(self, request: RequestStart, span: Span, metrics: RequestMetrics) -> None:
        self.request = request
        self.span = span
        self.metrics = metrics
        self.context: SpanContext = span.get_span_context()
        device = request.model.attributes.get(semconv.DEVICE)
        self.device: str | None = None if device is None else str(device)
        """The model's device, for the attributes of steps."""
        self.parts: SpanParts | None = None
        self.tracer: Any = None
        self.starter: SpanStarter | None = None
        self.sender: Any = None
        self.limits: AttributeLimits | None = None
        self.figures: RequestParts | None = None
        self.joining: Joining | None = None
        """Waits for the trace of the first of several ranks."""
        self.tell_end: Callable[[int], None] | None = None
        """Of the first rank: tells the others the end."""
        self.end_ns: int | None = None
        self._before: otel_context.Context | None = None
        self._free: Scope | None = None
        self.token: Any = None
        self._step_base = 0

    def join(self, wait: float) -> None:
        """Join the trace of the first of several ranks, before anything of this request leaves; see ``ranks``."""
        joining = self.joining
        if joining is not None:
            with contain("ranks"):
                joining.join(self, wait)

    def attach(self, inside: otel_context.Context | None = None) -> None:
        """Make the span the current one until ``detach``, in the context ``inside`` if that is given."""
        with contain("context"):
            before = otel_context.get_current()
            if inside is None:
                if self.span is trace.INVALID_SPAN:
                    # Without a span of ours the caller's stays the parent of what is inside.
                    return
                inside = trace.set_span_in_context(self.span, before)
            # Before the change: an interrupt may lose the token.
            self._before = before
            self.token = otel_context.attach(inside)

    def detach(self) -> None:
        """Restore the context from before ``attach``."""
        before = self._before
        if before is None:
            return
        with contain("context"):
            # A token is used once, even if an interrupt follows.
            token, self.token = self.token, None
            if token is not None:
                otel_context.detach(token)
            elif otel_context.get_current() is not before:
                otel_context.attach(before)
        self._before = None

    def enter(self) -> None:
        """Stay current until ``leave``, which may come in any order, in another context and on another thread."""
        with contain("context"):
            inside = otel_context.get_current()
            self.detach()
            self._free = Scope()
            self._free.enter(inside)

    def leave(self) -> None:
        """Make current what was before, unless something else is current here."""
        if self._free is not None:
            with contain("context"):
                self._free.leave()

    def step_id(self, number: int) -> int:
        """Span id of a step."""
        # A request may have a hundred thousand steps, and the last child of a step may come at any time, so a table of ids could not be
        # pruned. Ids derived from one random number need no table; multiples of an odd number are all different modulo 2**64.
        self._step_base = self._step_base or ids().generate_span_id()
        return (self._step_base + number * GOLDEN_RATIO_64) % 2**64 or GOLDEN_RATIO_64

    def stage_id(self, number: int) -> int:
        """Span id of a phase or stage."""
        # Of the same series as the steps, from its other end.
        return self.step_id(-1 - number)

    def above_in(self, phase: PhaseKey) -> int:
        """Span id of a phase or stage, of the request if there is none: the parent of what lies in it."""
        return self.context.span_id if phase.number is None else self.stage_id(phase.number)

    def above_stage(self, stage: Stage) -> int:
        """Span id of the parent of a stage."""
        if stage.parent is not None:
            return self.stage_id(stage.parent)
        return self.context.span_id if stage.phase is None else self.above_in(stage.phase)

    def above(self, batch: ModuleBatch) -> int:
        """Span id of the parent of the outermost calls of a batch."""
        return self.above_in(batch.phase) if batch.step is None else self.step_id(batch.step)
