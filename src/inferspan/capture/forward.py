"""Plain forward passes: one request for each outermost call of the instrumented model that is not part of a ``generate()``.

One function around the pass opens and ends the request, and makes its span the current one meanwhile (see ``root.call``). Where only
hooks are possible (``root.pair``) it is not current. Torch calls an ``always_call`` hook for ``Exception`` only, so a call that Ctrl-C
has left open there is ended by the thread's next one or by ``uninstrument()``. Every other call is ended by its own thread, also after
``uninstrument()``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from torch import nn

from inferspan import semconv
from inferspan.attribute_values import shape_attributes
from inferspan.capture.compile.compilations import Compilations
from inferspan.capture.compile.transforms import is_transforming
from inferspan.capture.compile.watch import compiling
from inferspan.capture.logits.heads import Masks
from inferspan.capture.modules.shapes import Described, describe
from inferspan.capture.values.unseen import hidden
from inferspan.guard import contain
from inferspan.records import AttributeValue, Failure, ModuleInfo, RequestEnd, RequestScope

from .adapters import call_adapters
from .budget import Budget
from .call import UNDER_REQUEST, Call, current
from .chat import embeds
from .model_info import is_training
from .owner import OpenPass, Owner
from .passes.facts import embedding, logit_facts, look_at_input, nonfinite_of
from .passes.given import Given, given_of, unobserved_of
from .passes.later import runs_later
from .passes.roofline import add_roofline
from .recording import open_call
from .running import invocations

if TYPE_CHECKING:
    from inferspan.capture.device.clock import CallClock

__all__ = ["INTERRUPTED", "ForwardCall", "close_stale", "open_forward", "start_forward"]

_PACKED = frozenset({"cu_seq_lens_q", "read_index"})
"""Arguments by which transformers' continuous batching packs the requests of several callers into one row, so the pass is not a request."""
INTERRUPTED = Failure("_OTHER", "the forward pass was interrupted", "")


class ForwardCall(Call):
    """One plain forward pass of an instrumented model.

    Args:
        owner: the instrumentation of the model.
        inputs: shapes and dtypes of the arguments.
        opened: its entry in the owner's registry.
        compiled: whether Dynamo evaluates its frames.
        **options: see :class:`Call`.
    """

    def __init__(self, owner: Owner, inputs: Described, opened: OpenPass, *, compiled: bool = False, **options: Any) -> None:
        self.thread = threading.get_ident()  # first: the base class makes this call known, and an interrupt then releases it
        super().__init__(**options)
        self.compiled = compiled
        self.owner = owner
        self.engine = owner.engine
        self.settings = owner.settings
        self.inputs = inputs
        self.inner: list[bool] = []
        """Calls of the model by itself that are running inside this one: whether each is recorded."""
        self.opened_pass = opened
        self.finished = self.awaits_root = False
        """Whether it was begun around the call of the model, which is still to come."""
        self.warmup, self.compilations = owner.first_call, Compilations()
        self.modules = self.stages = False
        self.input_tokens: int | None = None
        self.rows: int | None = None
        self.given = Given()
        self.masks: Masks = (None, None)
        """Inputs that determine the positions of the logits, until the request ends."""
        if self.recording:
            try:
                self._open(owner)
            except BaseException:
                # An interrupt: nothing else would take the modules' observers off again.
                self._detach()
                raise

    def _open(self, owner: Owner) -> None:
        """Attach module observers and begin the device clock and the profiler window."""
        engine = owner.engine
        self.look_inside(engine, owner.new_output_stats())
        expected = 0 if self.compiled else engine.expected
        self.budget.reserved = 0 if self.compiled else engine.stages
        if expected and self.budget.modules_allowed(expected, whole=False):
            self.open_modules(expected, whole=False)
            engine.acquire(self.held)
            self.modules = True
        else:
            self.budget.leave_out(expected)
        if self.budget.reserved:
            self.open_stages()
            engine.acquire_stages(self.held)
            self.stages = True
        self.clock = owner.new_device_clock()
        if self.clock is not None:
            self.clock.begin()
        if owner.windows.active:
            self.window_claim = owner.windows.claim(first_call=self.warmup)

    def enter_again(self, info: ModuleInfo, arguments: tuple[Any, ...]) -> None:
        """The model calls itself: one more module call inside this request."""
        # A trace of the model is no call of it, and what reads a shape would be in the trace.
        self.inner.append(not is_transforming())
        if not self.inner[-1]:
            return
        if self.calls_left <= 0:
            self.missed += 1
        else:
            number = self.enter(info, describe(arguments[0]), perf_counter_ns())
            if self.clock is not None:
                self.clock.enter(number)

    def leave_again(self, info: ModuleInfo, output: Any, now: int, failure: str | None) -> None:
        """The inner call of the model by itself has ended."""
        if not self.inner.pop():
            return
        if (number := self.reach(info, now)) >= 0:
            if self.clock is not None:
                self.clock.leave(number)
            self.leave(now, describe(output), failure)

    def finish(self, output: Any, failure: Failure | None, now: int) -> None:
        """End the request; ``output`` is the result of the model. A second call does nothing.

        Called on the call's own thread; on another one only if that thread has left the pass without ending it.
        """
        claimed = False
        try:
            claimed = self._claim()
        finally:
            # Asked again where an interrupt has prevented the answer.
            if claimed or self._claim():
                self._end(output, failure, now)
            else:
                self.pop(now)
                self.release_window_claim()

    @hidden
    def _end(self, output: Any, failure: Failure | None, now: int) -> None:
        end: RequestEnd | None = None
        # An interrupt that arrives in here must not leave the span open or hooks attached.
        try:
            if threading.get_ident() != self.thread:
                self._leave_device()
            if self.clock is not None:
                self.clock.end()
            if self.window_claim is not None:
                with contain("profiler window"):
                    self.window_claim.end(now)
            self.pop(now)
            if self.looking is not None and self.looking.passes is not None:
                self.looking.passes.returned(output)
            with contain("end of a forward pass"):
                self.close_modules(None, UNDER_REQUEST, now, failure.type if failure else None)
            with contain("statistics of modules"):
                self.read_output_stats()
            with contain("end of a forward pass"):
                end = self._describe_end(output, failure, now)
            end = end or RequestEnd(self.epoch(now), failure, {})
            if self.clock is not None:
                with contain("device clock"):
                    self._add_device_time(self.clock, end)
            add_roofline(self, output, end)
            with contain("hand-over of a forward pass"):
                if self.staged:
                    self.settle_stages(self.given.tokens, {})
                self.hand_over()
        finally:
            self.finished = True
            self.end_span(end or RequestEnd(self.epoch(now), failure, {}))

    def release(self) -> None:
        """Take the modules' observers off as well, and drop what the statistics depend on."""
        self.masks = (None, None)
        with contain("end of a forward pass"):
            self._detach()
        super().release()

    def _detach(self) -> None:
        """Take the observers off."""
        if self.modules:
            self.modules = False
            self.owner.engine.release(self.held)
        if self.stages:
            self.stages = False
            self.owner.engine.release_stages(self.held)

    def _claim(self) -> bool:
        """Claim the right to end the request; true for the first caller only."""
        if not self.opened_pass.hooked:
            # Its own thread only ends it, and once more if an interrupt has prevented that.
            return not self.finished
        first = self.opened_pass.close()
        self.finished = True
        return first

    def _leave_device(self) -> None:
        """Ask the device nothing: only the call's own thread may."""
        self.output_stats = None
        if self.looking is not None:
            self.looking.abandon()
        if self.clock is not None:
            self.clock.abandon()
            self.clock = None

    def release_window_claim(self) -> None:
        """Release the profiler window, on the call's own thread: only there can it be closed."""
        if threading.get_ident() == self.thread:
            super().release_window_claim()

    def abandon(self, now: int) -> None:
        """The call around this one ends, so an interrupt has passed through both."""
        self.finish(None, INTERRUPTED, now)

    def _add_device_time(self, clock: CallClock, end: RequestEnd) -> None:
        """Put the device's time on the request, if the device is done: nothing waits for it."""
        clock.read(leave=0)
        if self.measured is not None and self.measured.seconds is not None:
            end.attributes = {**end.attributes, semconv.DEVICE_TIME: self.measured.seconds}

    def _describe_end(self, output: Any, failure: Failure | None, now: int) -> RequestEnd:
        attributes: dict[str, AttributeValue] = {}
        outputs, claim, lazy = describe(output), self.window_claim, runs_later(output)
        if self.recording:
            attributes |= shape_attributes(self.inputs, semconv.INPUT_SHAPES, semconv.INPUT_DTYPES)
            attributes |= shape_attributes(outputs, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES)
            if claim is not None and claim.steps:
                attributes |= {semconv.PROFILER_STEPS: claim.steps, **claim.attributes}
            attributes |= self.compilations.attributes(compiling.log, first=self.warmup)
            if self.compiled:
                attributes[semconv.MODEL_COMPILE_MODE] = "default"
            unobserved = unobserved_of(self.owner, compiled=self.compiled)
            if lazy is not None:
                # Its code runs later, where the request has ended and its span is not the current one.
                unobserved += [f"{part}: {lazy}" for part in ("forward", "modules", "context") if part != "modules" or self.modules]
            elif self.opened_pass.hooked:
                unobserved.append("context: hooks")
            if failure is None:
                statistics, sharded = logit_facts(output, self.owner, self.masks) if self.settings.logits else ({}, False)
                attributes |= statistics
                if sharded:
                    unobserved.append("logits: sharded")
            if unobserved:
                attributes[semconv.UNOBSERVED] = "; ".join(unobserved)
        nonfinite = nonfinite_of(attributes)
        if nonfinite or self.nonfinite_seen:
            attributes[semconv.NONFINITE] = True
            self.note_nonfinite()
        if self.moving_ns:
            attributes[semconv.OFFLOAD_TIME] = self.moving_ns / 1e9
        if self.rows is not None:
            attributes[semconv.BATCH_SIZE] = self.rows
        embedded = embedding(output, outputs) if self.counts == "embedded" else ()
        if self.given.modalities:
            attributes[semconv.INPUT_MODALITIES] = self.given.modalities
        if embedded and embedded[0][0]:
            attributes[semconv.EMBEDDINGS_DIMENSION] = int(embedded[0][0][-1])
        return RequestEnd(
            end_ns=self.epoch(now),
            failure=failure,
            attributes=attributes,
            input_tokens=self.input_tokens,
            batch_size=self.rows,
            spans_dropped=self.budget.dropped,
            nonfinite=nonfinite,
            events=self.compilations.events(self.offset),
            stages=self.stage_seconds,
            timed=lazy is None,
            overhead_ns=self.overhead + self.owner.hook_cost * self.count + (0 if claim is None else claim.closing_ns),
        )


def close_stale(root: nn.Module | None) -> None:
    """End forward calls that an interrupt left open on this thread, and leave requests that another thread has ended.

    ``root`` is the model that is being entered.
    """
    while (call := current.call) is not None:
        if not isinstance(call, ForwardCall):
            if getattr(call, "end", None) is None:
                return
            current.call = call.outer
            continue
        if not call.finished:
            model = call.owner.model
            opened = call.opened_pass
            if opened.hooked:
                if model is not None and invocations(model, sys._getframe(1)) > (1 if model is root else 0):
                    return
            elif opened.registered is not None:
                return
        call.finish(None, INTERRUPTED, perf_counter_ns())
        if current.call is call:
            current.call = call.outer


def start_forward(
    owner: Owner,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    opened: OpenPass,
    *,
    compiled: bool = False,
    method: str | None = None,
) -> ForwardCall | None:
    """Open the request of a plain forward pass, or ``None`` where telemetry stays out.

    Args:
        owner: the instrumentation of the model.
        args: positional arguments of the pass.
        kwargs: its keyword arguments.
        opened: its entry for the owner's registry.
        compiled: whether Dynamo evaluates its frames.
        method: name of the method that is called instead of ``forward``.
    """
    compiling.listen()
    if is_transforming() or _PACKED <= kwargs.keys() or (not owner.settings.training and is_training(owner.model)):
        return None

    def made(scope: RequestScope, **options: Any) -> ForwardCall:
        is_forward = method is None
        pass_input = look_at_input(owner, args, kwargs, recording=scope.recording, counting=wants_embedding, is_forward=is_forward)
        given = Given()
        if scope.recording and (owner.engine.has_stages or not owner.text_only):
            with contain("modalities of the input"):
                given = given_of(owner.model, args if is_forward else (), kwargs)
        budget = Budget(owner.settings.span_budget, steps=False)
        call = ForwardCall(owner, pass_input.described, opened, compiled=compiled, scope=scope, budget=budget, **options)
        _, call.rows, call.input_tokens, call.masks = pass_input
        call.given = given
        return call

    wanted = owner.settings.operation
    wants_embedding = method is None and (wanted == semconv.OPERATION_EMBEDDINGS or (wanted is None and embeds(owner.model)))
    operation = semconv.OPERATION_EMBEDDINGS if wants_embedding else None
    facts = {} if method is None else {semconv.METHOD: method}
    return open_forward(owner, opened, made, adapters=call_adapters(kwargs), operation=operation, facts=facts)


@hidden
def open_forward(
    owner: Owner,
    opened: OpenPass,
    make: Callable[..., ForwardCall],
    *,
    adapters: tuple[str, ...] | None = None, operation: str | None = None, facts: Mapping[str, AttributeValue] | None = None,
) -> ForwardCall | None:  # fmt: skip
    """Open a request and make it the innermost one of the thread.

    Args:
        owner: the instrumentation of the model.
        opened: its entry for the owner's registry.
        make: makes the call, as for ``recording.open_call``.
        adapters: that its caller names.
        operation: in the conventions; without one it is no operation of theirs.
        facts: attributes of the request span from its start on.

    Returns:
        The call, ``None`` where telemetry stays out.
    """
    # First of all: from now on uninstrument() leaves the hook that ends the pass.
    if not owner.open_pass(opened):
        return None
    try:
        info, ready = owner.info_with(adapters), partial(_begin, embeds=operation is not None)
        opened.call = call = open_call("forward", owner, make, operation=operation, info=info, facts=facts, ready=ready)
    except BaseException:
        opened.close()
        raise
    if call is None:
        opened.close()
    return call


def _begin(call: ForwardCall, *, embeds: bool) -> None:
    if embeds:
        call.counts = "embedded"
    call.opened_pass.call = call
    call.push()
    if call.window_claim is not None:
        with contain("profiler window"):
            call.window_claim.begin()
        if call.clock is not None:
            call.clock.begin()
    call.overhead = perf_counter_ns() - call.start
