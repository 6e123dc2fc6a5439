"""Plain forward passes: one request for each outermost call of the instrumented model that is not part of a ``generate()``.

A pre-hook and an ``always_call`` hook on the root open and close the request; torch calls the latter for ``Exception`` only, so a call
that Ctrl-C left open is closed by the thread's next one or by ``uninstrument()``. A model compiled with ``model.compile()`` never
runs root hooks; its compiled call is wrapped from outside instead. The span of a forward is not made current: hooks cannot do that safely.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from inferspan import semconv
from inferspan.attribute_values import shape_attributes
from inferspan.capture.compile.state import compiled_graphs, is_compiling, leave_frame, set_eval_frame
from inferspan.capture.compile.transforms import is_transforming
from inferspan.capture.compile.watch import compiling
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.logits.statistics import attributes as logit_attributes
from inferspan.capture.logits.statistics import whole_logits
from inferspan.capture.modules.hooks import CopiedAway
from inferspan.capture.modules.shapes import Described, describe
from inferspan.guard import contain, report
from inferspan.records import AttributeValue, Failure, ModuleInfo, RequestEnd, RequestStart

from .budget import Budget
from .call import Call, current
from .failures import error_type, failure_of
from .owner import Owner

if TYPE_CHECKING:
    from inferspan.capture.device.clock import CallClock

    from .target import Target

__all__ = ["CompiledCall", "ForwardCall", "RootEnter", "RootExit", "close_stale"]

_PACKED = frozenset({"cu_seq_lens_q", "read_index"})
"""Arguments by which transformers' continuous batching packs the requests of several callers into one row: nobody's own request."""
INTERRUPTED = Failure("_OTHER", "the forward pass was interrupted", "")


class ForwardCall(Call):
    """One plain forward pass of an instrumented model."""

    def __init__(self, target: Owner, inputs: Described, *, compiled: bool = False, by_hooks: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.compiled = compiled
        self.by_hooks = by_hooks
        """Whether only hooks on the root tell its end, which an interrupt skips."""
        self.target = target
        self.engine = target.engine
        self.inputs = inputs
        self.depth = 0
        self._once = threading.Lock()
        self.thread = threading.get_ident()
        self.warmup = target.first_call
        self.graphs = compiled_graphs()
        self.modules = False
        self.input_tokens: int | None = None
        if self.recording:
            try:
                self._open(target)
            except BaseException:
                # An interrupt: nothing else would take the modules' observers off again.
                if self.modules:
                    target.engine.release()
                raise

    def _open(self, target: Owner) -> None:
        """Attach and begin what detail needs."""
        self.output_stats = target.new_output_stats()
        engine = target.engine
        engine.prepare()
        expected = 0 if self.compiled else engine.expected
        if expected and self.budget.module_room(expected, whole=False):
            self.open_modules(expected, whole=False)
            engine.acquire()
            self.modules = True
        else:
            self.budget.leave_out(expected)
        self.clock = target.new_device_clock()
        if self.clock is not None:
            self.clock.begin()
        if target.windows.active:
            self.part = target.windows.claim(first_call=self.warmup)

    def enter_again(self, info: ModuleInfo, arguments: tuple[Any, ...]) -> None:
        """The model calls itself: one more module call inside this request."""
        self.depth += 1
        if self.room <= 0:
            self.missed += 1
        else:
            number = self.enter(info, describe(arguments[0]), perf_counter_ns())
            if self.clock is not None:
                self.clock.enter(number)

    def leave_again(self, info: ModuleInfo, output: Any, now: int, failure: str | None) -> None:
        """The inner call of the model by itself has ended."""
        self.depth -= 1
        number = self.reach(info, now)
        if number >= 0:
            if self.clock is not None:
                self.clock.leave(number)
            self.leave(now, describe(output), failure)

    def finish(self, output: Any, failure: Failure | None, now: int) -> None:
        """End the request; ``output`` is what the model returned. Once only: a second call does nothing."""
        seen, end = self, RequestEnd(self.epoch(now), failure, {})
        # Claimed first: uninstrument() on another thread may end this call in the very moment that it ends itself.
        if not self._once.acquire(blocking=False):
            self.pop(now)
            self._release_part()
            return
        # An interrupt that arrives in here must not leave the span open or hooks attached.
        try:
            if threading.get_ident() != self.thread:
                seen = self._so_far()
                # What was seen so far must not stick out of the request.
                now = perf_counter_ns()
                end = RequestEnd(self.epoch(now), failure, {})
            if seen.clock is not None:
                seen.clock.end()
            if seen.part is not None:
                with contain("profiler window"):
                    seen.part.end(now)
            self.pop(now)
            with contain("end of a forward pass"):
                seen.close_modules(None, semconv.PHASE_FORWARD, now, failure.type if failure else None)
            with contain("end of a forward pass"):
                end = seen._describe_end(output, failure, now)
            if seen.clock is not None:
                with contain("device clock"):
                    end = seen._with_device_time(seen.clock, end)
            with contain("hand-over of a forward pass"):
                seen.hand_over()
        finally:
            try:
                if self.modules:
                    with contain("end of a forward pass"):
                        self.target.engine.release()
                self.output_stats = None
                if seen.clock is not None:
                    with contain("device clock"):
                        seen.clock.close()
                self._release_part()
                self.target.closed(self)
            finally:
                self.scope.end(end)

    def _so_far(self) -> ForwardCall:
        """A copy for a thread that ends this call from outside, while hooks on the call's own thread still write into the original."""
        seen = type(self).__new__(type(self))
        seen.__dict__.update(self.__dict__)
        self.room = 0
        seen.adopt(self)
        seen.pending, seen.output_stats, seen.clock, seen.part = [], None, None, None
        return seen

    def _release_part(self) -> None:
        """Let go of the profiler window, on the call's own thread: only there can it be closed."""
        if self.part is not None and threading.get_ident() == self.thread:
            with contain("profiler window"):
                self.part.release()

    @property
    def finished(self) -> bool:
        """Whether the request has been ended."""
        return self._once.locked()

    def abandon(self, now: int) -> None:
        """The call around this one ends, so an interrupt has passed through both."""
        self.finish(None, INTERRUPTED, now)

    def _with_device_time(self, clock: CallClock, end: RequestEnd) -> RequestEnd:
        """Put the device's time on the request, if the device is done: nothing waits for it."""
        clock.read(leave=0)
        if self.measured is None or self.measured.seconds is None:
            return end
        return replace(end, attributes={**end.attributes, semconv.DEVICE_TIME: self.measured.seconds})

    def _describe_end(self, output: Any, failure: Failure | None, now: int) -> RequestEnd:
        attributes: dict[str, AttributeValue] = {}
        outputs = describe(output)
        nonfinite: dict[tuple[str, str], int] = {}
        if self.recording:
            attributes |= shape_attributes(self.inputs, semconv.INPUT_SHAPES, semconv.INPUT_DTYPES)
            attributes |= shape_attributes(outputs, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES)
            if self.part is not None and self.part.steps:
                attributes |= {semconv.PROFILER_STEPS: self.part.steps, **self.part.attributes}
            if self.warmup or compiled_graphs() > self.graphs:
                attributes[semconv.WARMUP] = True
            if self.compiled:
                attributes[semconv.MODEL_COMPILE_MODE] = "default"
            reason = "modules: compiled" if self.compiled and self.target.engine.expected else self.target.unobserved
            unobserved = [reason] if reason else []
            logits = dict.get(output, "logits") if self.target.settings.logits and failure is None and isinstance(output, dict) else None
            if logits is not None:
                with contain("logit statistics"):
                    whole = whole_logits(logits, vocabulary=self.target.sharded_vocabulary())
                    attributes |= _logits(whole)
                    if whole is None:
                        unobserved.append("logits: sharded")
            if unobserved:
                attributes[semconv.UNOBSERVED] = "; ".join(unobserved)
        for kind, key in (("nan", semconv.LOGITS_NAN_COUNT), ("inf", semconv.LOGITS_INF_COUNT)):
            count = attributes.get(key)
            if isinstance(count, int) and count:
                nonfinite["logits", kind] = count
        if nonfinite:
            attributes[semconv.NONFINITE] = True
        rows = next((int(shape[0]) for shape, _ in self.inputs if len(shape) > 1), None)
        if rows is not None:
            attributes[semconv.BATCH_SIZE] = rows
        if self.target.settings.operation == semconv.OPERATION_EMBEDDINGS and outputs and outputs[0][0]:
            attributes[semconv.EMBEDDINGS_DIMENSION] = int(outputs[0][0][-1])
        return RequestEnd(
            end_ns=self.epoch(now),
            failure=failure,
            attributes=attributes,
            input_tokens=self.input_tokens,
            batch_size=rows,
            spans_dropped=self.budget.dropped,
            nonfinite=nonfinite,
            overhead_ns=self.overhead + self.target.hook_cost * self.count + (self.part.closing_ns if self.part is not None else 0),
        )


def _attended(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """Tokens that an embedding model is given, padding left out; ``None`` where only a read from the device would tell."""
    # Sentence encoders take one mapping of what others take as keywords.
    given: Mapping[str, Any] = args[0] if args and isinstance(args[0], Mapping) else kwargs
    ids = given.get("input_ids", args[0] if args else None)
    mask = given.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return int(mask.sum()) if mask.device.type == "cpu" else None
    return int(ids.numel()) if mask is None and isinstance(ids, Tensor) and ids.dim() == 2 and not ids.is_floating_point() else None


def _logits(logits: object) -> dict[str, AttributeValue]:
    """Statistics of the last position's logits, on CPU only: on a device the read would make a plain forward wait for it."""
    if type(logits) is not Tensor or logits.device.type != "cpu" or not logits.is_floating_point() or logits.layout is not torch.strided:
        return {}
    if logits.dim() not in (2, 3) or logits.is_nested or 0 in logits.shape or logits.element_size() < 2:
        return {}
    ring = LogitRing(top_k=0, capacity=1)
    ring.append(logits[:, -1] if logits.dim() == 3 else logits, None)
    steps = ring.read()
    return logit_attributes(steps[0], content=False, decode=None) if steps else {}


def _runs(root: nn.Module, *, within: int) -> bool:
    """Whether more than ``within`` invocations of ``root`` are on this thread's Python stack."""
    implementation = nn.Module._call_impl.__code__
    frame: FrameType | None = sys._getframe(1)
    found = 0
    while frame is not None:
        if frame.f_code is implementation and frame.f_locals.get("self") is root:
            found += 1
            if found > within:
                return True
        frame = frame.f_back
    return False


def close_stale(root: nn.Module | None) -> None:
    """Close forward calls that an interrupt left open on this thread; ``root`` is the model that is being entered."""
    call = current.call
    while isinstance(call, ForwardCall):
        # One that uninstrument() has ended may still run, but nothing belongs to it any more.
        if not call.finished:
            owner = call.target.model
            if not call.by_hooks or (owner is not None and _runs(owner, within=1 if owner is root else 0)):
                return
        call.finish(None, INTERRUPTED, perf_counter_ns())
        call = current.call


def start_forward(
    target: Owner, args: tuple[Any, ...], kwargs: dict[str, Any], *, compiled: bool = False, by_hooks: bool = True
) -> ForwardCall | None:
    """Open the request of a plain forward pass, or ``None`` where telemetry stays out.

    Args:
        target: the instrumentation of the model.
        args: positional arguments of the pass.
        kwargs: its keyword arguments.
        compiled: whether Dynamo evaluates its frames.
        by_hooks: whether only hooks on the root tell its end.
    """
    compiling.listen()
    if is_transforming() or _PACKED <= kwargs.keys():
        return None
    outer = current.call
    start, offset = Call.host_clock(outer)
    operation = semconv.OPERATION_EMBEDDINGS if target.settings.operation == semconv.OPERATION_EMBEDDINGS else None
    scope = target.recorder.start(
        RequestStart("forward", operation, target.info, start + offset, outer is not None, {}), outer.scope if outer is not None else None
    )
    if scope is None:
        return None
    try:
        inputs = describe((*args[:8], *kwargs.values())) if kwargs else describe(args)
        budget = Budget(target.settings.span_budget, steps=False)
        call = ForwardCall(
            target, inputs, compiled=compiled, by_hooks=by_hooks, scope=scope, start=start, offset=offset, budget=budget, outer=outer
        )
    except BaseException:
        # Nothing else would end the request.
        scope.end(RequestEnd(start + offset, None, {}))
        raise
    try:
        if operation is not None:
            with contain("counting input tokens"):
                call.input_tokens = _attended(args, kwargs)
        call.push()
        target.opened(call)
        if call.part is not None:
            with contain("profiler window"):
                call.part.begin(by_hooks=by_hooks)
            if call.clock is not None:
                call.clock.begin()
        call.overhead = perf_counter_ns() - start
    except BaseException:
        call.finish(None, INTERRUPTED, perf_counter_ns())
        raise
    if not target.is_open:
        # uninstrument() on another thread came in between: it has not ended this call, and took off what would.
        call.finish(None, INTERRUPTED, perf_counter_ns())
        return None
    return call


class RootEnter(CopiedAway):
    """Forward pre-hook of the root."""

    __slots__ = ("target",)

    def __init__(self, target: Target) -> None:
        self.target = target

    @leave_frame
    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        """Called by torch around the root's forward pass."""
        if is_dynamo_compiling():
            return
        call = current.call
        if call is not None and call.root_id == id(module) and self.target.is_open:
            return
        evaluator = set_eval_frame(None)
        try:
            self._enter(module, arguments, compiled=evaluator is not None)
        finally:
            set_eval_frame(evaluator)

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], *, compiled: bool) -> None:
        target = self.target
        try:
            if not target.is_open:
                target.detach()
                return
            call = current.call
            if target.model is not module or (call is not None and call.follows(module)):
                return
            if call is not None:
                close_stale(module)
                call = current.call
                if call is not None and call.follows(module):
                    return
                if isinstance(call, ForwardCall) and call.target is target:
                    call.enter_again(target.root_info, arguments)
                    return
            start_forward(target, arguments[0], arguments[1] if len(arguments) > 1 else {}, compiled=compiled)
        except Exception as error:
            report("start of a forward pass", error)


class RootExit(CopiedAway):
    """Forward hook of the root, called after an ``Exception`` as well."""

    __slots__ = ("target",)

    def __init__(self, target: Target) -> None:
        self.target = target

    @leave_frame
    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        """Called by torch around the root's forward pass."""
        if is_dynamo_compiling():
            return
        call = current.call
        if call is not None and call.root_id == id(module):
            return
        evaluator = set_eval_frame(None)
        try:
            self._leave(module, arguments)
        finally:
            set_eval_frame(evaluator)

    def _leave(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        target = self.target
        try:
            call = current.call
            if target.model is not module or (call is not None and call.follows(module)):
                return
            while call is not None and not (isinstance(call, ForwardCall) and call.target is target):
                call = call.outer
            if not isinstance(call, ForwardCall):
                return
            now = perf_counter_ns()
            output = arguments[-1]
            # After an exception torch calls this hook inside its except block; with an output if it was a hook that raised.
            error = sys.exc_info()[1]
            failed = error is not None and _passes_through(error)
            if call.depth:
                call.leave_again(target.root_info, output, now, error_type(error) if failed and error else None)
                return
            content = target.settings.content_on_spans
            call.finish(output, failure_of(error, content=content) if failed and error is not None else None, now)
            if not target.is_open:
                # uninstrument() on another thread has left the hooks for this call, which had a profiler to close.
                target.detach()
        except Exception as error:
            report("end of a forward pass", error)


def _passes_through(error: BaseException) -> bool:
    """Whether ``error`` came out of the running ``_call_impl``: a caller's own except block around the model also has one."""
    implementation = nn.Module._call_impl.__code__
    frame = sys._getframe(3)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame is frame and frame.f_code is implementation:
            return True
        trace = trace.tb_next
    return False


class CompiledCall:
    """Wraps ``_compiled_call_impl`` of a model that was compiled with ``model.compile()``."""

    def __init__(self, target: Target, original: Any) -> None:
        self._target = weakref.ref(target)
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the original, seen from outside."""
        target = self._target()
        if target is None or is_compiling():
            return self.original(*args, **kwargs)
        call: ForwardCall | None = None
        with contain("start of a forward pass"):
            outer = current.call
            model = target.model
            if model is not None and not (outer is not None and outer.follows(model)):
                close_stale(None)
                call = start_forward(target, args, kwargs, by_hooks=False)
        if call is None:
            return self.original(*args, **kwargs)
        try:
            result = self.original(*args, **kwargs)
        except BaseException as error:
            with contain("end of a forward pass"):
                call.finish(None, failure_of(error, content=target.settings.content_on_spans), perf_counter_ns())
            raise
        with contain("end of a forward pass"):
            call.finish(result, None, perf_counter_ns())
        return result
