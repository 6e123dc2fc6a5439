"""One request on one thread: what the hooks write into, and how it is turned into records.

The calls that run on a thread form a stack in thread-local storage: a draft model's ``generate()`` inside ours, a model inside a model.
State is kept per call and never on the model, so threads and recursion cannot mix. Nothing here outlives its call.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from .. import semconv
from ..attribute_values import exportable_text
from ..guard import contain
from ..records import Attributes, Failure, ModuleBatch, ModuleCall, ModuleInfo, Phase, Profiled, RequestScope, Step
from .budget import Budget

if TYPE_CHECKING:
    from .device_clock import CallClock, Measured
    from .output_stats import OutputStats
    from .profiler_window import Part

__all__ = ["Call", "current", "error_type", "failure_of"]

MAX_MESSAGE = 2048
MAX_STACKTRACE = 16_384
LOOKED_AT = 65_536
"""Characters of an exception's text that are searched for values; a message of megabytes would take a second."""
_NUMBER = r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_LISTED = re.compile(rf"(?:tensor|array)\([^)]*(?:\)|$)|(?:[\[(]\s*)?(?<!\d){_NUMBER}(?:[\s,\[\]()]+{_NUMBER}){{3,}}(?:[\s,.]*[\])])*")
"""Printed tensors, and four numbers or more in a row, in brackets of any kind or none."""


class _Thread(threading.local):
    call: Call | None = None


current = _Thread()
"""``current.call`` is the innermost request that runs on this thread."""


def error_type(error: BaseException) -> str:
    """Qualified class name of an exception, bare for built-ins, as ``error.type`` wants it."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def failure_of(error: BaseException, *, content: bool) -> Failure:
    """Reduce an exception to text; without leave to record content, printed tensors and lists of numbers are cut out of it."""
    try:
        message = str(error)
    except Exception:
        message = "<the exception's text cannot be read>"
    try:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        trace = ""
    message, trace = message[:LOOKED_AT], trace[-LOOKED_AT:]
    if not content:
        message, trace = _LISTED.sub("<values left out>", message), _LISTED.sub("<values left out>", trace)
    return Failure(error_type(error), exportable_text(message[:MAX_MESSAGE]), exportable_text(trace[-MAX_STACKTRACE:]))


class Call:
    """State of one running request; the base of plain forward and generate calls."""

    def __init__(self, scope: RequestScope, *, start: int, offset: int, budget: Budget, outer: Call | None) -> None:
        self.scope = scope
        self.recording = scope.recording
        self.start = start
        self.offset = offset
        """Added to a monotonic reading, gives nanoseconds since the epoch."""
        self.budget = budget
        self.outer = outer
        self.engine: object = None
        """The hook engine whose modules write into this call; those of another model's, inside of it, do not."""
        self.room = 0
        """Module spans that the running forward pass may still have; without any, the hooks only count."""
        self.missed = 0
        self.count = 0
        self.stack: list[tuple[int, ModuleInfo, int, Any]] = []
        self.calls: list[Any] = []
        """Flat, in the layout of ``ModuleCall``."""
        self.output_stats: OutputStats | None = None
        self.clock: CallClock | None = None
        """Device times, where they are measured; the hooks tell it the boundaries of recorded module calls."""
        self.measured: Measured | None = None
        """Device times of the forward pass that was closed last, still to be read."""
        self.pending: list[Phase | Step | ModuleBatch] = []
        self.overhead = 0
        self.part: Part | None = None
        """Part of a profiler window that this call has."""
        self._granted = 0
        self._watched = False

    def follows(self, module: object) -> bool:
        """Whether forward passes of ``module`` are steps of this call rather than requests of their own."""
        return False

    def push(self) -> None:
        """Make this the thread's innermost call."""
        current.call = self

    def pop(self, now: int) -> None:
        """Take this call off the thread's stack, after ending what an interrupt has left open above it."""
        above = []
        call = current.call
        while call is not None and call is not self:
            above.append(call)
            call = call.outer
        if call is not self:
            return
        for left in above:
            left.abandon(now)
        current.call = self.outer

    def abandon(self, now: int) -> None:
        """End this call because the one around it ends; only a plain forward pass can be left open like that."""

    def open_modules(self, expected: int, *, whole: bool) -> bool:
        """Let the hooks record the coming forward pass, if the budget has room for it."""
        self._granted = self.room = self.budget.module_room(expected, whole=whole)
        self._watched = self.room > 0 or not whole
        self.missed = self.count = 0
        return self.room > 0

    def unwind_to(self, info: ModuleInfo, now: int, failure: str = "_OTHER") -> bool:
        """Close module calls that an exception left open above the one of ``info``; false if that is not open at all."""
        if not any(frame[1] is info for frame in self.stack):
            return False
        while self.stack[-1][1] is not info:
            self.close_frame(now, failure)
        return True

    def close_frame(self, now: int, failure: str | None) -> None:
        """Record the innermost open module call as ended without an output."""
        number, info, start, inputs = self.stack.pop()
        self.calls.extend((number, self.stack[-1][0] if self.stack else -1, info, start, now, inputs, (), failure, None))

    def close_modules(self, step: int | None, phase: str, now: int, failure: str | None) -> None:
        """Turn what the hooks have appended into a batch under ``step`` (or under the phase or request)."""
        while self.stack:
            self.close_frame(now, failure or "_OTHER")
        self.budget.spend(self._granted - self.room)
        if self._watched:
            self.budget.leave_out(self.missed)
        self._granted = self.room = self.missed = 0
        self._watched = False
        self.measured = self.clock.cut() if self.clock is not None else None
        profiled = self._profiled(step, phase)
        if self.calls or profiled:
            calls, self.calls = self.calls, []
            statistics = self.read_output_stats(calls)
            batch = ModuleBatch(step, phase, self.offset, calls, statistics, profiled=profiled)
            self.pending.append(batch._replace(device=self.measured.modules) if self.measured is not None else batch)

    def _profiled(self, step: int | None, phase: str) -> Sequence[Profiled]:
        """Kernels and operations of the pass that has ended, if it was profiled."""
        part = self.part
        if part is None or not part.holds_events:
            return ()
        with contain("profiler window"):
            in_steps = phase != semconv.PHASE_FORWARD
            return part.take(
                self.calls,
                self.budget,
                passes=part.window.left if in_steps else 0,
                modules=len(self.calls) // len(ModuleCall._fields),
                shown=step is not None or not in_steps,
            )
        return ()

    def read_output_stats(self, calls: list[Any]) -> dict[int, Attributes]:
        """Statistics of module outputs by slot, where they are asked for."""
        if self.output_stats is None:
            return {}
        return dict(enumerate(self.output_stats.read()))

    def hand_over(self) -> None:
        """Give the collected detail to the recorder."""
        if self.pending:
            records, self.pending = self.pending, []
            self.scope.detail(records)

    def epoch(self, moment: int) -> int:
        """Nanoseconds since the epoch of a monotonic reading."""
        return moment + self.offset

    @staticmethod
    def host_clock(outer: Call | None) -> tuple[int, int]:
        """A monotonic reading and the offset that makes it epoch time; inside another call its offset, so that children fit."""
        if outer is not None:
            return perf_counter_ns(), outer.offset
        epoch, moment = time.time_ns(), perf_counter_ns()
        return moment, epoch - moment
