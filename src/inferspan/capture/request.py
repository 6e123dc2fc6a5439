"""A request that is being recorded: its phases, steps, tokens and end, for every kind of loop.

In: the calls of an adapter (``recording`` has them in short), and module calls, which observers write into it. Out: records for the sinks.
On the model's path a step costs a few clock readings and appends; only the end of the request waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from inferspan import semconv
from inferspan.guard import contain
from inferspan.records import Attributes, AttributeValue, Failure, ModuleBatch, ModuleCalls, PhaseKey, RequestEnd

from .call import Call
from .compile.compilations import Compilations
from .compile.watch import compiling
from .device.memory import MemoryMeter
from .generate.end import Measured, describe_end
from .generate.pass_shapes import run_at
from .generate.step_log import StepLog
from .generate.step_logits import StepStatistics
from .generate.step_modules import StepModules
from .outcome import Outcome
from .owner import Owner
from .phase_log import PhaseLog

__all__ = ["Request"]

INTERRUPTED = Failure("_OTHER", "the request was interrupted", "")


class Request(Call):
    """A request that is being recorded. Made by ``start``.

    Attributes:
        phases: its phases, and the stages that steps and modules lie in.
        steps: the log of its steps. An adapter for which each call counts may call it directly, and contains its errors then.
        adapter: translates a loop into this request; wrappers find it through the request of the thread.
        compiled: whether a compiled forward pass is used, in which nothing is observed.
        end: when it ended, once it is closed.
    """

    __slots__ = ("adapter", "budget", "measured", "owner", "recording", "root_id", "steps", "window_claim")

    def __init__(self, kind: str, owner: Owner, *, root: object, cached: int, now: Callable[[], int], **options: Any) -> None:
        super().__init__(**options)
        self._ending = f"end of {kind}()"
        self.owner = owner
        self.engine = owner.engine
        self.root_id = 0 if root is None else id(root)
        self.counts = "generated"
        self.compiled = False
        self.end: int | None = None
        self._finished = self._closed = False
        self.phases = PhaseLog(self)
        self._positions = cached
        """Of a row, in the cache and in the step, where the adapter begins steps here."""
        self._rows: list[int | None] = []
        """Sequences in each step that the adapter has begun here."""
        self._given_calls: list[ModuleCalls] = []
        self._memory: MemoryMeter | None = None
        if self.recording:
            with contain("memory reading"):
                self._memory = MemoryMeter(owner.device)
        vocabulary = 0
        with contain("size of the vocabulary"):
            vocabulary = owner.sharded_vocabulary()
        statistics = None
        if self.recording and owner.settings.logits:
            statistics = StepStatistics(
                top_k=owner.settings.top_k if owner.ids_on_spans else 0,
                entropy_metric=owner.settings.entropy_metric,
                vocabulary=vocabulary,
            )
        self._energy = owner.new_energy_meter()
        self._warmup = owner.first_call
        self._compilations = Compilations()
        modules = StepModules(self, owner, self._memory, warmup=self._warmup)
        self.steps: StepLog = StepLog(self, owner, statistics, modules, now=now, cached=cached)
        if self.recording:
            self.look_inside(owner.engine, owner.new_output_stats())
            self.clock = owner.new_device_clock()
            modules.choose(0)

    def follows(self, module: object) -> bool:
        """Whether ``module`` is the model of this request, or a generating model inside it."""
        return self.root_id != 0 and (id(module) == self.root_id or id(module) in self.owner.members)

    # ------------------------------------------------------------------------------------------------------------ phases
    def begin_phase(self, name: str, *, at: int | None = None, then: str | None = None) -> None:
        """Begin a phase; a phase or stage that is open ends.

        Args:
            name: of its span.
            at: reading of the request's clock, default now.
            then: name of the phase that follows by itself when the first token is known.
        """
        self._begin(name, at, then, None)

    def begin_stage(self, name: str, *, at: int | None = None, attributes: Attributes | None = None) -> None:
        """Begin a stage of the model that steps and module calls will lie in; a phase or stage that is open ends.

        It is recorded with ``add_stage`` when the request ends.

        Args:
            name: of its span, one of few.
            at: reading of the request's clock, default now.
            attributes: of its span.
        """
        self._begin(name, at, None, attributes or {})

    def _begin(self, name: str, at: int | None, then: str | None, attributes: Attributes | None) -> None:
        if self._finished:
            return
        with contain("start of a phase"):
            now = self.steps.now() if at is None else at
            if self.phases.open is not None:
                self.end_phase(at=now)
            self.steps.begin_phase(self.phases.begin(name, now, attributes), now)
            self.steps.when_first_token = None if then is None else partial(self._follow, then)

    def _follow(self, name: str, now: int) -> None:
        self.end_phase(at=now)
        self.begin_phase(name, at=now)

    def end_phase(self, failure: Failure | None = None, *, at: int | None = None, attributes: Attributes | None = None) -> None:
        """End the open phase or stage; the token that was chosen last is known by now.

        Args:
            failure: the exception that ended it.
            at: reading of the request's clock, default now.
            attributes: more of the span, if it is a stage.
        """
        if self._finished:
            return
        with contain("end of a phase"):
            now, kind = self.steps.now() if at is None else at, None if failure is None else failure.type
            if self.steps.awaiting:
                self.steps.token_known(now)
            if self.steps.open:
                self._close_step(now, kind)
            self.phases.end(now, kind, attributes or {})

    # ------------------------------------------------------------------------------------------------------------- steps
    def begin_step(self, rows: int | None = None, tokens: int | None = None, *, inputs: Tensor | None = None) -> None:
        """A forward pass is about to begin; a token that was chosen before is known by now.

        Args:
            rows: sequences that go in.
            tokens: positions of each of them.
            inputs: the tensor ``[rows, positions, ...]`` that goes in, instead of the two numbers; its shape is shown.
        """
        if self._finished:
            return
        with contain("start of a step"):
            steps = self.steps
            steps.prepare()
            if self.phases.open is None:
                first = steps.first_token is None
                self.begin_phase(semconv.SPAN_PREFILL if first else semconv.SPAN_DECODE, then=semconv.SPAN_DECODE if first else None)
            if steps.length is None:
                steps.cached = self._positions
            steps.width = tokens
            self._rows.append(rows if inputs is None else int(inputs.shape[0]))
            self._positions += (tokens or 0) if inputs is None else int(inputs.shape[1])
            steps.begin(inputs)

    def end_step(self, logits: Tensor | None = None, tokens: Tensor | None = None, failure: Failure | None = None) -> None:
        """The forward pass has returned, or its tokens have been chosen, or both.

        Args:
            logits: ``[rows, positions, vocabulary]`` that it gave.
            tokens: ``[rows, n]`` or ``[rows]`` ids, of which the last were chosen after it; may come in a second call.
            failure: the exception that ended it.
        """
        if self._finished:
            return
        with contain("end of a step"):
            steps = self.steps
            if failure is not None:
                self._close_step(steps.now(), failure.type)
                return
            if steps.open:
                steps.end(logits)
                rows = self._rows[-1] if self._rows else None
                if rows is not None:
                    steps.rows.add_attributes(steps.index - 1, {semconv.STEP_ROWS: rows})
                self._add_given_calls()
            elif logits is not None:
                steps.logits = steps.rows.add_logits(steps.index - 1, logits)
            if tokens is not None:
                steps.uniform = True
                steps.choose(steps.now(), tokens if tokens.dim() == 2 else tokens.unsqueeze(1), self._positions + 1)

    def _close_step(self, now: int, failure: str | None) -> None:
        self.steps.close(now, (), failure)
        self._add_given_calls()

    def add_modules(self, calls: ModuleCalls) -> None:
        """Module calls of the open step; without one, of the phase.

        For adapters whose modules run where the observers of the model do not see them. Times are readings of the request's clock.
        """
        with contain("module calls"):
            if not self.recording or not len(calls) or self._finished:
                return
            self._given_calls.append(calls)
            if not self.steps.open:
                self._add_given_calls()

    def _add_given_calls(self) -> None:
        """Put the rows of an adapter under the step that has just ended, as far as the budget goes."""
        if not self._given_calls:
            return
        given, self._given_calls = self._given_calls, []
        kept = self.steps.rows.kept
        number = self.steps.index - 1
        step = number if kept and kept[-1][0] == number else None
        for calls in given:
            spans = len(calls)
            if spans > self.budget.modules_allowed(spans, whole=False):
                self.budget.leave_out(spans)
                continue
            self.budget.spend(spans)
            self.pending.append(ModuleBatch(step, self.steps.phase, self.offset, calls, {}))

    # --------------------------------------------------------------------------------------------------------------- end
    def close(self, failure: Failure | None = None, *, at: int | None = None) -> None:
        """End open steps and phases: nothing of the request runs any more. ``finish`` calls this; a second call does nothing.

        An adapter that has to look at results first closes the request before, so that its time ends here.
        """
        if self._closed:
            return
        # Again from the start after an interrupt in here: what has been done is not done twice.
        if self.end is None:
            self.end = self.steps.now() if at is None else at
        now = self.end
        kind, steps = None if failure is None else failure.type, self.steps
        self.pop(now)
        # Each on its own, so that no child is handed over without its parent.
        with contain(self._ending):
            if steps.awaiting:
                steps.token_known(now)
        with contain(self._ending):
            if not steps.open:
                steps.modules.drop_unended()
            if steps.open or self.open_calls:
                self._close_step(now, kind or "_OTHER")
            if self.shortage is not None and self.shortage.step == steps.index - 1:
                steps.rows.add_attributes(steps.index - 1, self.shortage.of_step)
        # Begun with the last token: nothing has happened in it.
        last = self.phases.close(empty=failure is None)
        with contain(self._ending):
            if self.recorded and self.recording:
                self.close_modules(None, last or steps.phase, now, kind)
        with contain(self._ending):
            self.read_output_stats()
        steps.rows.hand_over(len(steps.rows.kept), wait=True, last=True)
        with contain(self._ending):
            if self.clock is not None:
                self.clock.anchor()
            self.phases.end_last(now, kind)
        self._closed = True

    def finish(self, outcome: Outcome) -> None:
        """End the request; once only, a second call does nothing but what an interrupt has prevented."""
        if self.ended:
            return
        first, self._finished = not self._finished, True
        end: RequestEnd | None = None
        # An interrupt that arrives in here must not leave the span open or its context attached.
        try:
            if first:
                self.close(outcome.failure)
                with contain(self._ending):
                    self._add_figures(outcome)
                if self.outer is not None:
                    self.outer.note_inside(outcome)
                with contain(self._ending):
                    end = describe_end(outcome, self._measure(outcome))
                self.settle_stages(outcome.input_split, outcome.cached_split)
                with contain(self._ending):
                    self.phases.add_records(end)
                    end = self._compilations.settle(end, self.offset)
                with contain("hand-over of detail"):
                    self.hand_over()
        finally:
            moment = self.epoch(self.start if self.end is None else self.end)
            self.end_span(RequestEnd(moment, outcome.failure, {}) if end is None else end)

    def release(self) -> None:
        """Drop every tensor and every reference back to this object as well, so that nothing depends on when it is collected."""
        with contain(self._ending):
            self.steps.modules.release()
        super().release()
        self._energy = self.adapter = None
        # Where it is still the innermost one, because another thread has ended it, passes are none of its own.
        self.root_id = 0
        self.steps.drop()
        self.phases.drop()
        del self.steps
        del self.phases
        self.owner.closed(self)

    def abandon(self, now: int) -> None:
        """The request around this one ends, and the adapter has not ended this one: an interrupt has passed through both."""
        self.close(INTERRUPTED, at=now)
        self.finish(Outcome(failure=INTERRUPTED))

    def fail(self, error: BaseException) -> None:
        """End the request with an exception that passes through, of which nothing else is known."""
        self.finish(Outcome(failure=self.failure_of(error)))

    def _add_figures(self, outcome: Outcome) -> None:
        """Add to the outcome the figures of the logits that were seen in the steps, if there are any."""
        statistics = self.steps.statistics
        if statistics is not None:
            figures = statistics.figures.read(outcome.output_tokens if outcome.tokens_of_first_row else None)
            nonfinite = sum(statistics.nonfinite.values())
            if figures or nonfinite:
                outcome.figures, outcome.nonfinite_logits = figures, nonfinite

    def _readings(self) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {}
        if self._memory is not None:
            with contain("memory reading"):
                attributes |= self._memory.attributes()
        statistics = self.steps.statistics
        if self.nonfinite_seen or (statistics is not None and statistics.nonfinite):
            attributes[semconv.NONFINITE] = True
            self.note_nonfinite()
        if self.moving_ns:
            attributes[semconv.OFFLOAD_TIME] = self.moving_ns / 1e9
        attributes |= self._compilations.attributes(compiling.log, first=self._warmup)
        if self.window_claim is not None and self.window_claim.steps:
            attributes[semconv.PROFILER_STEPS] = self.window_claim.steps
        return attributes

    def _measure(self, outcome: Outcome) -> Measured:
        """The measurements of the closed request."""
        steps, owner = self.steps, self.owner
        statistics = steps.statistics
        end = steps.last if self.end is None else self.end
        joules = None
        if self._energy is not None:
            with contain("energy reading"):
                joules = self._energy.end(now=end)
        unobserved = [owner.unobserved] if owner.unobserved else []
        unobserved += outcome.unobserved
        if statistics is not None and statistics.sharded:
            unobserved.append("logits: sharded")
        return Measured(
            start=self.start,
            end=end,
            offset=self.offset,
            first_token=steps.first_token,
            token_times=steps.token_times,
            token_counts=steps.token_counts,
            step_seconds=steps.seconds,
            logprobs=() if statistics is None else statistics.logprobs,
            entropies=() if statistics is None else statistics.entropies,
            top1_probabilities=() if statistics is None else statistics.top1_probabilities,
            nonfinite={} if statistics is None else statistics.nonfinite,
            step_rows=None if not self._rows or None in self._rows else sum(filter(None, self._rows)) / len(self._rows),
            attributes=self._readings(),
            joules=joules,
            unobserved=unobserved,
            dropped=self.budget.dropped,
            overhead=self.overhead + steps.overhead,
            arrays=self.recording and owner.settings.token_arrays,
            content=owner.ids_on_spans,
            decode=owner.decode_token if owner.ids_on_spans and owner.tokenizer is not None else None,
        )

    def close_modules(self, step: int | None, phase: PhaseKey, now: int, failure: str | None) -> None:
        """Turn recorded module calls into a batch; a phase lasts as long as those directly under it, which the writer had to search."""
        if self.roofline is not None and self.roofline.every:
            self.roofline.of_calls = self.roofline.of_step(None if step is None else run_at(self.steps.rows.marks, step))
        super().close_modules(step, phase, now, failure)
        if step is None:
            self.phases.stretch(phase, now)
