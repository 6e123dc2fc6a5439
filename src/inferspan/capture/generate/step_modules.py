"""Chooses the steps of a request that are recorded with their modules, and makes batches of the calls.

These are the first, second, fourth, eighth ... step, every step if the settings want it, and the steps of a profiler window. Observers are
on the modules during such steps only. Those of the stages, such as a vision encoder, are on from the start of the request until a step
after the first token in which none has run.
"""

from __future__ import annotations

from inferspan.capture.call import Call
from inferspan.capture.device.memory import MemoryMeter
from inferspan.capture.owner import Owner
from inferspan.guard import contain
from inferspan.records import PhaseKey

__all__ = ["StepModules"]

LIVE_CALLS = 4096
"""Module calls that are kept before they are handed over while the request still runs."""


class StepModules:
    """The modules of one request's steps.

    Args:
        request: writes the log of module calls.
        owner: instrumentation of the model.
        memory: is read at sampled steps.

    Attributes:
        attached: whether observers are on modules or stages for the coming step.
        sampled: whether they are on the modules.
        refused: module spans of the coming step for which the budget has no room.
        next_sampled: number of the next step that is recorded by default.
        every_step: whether each step is.
        live_calls: module calls that have not been handed over.
        compiled: whether decode steps run compiled code, in which nothing of ours may be.
    """

    __slots__ = (
        "_count",
        "_memory",
        "_owner",
        "_request",
        "_stages_due",
        "_stages_on",
        "_warmup",
        "attached",
        "compiled",
        "every_step",
        "live_calls",
        "next_sampled",
        "refused",
        "sampled",
    )

    def __init__(self, request: Call, owner: Owner, memory: MemoryMeter | None, *, warmup: bool) -> None:
        self._request = request
        self._owner = owner
        self._memory = memory
        self._warmup = warmup
        self._count = owner.engine.expected
        """Module calls of the last pass that was recorded, the best guess for the next one."""
        self.live_calls = 0
        self.every_step = owner.settings.every_step
        self.next_sampled = 0
        self.attached = self.sampled = self._stages_on = False
        self._stages_due = owner.engine.stages > 0
        self.refused = 0
        self.compiled = False

    def choose(self, index: int) -> None:
        """Decide whether the step ``index`` is recorded with its modules, and attach or detach observers for it."""
        owner, request = self._owner, self._request
        if request.window_claim is None and owner.windows.active:
            request.window_claim = owner.windows.claim(first_call=self._warmup)
        profiled = request.window_claim is not None and request.window_claim.due
        wanted = owner.engine.expected > 0 and (self.every_step or profiled or index == self.next_sampled)
        if index == self.next_sampled:
            self.next_sampled = max(1, index * 2)
            # Before the first step it has just been read.
            if self._memory is not None and index:
                self._memory.look()
        if (self.compiled and index > 0) or not owner.is_open:
            wanted = self._stages_due = False
        elif index > 1 and not request.stages_ran:
            # The step after the first token is observed as well: without a cache the stages run in every step.
            self._stages_due = False
        request.budget.reserved = owner.engine.stages if self._stages_due else 0
        opened = wanted and request.open_modules(self._count, whole=True)
        # Left out only if the step comes to be.
        self.refused = self._count if wanted and not opened else 0
        if not opened:
            self._release_modules()
        elif not self.sampled:
            owner.engine.acquire(request.held)
            self.sampled = True
        if self._stages_due:
            try:
                self._open_stages()
            except BaseException:
                self._release_modules()
                raise
        else:
            self._release_stages()
        self.attached = self.sampled or self._stages_on

    def _open_stages(self) -> None:
        self._request.open_stages()
        if not self._stages_on:
            self._owner.engine.acquire_stages(self._request.held)
            self._stages_on = True

    def expect_stages(self) -> None:
        """Stages may run before the next step, although some have been without: an encoder is about to run again."""
        if self._stages_on or not self._owner.engine.stages or not self._request.recording or not self._owner.is_open:
            return
        self._stages_due = self.attached = True
        self._request.budget.reserved = self._owner.engine.stages
        self._open_stages()

    def reopen(self) -> None:
        """Record on after calls of the same pass have been cut off."""
        request, engine = self._request, self._owner.engine
        if self.sampled:
            request.open_modules(engine.expected, whole=False)
        if self._stages_on:
            request.open_stages()

    def release(self) -> None:
        """Take the observers off."""
        self._stages_due = False
        self._release_modules()
        self._release_stages()
        self.attached = False

    def _release_modules(self) -> None:
        self._request.calls_left = 0
        if self.sampled:
            self.sampled = False
            self._owner.engine.release(self._request.held)

    def _release_stages(self) -> None:
        self._request.cancel_stages()
        if self._stages_on:
            self._stages_on = False
            self._owner.engine.release_stages(self._request.held)

    def drop_unended(self) -> None:
        """Forget the calls of a pass that ran while ``uninstrument()`` took the hooks off: when some of them ended was not seen."""
        if self._request.open_calls and not self._owner.is_open:
            self._request.discard()

    def cut_before_step(self, phase: PhaseKey, began: int, now: int) -> None:
        """Put calls from before the pass, such as those of an encoder, under the phase, which ``began`` then."""
        self.drop_unended()
        if self._request.recorded:
            self.cut(None, phase, began, now, None)
            self.reopen()

    def cut(self, step: int | None, phase: PhaseKey, began: int, now: int, failure: str | None) -> None:
        """Make a batch of the calls since ``began``, under a step or, without one, under the phase."""
        request = self._request
        if self.sampled:
            self._count = max(request.recorded + request.missed, 1)
        while request.open_calls:
            # By an exception that did not leave the pass, or because the hooks were taken off.
            request.leave(now, failure=failure or ("_OTHER" if self._owner.is_open else None))
        if request.begun_before(began):
            # Our wrappers were off for a while, so the calls in between have no parent.
            request.discard()
        self.live_calls += request.recorded
        request.close_modules(step, phase, now, failure)

    def hand_over(self) -> None:
        """Give away the calls of all passes but the newest, which the device may still be at; their steps follow."""
        request = self._request
        with contain("hand-over of modules"):
            self.live_calls = 0
            if request.clock is not None:
                request.clock.read()
            if len(request.pending) > 1:
                with contain("statistics of modules"):
                    request.read_output_stats()  # what is found in the newest calls is found in all of them
            newest = request.pending[-1:]
            del request.pending[-1:]
            request.hand_over()
            request.pending += newest
