"""One request on one thread: the log that module observers write to, and its conversion into records.

The calls that run on a thread form a stack in thread-local storage: a draft model's ``generate()`` inside ours, a model inside a model.
State is kept per call and never on the model, so threads and recursion cannot mix. Nothing here outlives its call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from inferspan import semconv
from inferspan.capture.compile.state import leave_frame
from inferspan.capture.data_flow.request import close_flow, settle_flow, take_flow
from inferspan.capture.inside.out_of_memory import Shortage, note_failure
from inferspan.capture.modules import recorder
from inferspan.capture.modules.recorder import CallLog
from inferspan.capture.modules.stages import with_tokens
from inferspan.guard import contain
from inferspan.records import (
    Attributes,
    AttributeValue,
    Failure,
    ModuleBatch,
    ModuleCalls,
    PhaseKey,
    Record,
    RequestEnd,
    RequestScope,
    Stage,
)

from .budget import Budget
from .failures import failure_of
from .outcome import Outcome

if TYPE_CHECKING:
    from inferspan.capture.data_flow.log import FlowLog
    from inferspan.capture.device.clock import Measured
    from inferspan.capture.inside.hooks import InsideLog
    from inferspan.capture.modules.groups import Observed
    from inferspan.capture.modules.hooks import ModuleObservers
    from inferspan.capture.modules.output_stats import OutputStats
    from inferspan.capture.profiler.window import Taken, WindowClaim
    from inferspan.capture.root.pausing import Pausing

__all__ = [
    "ANNOUNCED", "UNDER_REQUEST", "Call", "abandon_clocks", "around_here", "current", "is_in_step", "loop_by_hand", "pass_state",
    "step_by_hand",
]  # fmt: skip


_NO_ATTRIBUTES: Mapping[str, AttributeValue] = {}


class _Current(Protocol):
    call: Call | None


current: _Current = recorder.current
"""``current.call`` is the innermost request that runs on this thread."""
loop_by_hand: ContextVar[Call | None] = ContextVar("inferspan_loop_by_hand", default=None)
"""The innermost request of this context whose loop the user has written; it may have ended."""
step_by_hand: ContextVar[Call | None] = ContextVar("inferspan_step_by_hand", default=None)
"""The same while a step of it is open: passes of its model are part of it, on whatever thread they run."""


@leave_frame
def around_here() -> Call | None:
    """The innermost request that runs here: that of the thread, else the loop by hand that this context is in."""
    call = current.call
    if call is None:
        call = loop_by_hand.get()
        return None if getattr(call, "end", None) is not None else call
    return call


def abandon_clocks() -> None:
    """Called in a forked child: ask nothing of the device for the requests on this thread."""
    call = current.call
    while call is not None:
        if call.clock is not None:
            call.clock.abandon()
        call.clock, call = None, call.outer


@leave_frame
def is_in_step(module: object) -> bool:
    """Whether a pass of ``module`` belongs to an open step by hand whose request is not the current one of this thread."""
    step = step_by_hand.get()
    return step is not None and step.root_id == id(module) and step.adapter is not None and bool(step.adapter.in_step)


pass_state: attrgetter[tuple[bool, int]] = attrgetter("steps.open", "passes.inside")
"""State of an adapter as a pass of its root begins: whether a step is open, and how many passes that opened one themselves are running.
Every decode step reads it, so it is no function in Python."""
ANNOUNCED = (True, 0)
"""The state in which a helper of the loop has opened the step of the coming pass. Otherwise ``enter_root`` of the adapter is called."""


UNDER_REQUEST = PhaseKey(semconv.PHASE_FORWARD)
"""Of what lies directly under a request."""


class Call(CallLog):
    """State of one running request; the base of plain forward and generate calls. It is the call log of its model's observers.

    ``compiled``: whether passes of it run inside something that was compiled. ``nonfinite_seen``: whether an output of a module, or a
    request inside it, had NaN or Inf. ``stages_ran``: whether stages of the model ran in the pass that was closed last. ``moving_ns``: time
    in which offloaded weights were moved. ``ended``: whether its span is being ended, or has ended. ``made`` gets it.
    """

    def __init__(
        self, scope: RequestScope, *, start: int, offset: int, budget: Budget, outer: Call | None, made: list[Any] | None = None
    ) -> None:
        super().__init__()
        self.scope = scope
        self.recording = scope.recording
        self.start = start
        self.offset = offset
        """Added to a monotonic reading, gives nanoseconds since the epoch."""
        self.budget = budget
        self.outer = outer
        self.measured: Measured | None = None
        """Device times of the forward pass that was closed last, still to be read."""
        self.pending: list[Record] = []
        self.held: list[Observed] = []
        """Observers that are on modules because of this call."""
        self.window_claim: WindowClaim | None = None
        """The profiler window that this call has a part in."""
        self.stage_seconds: list[tuple[str, float]] = []
        """Names and durations of the stages that the metric counts."""
        self._numbers = self._granted = self._stages_granted = self.overhead = self.moving_ns = 0
        self._watched = self.compiled = self.nonfinite_seen = self.stages_ran = self.ended = False
        self.staged: list[ModuleBatch] = []
        """Passes with calls of stages, until the request ends."""
        self.root_id = 0
        """Identity of the object whose ``generate()`` this is; 0 for a plain forward pass."""
        self.adapter: Any = None
        """Translates a loop into this request; its wrappers find it here. ``None`` for a plain forward pass."""
        self.counts: str | None = None
        """The kind of tokens that its usage counts, ``generated`` or ``embedded``; requests inside it that count the same are nested."""
        self.inside: list[Outcome] | None = None
        """How the requests inside this one have ended, if it has the sums over them."""
        self.found_statistics: dict[int, Attributes] = {}
        """Of the passes since they were read last, by slot."""
        self.looking: InsideLog | None = None
        """What is found in outputs in every step; ``None`` if nothing is looked at."""
        self.shortage: Shortage | None = None
        """What is known of the out-of-memory error that has ended this request or, until then, one inside it."""
        self.flow: FlowLog | None = None
        """What flows between modules in recorded passes; ``None`` if that is not recorded."""
        self.pausing: Pausing | None = None
        self.roofline: Any = None
        if made is not None:
            made.append(self)

    def is_inside(self, counts: str) -> bool:
        """Whether this call, or one around it, counts tokens of this kind."""
        call: Call | None = self
        while call is not None:
            if call.counts == counts:
                return True
            call = call.outer
        return False

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
        self._granted = self.calls_left = self.budget.modules_allowed(expected, whole=whole)
        self._watched = self.calls_left > 0 or not whole
        self.missed = self.count = 0
        return self.calls_left > 0

    def open_stages(self) -> None:
        """Let the stages of the coming pass be recorded; comes after ``open_modules``, if modules are recorded as well."""
        self._stages_granted = self.stages_left = self.budget.stages_allowed(self._granted)
        if not self._granted:
            self.count = 0

    def cancel_stages(self) -> None:
        """Record no stages in the coming pass."""
        self._stages_granted = self.stages_left = 0

    def close_modules(self, step: int | None, phase: PhaseKey, now: int, failure: str | None) -> None:
        """Turn what the hooks have appended into a batch under ``step``, or without one under the phase, stage or request."""
        while self.open_calls:
            self.leave(now, failure=failure or "_OTHER")
        self.budget.spend(self._granted - self.calls_left)
        if self._watched:
            self.budget.leave_out(self.missed)
        stages = self._stages_granted - max(0, self.stages_left)
        self.budget.spend(stages)
        self.budget.leave_out(max(0, -self.stages_left))
        self._granted = self.calls_left = self.missed = self._stages_granted = self.stages_left = 0
        self._watched = False
        self.measured = self.clock.end_pass() if self.clock is not None else None
        recorded = self.recorded
        calls = self.cut()
        flow = take_flow(self, step) if self.flow is not None else None
        profiled, shared = self._profiled(calls, recorded, step, phase)
        if recorded or profiled:
            # One mapping for all passes until the next reading: nothing waits for the device here.
            statistics = self.found_statistics if self.output_stats is not None else {}
            batch = ModuleBatch(step, phase, self.offset, calls, statistics, profiled=profiled, stages=stages, flow=flow)
            batch = batch._replace(collectives=shared) if shared else batch
            self._add_batch(batch._replace(device=self.measured.modules) if self.measured is not None else batch)
        self.stages_ran = stages > 0

    def _add_batch(self, batch: ModuleBatch) -> None:
        batch = batch._replace(roofline=self.roofline.of_calls) if self.roofline and self.roofline.of_calls else batch
        (self.staged if batch.stages else self.pending).append(batch)

    def settle_stages(self, tokens: Mapping[str, int], cached: Mapping[str, int]) -> None:
        """Complete the calls of stages.

        Args:
            tokens: of the input by modality, empty if they are not known.
            cached: those of them that were in a cache, so that nothing was encoded for them.
        """
        staged, self.staged = self.staged, []
        computed = {kind: number - cached.get(kind, 0) for kind, number in tokens.items()}
        self.pending += [with_tokens(batch, computed) for batch in staged]

    def new_stage(self) -> int:
        """Number of a phase or stage that begins; what is inside may be recorded before the phase or stage itself."""
        self._numbers += 1
        return self._numbers - 1

    def add_stage(
        self,
        name: str,
        start: int,
        end: int,
        *,
        number: int | None = None,
        parent: int | None = None,
        phase: PhaseKey | None = None,
        failure: str | None = None,
        attributes: Attributes | Callable[[], Attributes] = _NO_ATTRIBUTES,
        counted: bool = True,
        budgeted: bool = False,
    ) -> bool:
        """Record a part of the model that has ended, such as its vision encoder, under this request.

        Args:
            name: of its span, one of few: an index is an attribute.
            start: reading of the request's monotonic clock, in nanoseconds.
            end: likewise.
            number: from ``new_stage``, if anything is inside: stages by ``parent``, steps and module calls by their ``PhaseKey``.
            parent: number of the stage around it.
            phase: if it lies in one and in no stage; else it lies under the request.
            failure: type of the exception that ended it.
            attributes: of its span, as ``semconv`` names them, or a function that makes them later.
            counted: whether it is a value of the metric of stages, which has those of requests that are not recorded as well.
            budgeted: whether the budget has its span already; else it takes one as a step does.

        Returns:
            Whether it is recorded: not in a request that is not, and not over the budget.
        """
        if counted:
            self.stage_seconds.append((name, max(0, end - start) / 1e9))
        if not self.recording or not (budgeted or self.budget.take_step()):
            return False
        number = self.new_stage() if number is None else number
        stage = Stage(number, name, self.epoch(start), self.epoch(end), failure, attributes, parent, phase)
        self.pending.append(stage)
        return True

    def _profiled(self, calls: ModuleCalls, recorded: int, step: int | None, phase: PhaseKey) -> Taken:
        """What a profiler window has seen of the pass that has ended."""
        claim = self.window_claim
        if claim is None or not claim.holds_events:
            return (), {}
        with contain("profiler window"):
            in_steps = phase.name != semconv.PHASE_FORWARD
            left, shown = claim.window.left if in_steps else 0, step is not None or not in_steps
            return claim.take(calls, self.budget, passes=left, modules=recorded, shown=shown)
        return (), {}

    def read_output_stats(self) -> None:
        """Read the statistics of module outputs, where they are asked for, into the batches of the passes; may wait for the device."""
        if self.looking is not None:
            self.looking.read()
        if self.output_stats is None:
            return
        found = self.output_stats.read()
        self.nonfinite_seen = self.nonfinite_seen or any(
            statistics.get(key) for statistics in found for key in (semconv.OUTPUT_STAT_NAN_COUNT, semconv.OUTPUT_STAT_INF_COUNT)
        )
        self.found_statistics.update(enumerate(found))
        self.found_statistics = {}

    def note_inside(self, outcome: Outcome) -> None:
        """A request inside this one has ended."""
        if self.inside is not None:
            self.inside.append(outcome)

    def note_encoded(self, encoded: Any, options: Mapping[str, Any]) -> None:
        """A tokenizer has been called with these options on the thread of this request, the innermost one."""

    def failure_of(self, error: BaseException) -> Failure:
        """The exception that ends this request as text, with the values that the settings allow."""
        failure, owner = Failure(type(error).__name__, "", ""), getattr(self, "owner", None)
        note_failure(self, error)
        with contain("text of an exception"):
            failure = failure_of(error, content=owner is not None and owner.settings.content_on_spans)
        return failure

    def note_nonfinite(self) -> None:
        """This request has seen NaN or Inf, so the one around it has as well."""
        if self.outer is not None:
            self.outer.nonfinite_seen = True

    def hand_over(self) -> None:
        """Give the collected detail to the recorder."""
        if not self.pending:
            return
        with contain("statistics of modules"):
            self.read_output_stats()
        records, self.pending = self.pending, []
        self.scope.detail(records)

    def epoch(self, moment: int) -> int:
        """Nanoseconds since the epoch of a monotonic reading."""
        return moment + self.offset

    def end_span(self, end: RequestEnd) -> None:
        """Release everything that the call holds and end the span of the request, also after a failure."""
        self.ended = True
        try:
            if self.looking is not None:
                with contain("numerics watch"):
                    end = self.looking.settle(end)
            if self.shortage is not None:
                end = self.shortage.settle(end)
            if self.flow is not None:
                end = settle_flow(self, end)
            self.release()
        finally:
            if self.held:
                self.held[-1].release_all(self.held)
            self.scope.end(end)
            if self.pausing is not None:
                self.pausing.ends(self)

    def look_inside(self, engine: ModuleObservers, outputs: OutputStats | None) -> None:
        """Collect statistics of recorded calls in ``outputs``, and look at outputs until the request ends, as far as that is wanted."""
        self.output_stats = outputs
        if engine.inside.active:
            engine.acquire_inside(self.held)
            self.looking = engine.inside.begin(self)

    def release(self) -> None:
        """Release the events of the device, the profiler window and collectors."""
        self.output_stats = None
        if self.looking is not None:
            self.looking.release()
            self.looking = None
        if self.flow is not None:
            close_flow(self)
        if self.clock is not None:
            with contain("device clock"):
                self.clock.close()
        self.release_window_claim()

    def release_window_claim(self) -> None:
        """Release the profiler window."""
        if self.window_claim is not None:
            with contain("profiler window"):
                self.window_claim.release()
