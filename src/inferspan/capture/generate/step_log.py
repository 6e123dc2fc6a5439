"""The steps of one request: their times, the shapes of their inputs and outputs, and the times of their tokens.

In: beginnings and ends of forward passes, and the tokens chosen after them. Out: rows, which become records later.

The end of a step takes one of two paths. The short one serves a step that looks like the last one, as most decode steps do: 9.0 us instead
of 17.3 without statistics of logits, 33 instead of 52 with them on a CPU. Both append the same rows; a test compares them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from torch import Tensor

from inferspan.capture.call import UNDER_REQUEST, Call
from inferspan.capture.modules.shapes import Described, describe_like
from inferspan.capture.owner import Owner
from inferspan.guard import contain, report
from inferspan.records import PhaseKey

from .step_logits import StepStatistics
from .step_modules import LIVE_CALLS, StepModules
from .step_rows import StepRows

__all__ = ["StepLog"]


class _Pattern:
    """Shapes and types of the last step; a step that has the same ones takes the short path."""

    __slots__ = ("dtype", "input_dtype", "input_shape", "inputs", "outputs", "shape", "width")

    def __init__(self, main: Tensor, inputs: Described) -> None:
        self.input_shape, self.input_dtype, self.width = main.shape, main.dtype, int(main.shape[1])
        self.inputs = inputs
        self.shape: Any = None
        """Of logits of one position per row; ``None`` if no statistics are taken of any."""
        self.dtype: Any = None
        self.outputs: Described = ()


class StepLog:
    """The steps of one request. Used on its thread only. The caller contains exceptions, unless a method contains its own.

    Args:
        request: whose steps these are.
        owner: instrumentation of the model.
        statistics: of the logits, if any are taken.
        modules: of the steps that are recorded with them.
        now: monotonic clock, in nanoseconds.
        cached: positions of a row that are in the cache before the first pass.

    Attributes:
        phase: the phase or stage that runs, or ran last.
        open: whether a step has begun and not ended.
        main: the tensor [rows, positions, ...] that goes into the open step, if there is one.
        width: positions of a row in the open step, if there is no main input.
        index: number of the open or the next step.
        length: tokens of a row in the cache and in the step, from the first chosen token on.
        awaiting: whether a token was chosen that the host may not have yet.
        first_token: when the first token was known.
        cached: positions of a row that are in the cache before the pass, until the first token.
        embedded: positions of a row of the prompt, if the first pass took embeddings.
        without_ids: those of them that the loop has no ids of.
        when_first_token: called with that moment.
        token_times: when each token was known; of several that come at once, once.
        token_counts: tokens at each of these times; empty if one each time.
        seconds: durations of the steps by name of the phase.
        logits: of the step that has ended last, until its tokens are chosen.
        uniform: whether a step may look like the last one, so that the short path can serve it.
        memory: readings before and after each step, if they are taken.
        chunked: whether the prompt may be computed in several passes.
        last: when the loop was last seen.
        overhead: our own time, in nanoseconds.
    """

    # Slots lie side by side; in a dictionary of a hundred entries each of them is a cache miss.
    __slots__ = (
        "_all_steps", "_budget", "_inputs", "_owner", "_pattern", "_phase_seconds", "_phase_start", "_recording", "_request",
        "_start", "awaiting", "cached", "chunked", "embedded", "first_token", "index", "last", "length", "logits", "main",
        "memory", "modules", "now", "open", "overhead", "phase", "rows", "seconds", "statistics", "token_counts", "token_times",
        "uniform", "watch", "when_first_token", "width", "without_ids",
    )  # fmt: skip

    def __init__(
        self, request: Call, owner: Owner, statistics: StepStatistics | None, modules: StepModules, *,
        now: Callable[[], int], cached: int = 0,
    ) -> None:  # fmt: skip
        self._request = request
        self._owner = owner
        self._recording = request.recording
        self._budget = request.budget
        self._all_steps = owner.steps_wanted == "all"
        self.statistics = statistics
        self.modules = modules
        self.now = now
        self.phase = UNDER_REQUEST
        self._phase_start = self._start = self.last = request.start
        self.seconds: dict[str, array[float]] = {}
        self._phase_seconds: array[float] = array("d")
        self.open, self.index = False, 0
        self.width: int | None = None
        self.main: Any = None
        self.memory: Any = None
        self.watch: Any = None
        self._inputs: Described = ()
        self.length: int | None = None
        self.cached = cached
        self.overhead = self.embedded = self.without_ids = 0
        self.first_token: int | None = None
        self.when_first_token: Callable[[int], None] | None = None
        self.token_times, self.token_counts = array("q"), array("q")
        self.logits: Tensor | None = None
        self.rows = StepRows(request, owner, statistics)
        self._pattern: _Pattern | None = None
        self.uniform = self.chunked = self.awaiting = False

    # ------------------------------------------------------------------------------------------------------------- steps
    def begin_phase(self, phase: PhaseKey, now: int) -> None:
        """Steps from now on belong to this phase or stage."""
        self.phase = phase
        self._phase_start = now
        self._phase_seconds = self.seconds.setdefault(phase.name, array("d"))
        self._pattern = None

    def prepare(self) -> None:
        """The loop is about to prepare its next forward pass, so the host has seen the last token."""
        now = self.now()
        if self.open:
            # Chunked prefill runs several passes before the first token; the next one's preparation ends the last.
            width = self.close(now, (), None)
            if self.length is None and self.chunked:
                self.cached += width or 0
            self.overhead += self.now() - now
        if self.awaiting:
            if self.first_token is None:
                self.token_known(now)
            else:
                self.awaiting = False
                self.token_times.append(now)
        self.last = now

    def begin(self, main: Any = None) -> None:
        """Inputs are prepared; the forward pass starts.

        Args:
            main: the tensor ``[rows, positions, ...]`` that goes in; one that is not known yet may be given to ``end``.
        """
        request = self._request
        clock, modules = request.clock, self.modules
        began = 0
        if self.watch is not None:
            self.watch.begin(self.index)
        if clock is not None or modules.attached or request.window_claim is not None or self.memory is not None:
            began = self.now()
            if self.memory is not None:
                self.memory.begin_step()
            if request.window_claim is not None:
                with contain("profiler window"):
                    request.window_claim.begin()
            if modules.attached:
                self._pattern = None
                modules.cut_before_step(self.phase, self._phase_start, began)
            if clock is not None:
                budget = self._budget
                if modules.attached or self.index == 0 or (self._all_steps and (budget.spent < budget.soft or budget.keeps_next_step)):
                    clock.begin()
        self.main = main
        self._start = now = self.now()
        if began:
            self.overhead += now - began
        self.open = True

    def end(self, logits: Any, main: Any = None) -> None:
        """The forward pass has returned. Contains errors of its own.

        Args:
            logits: ``[rows, positions, vocabulary]``; anything else counts as none.
            main: the main input, unless ``begin`` got it.
        """
        now = self.now()
        clock = self._request.clock
        if clock is not None:
            clock.end()
        if self.watch is not None:
            self.watch.flush()
        try:
            pattern = self._pattern
            main = self.main if main is None else main
            if (
                pattern is None
                or not self.open
                or type(main) is not Tensor
                or main.dtype is not pattern.input_dtype
                or main.shape != pattern.input_shape
                or (
                    pattern.shape is not None
                    and (type(logits) is not Tensor or logits.dtype is not pattern.dtype or logits.shape != pattern.shape)
                )
            ):
                self._end_anew(now, logits, main)
            else:
                # The same as ``_end_anew``, for steps without modules in the middle of a request. Calls that may fail come first.
                kept = self._recording and self._budget.take_step()
                if pattern.shape is not None:
                    self.logits = logits
                index = self.index
                self.index = coming = index + 1
                self.open = False
                self.main = None
                start = self._start
                self._phase_seconds.append((now - start) / 1e9)
                measured = None if clock is None else clock.end_pass(wanted=kept)
                if kept:
                    rows = self.rows
                    inputs, outputs, width = pattern.inputs, pattern.outputs, pattern.width
                    more = None if self.memory is None else self.memory.end_step()
                    rows.kept.append((index, start, now, self.phase, None, inputs, outputs, width, self.length or 0, more, measured))
                    if len(rows.kept) > rows.most:
                        rows.hand_over_some()
                if self._recording and (coming == self.modules.next_sampled or self._owner.windows.active):
                    self._pattern = None
                    self.modules.choose(coming)
        except Exception as error:
            report("end of a step", error)
        if clock is not None:
            # The loop has waited for the device before this step, which now has work again.
            clock.read_some()
        self.last = now
        self.overhead += self.now() - now

    def choose(self, now: int, ids: Tensor | None, length: int) -> None:
        """Tokens have been chosen after a step.

        Args:
            now: when.
            ids: ``[rows, n]``, of which the last are the chosen ones; ``None`` if it is not known which were.
            length: tokens of a row from now on, those of the prompt included.
        """
        self.length = length
        logits = self.logits
        if logits is not None:
            self.logits = None
            statistics, rows, number = self.statistics, self.rows.kept, self.index - 1
            try:
                if statistics is not None and rows and rows[-1][0] == number and number not in statistics.slots:
                    slot = statistics.ring.append_last(logits, ids)
                    if slot is not None:
                        statistics.slots[number] = slot
            except Exception as error:
                report("logit statistics", error)
        self.awaiting = True
        self.last = last = self.now()
        self.overhead += last - now

    def token_known(self, now: int) -> None:
        """The host has the chosen token."""
        self.awaiting = False
        if self.first_token is None:
            self.first_token = now
            if self.when_first_token is not None:
                self.when_first_token(now)
        self.token_times.append(now)

    def close(self, now: int, outputs: Described, failure: str | None) -> int | None:
        """End the open step, or one whose beginning was not seen; the positions of a row that it had, if known."""
        request, modules, claim, clock = self._request, self.modules, self._request.window_claim, self._request.clock
        if clock is not None:
            clock.end()
        if claim is not None:
            with contain("profiler window"):
                claim.end(now)
        profiled = claim is not None and claim.holds_events
        if self.watch is not None:
            self.watch.flush()
        if not self.open:
            self._start = max(self.last, self._phase_start)
        index, self.index, self.open = self.index, self.index + 1, False
        main, self.main = self.main, None
        self._phase_seconds.append((now - self._start) / 1e9)
        # One that continues the run before is not told of, so that it costs no call.
        if self.length is None or self.rows.run != (getattr(main, "shape", None), self.phase, self.length - index):
            self.rows.mark(index, self.phase, main, self.length, self.cached if self.first_token is None else 0)
        if not self._recording:
            return None
        wanted = profiled or self._all_steps or (self._owner.steps_wanted == "sampled" and (modules.sampled or modules.refused > 0))
        kept = False
        # On its own, so that the modules of this step are not taken for those of a later one.
        try:
            kept = wanted and self._budget.take_step(wanted=profiled)
        except Exception as error:
            report("end of a step", error)
        if modules.refused:
            self._budget.leave_out(modules.refused)
        request.measured = None
        if kept:  # its row comes before its calls, which an interrupt in here would leave without a parent; completed below
            self.rows.kept.append((index, self._start, now, self.phase, failure, (), (), None, 0, None, None))
        if modules.attached:
            modules.cut(index if kept else None, self.phase, self._start if kept else self._phase_start, now, failure)
        elif profiled:
            request.close_modules(index if kept else None, self.phase, now, failure)
        elif clock is not None:
            request.measured = clock.end_pass(wanted=kept)
        inputs, width = self._look_at_input(main) if kept or self.chunked else ((), None)
        if kept:
            length = self.length
            if length is None:
                length = (self.cached if self.first_token is None else 0) + (width or 0)
                self.embedded = length if inputs and inputs[0][1].is_floating_point else 0
            more = claim.attributes if profiled and claim is not None else None
            if self.memory is not None:
                more = {**self.memory.end_step(), **(more or {})}
            self.rows.kept[-1] = (index, self._start, now, self.phase, failure, inputs, outputs, width, length, more, request.measured)
        coming = index + 1
        unlike = modules.attached or modules.every_step or coming == modules.next_sampled or claim is not None
        if unlike or self._owner.windows.active:
            modules.choose(coming)
        else:
            request.calls_left = modules.refused = 0
        if len(self.rows.kept) > self.rows.most:
            self.rows.hand_over_some()
        elif modules.live_calls >= LIVE_CALLS:
            modules.hand_over()
        return width

    # --------------------------------------------------------------------------------------------------------- internals
    def _end_anew(self, now: int, logits: Any, main: Any) -> None:
        """End a step on the long path."""
        self.main, self._pattern = main, None
        outputs: Described = ()
        if self.statistics is not None:
            self.logits = self.statistics.last_position(logits)
            if self.logits is not None:
                outputs = self.statistics.describe(self.logits)
        self.close(now, outputs, None)
        self._pattern = self._pattern_of(main, outputs)

    def _look_at_input(self, main: Any) -> tuple[Described, int | None]:
        """Shape of the main input, and its positions per row. Contains errors of its own."""
        width, self.width = self.width, None
        try:
            if main is None:
                return (), width
            self._inputs = describe_like(self._inputs, (main,))
            return self._inputs, int(main.shape[1])
        except Exception as error:
            report("end of a step", error)
            return (), None

    def _pattern_of(self, main: Any, outputs: Described) -> _Pattern | None:
        """The pattern of the step that has just ended, if the next ones are likely to match it."""
        modules = self.modules
        if modules.attached or modules.refused or modules.every_step or self._request.window_claim is not None or not self.uniform:
            return None
        if self.first_token is None or self.length is None or (self._recording and not self._all_steps):
            return None
        if self.statistics is not None and self.statistics.vocabulary:
            return None
        if type(main) is not Tensor or (self.logits is None and self.statistics is not None):
            return None
        self._inputs = describe_like(self._inputs, (main,))
        pattern = _Pattern(main, self._inputs)
        if self.logits is not None:
            pattern.shape, pattern.dtype = self.logits.shape, self.logits.dtype
            pattern.outputs = outputs
        return pattern

    def drop(self) -> None:
        """Drop every tensor, so that nothing depends on when this object is collected."""
        self.logits = self.main = self.when_first_token = self._pattern = self.memory = self.watch = None
        self.statistics = self.rows.statistics = None
