"""Recording of module calls: each running request owns a call log; observers append one row per module call.

In: calls of observed modules. Out: the ``ModuleCalls`` of a pass, in the order in which they ended. The C extension has classes of the same
names; ``recorder`` decides which of the two are used.
"""

from __future__ import annotations

import sys
import threading
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as torch_calls

from inferspan.capture.compile.state import leave_frame
from inferspan.capture.failures import error_type
from inferspan.guard import contain, report
from inferspan.records import ModuleCalls, ModuleInfo

from .shapes import Described, describe, describe_like

if TYPE_CHECKING:
    from inferspan.capture.device.clock import CallClock

    from .output_stats import OutputStats

__all__ = ["CallLog", "ModuleCaller", "current"]

_references: Any = getattr(sys, "getrefcount", lambda _: 0)
_torch = vars(torch_calls)
_CALL_IMPL = nn.Module._call_impl
_tracing: Any = torch._C._get_tracing_state


class _Thread(threading.local):
    call: Any = None


current = _Thread()
"""``current.call`` is the innermost request that runs on this thread."""


class CallLog:
    """The log of one request.

    Attributes:
        calls_left: module calls that the pass may still record; further ones are only counted.
        stages_left: the same for calls of stages; below 0 it counts those that were left out.
        missed: calls that were only counted, stages not among them.
        count: the number of the next call.
        engine: the observers whose modules write to this log; modules of another model, inside of this one, do not.
        clock: measures the boundaries of recorded calls; ``None`` if device times are not measured.
        output_stats: collects statistics of the outputs; ``None`` if none are wanted.
        keeper: keeps outputs that are looked at, in C only.
    """

    calls_left: int
    stages_left: int
    missed: int
    count: int
    engine: object
    clock: CallClock | None
    output_stats: OutputStats | None
    keeper: Any

    def __init__(self) -> None:
        self.calls_left = self.stages_left = self.missed = self.count = 0
        self.engine = None
        self.clock = None
        self.output_stats = None
        self.keeper = None
        self.opened: list[tuple[int, ModuleInfo, int, Described]] = []
        self.done = ModuleCalls()

    @property
    def open_calls(self) -> int:
        """Calls that have not ended yet."""
        return len(self.opened)

    @property
    def recorded(self) -> int:
        """Calls of the pass that have ended."""
        return len(self.done)

    def enter(self, info: ModuleInfo, inputs: Described, now: int) -> int:
        """Begin a call inside of the innermost one; its number."""
        if getattr(info, "stage", None) is None:
            self.calls_left -= 1
        else:
            self.stages_left -= 1
        number = self.count
        self.count = number + 1
        self.opened.append((number, info, now, inputs))
        return number

    def reach(self, info: ModuleInfo, now: int, failure: str = "_OTHER") -> int:
        """End the calls that an exception left open above the innermost call of ``info``.

        Returns:
            Its number, -1 if there is none and nothing was ended.
        """
        if not self.opened or (self.opened[-1][1] is not info and not any(frame[1] is info for frame in self.opened)):
            return -1
        while self.opened[-1][1] is not info:
            self.leave(now, failure=failure)
        return self.opened[-1][0]

    def leave(self, now: int, outputs: Described = (), failure: str | None = None, statistics: int | None = None) -> None:
        """End the innermost call.

        Raises:
            IndexError: there is none.
        """
        number, info, start, inputs = self.opened.pop()
        parent = self.opened[-1][0] if self.opened else -1
        self.done.add((number, parent, info, start, now, inputs, outputs, failure, statistics))

    def forget_inside(self, frame: Any) -> None:
        """Forget calls inside an open one: the observers have been taken off in the middle of it, and nobody has seen how they ended."""
        if any(one is frame for one in self.opened):
            while self.opened[-1] is not frame:
                self.opened.pop()

    def begun_before(self, moment: int) -> bool:
        """Whether some call that has ended began earlier."""
        return self.done.begun_before(moment)

    def cut(self) -> ModuleCalls:
        """The calls that have ended so far, which the log forgets."""
        done, self.done = self.done, ModuleCalls()
        return done

    def discard(self) -> None:
        """Forget every call, open or ended."""
        self.done = ModuleCalls()
        self.opened.clear()


class _Holder:
    """Has a dictionary, and is called, as ``ModuleCaller`` is."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> tuple[int, int]:
        own = self.__dict__
        return int(_references(self)), int(_references(own))


def _expected_references() -> tuple[int, int, int]:
    """Reference counts of a caller and of its module's dictionary inside ``ModuleCaller.__call__``, as the running Python counts them.

    The caller is referred to by the module's dictionary, ``ModuleObservers``, the calling frame, the variable and the argument, and with
    named arguments by a copy of all arguments; the dictionary by the module, the variable and the argument. These are the bounds, because a
    tracer that looks at the variables here holds one more reference until this returns.
    """
    owner = _Holder()
    own = {"called": owner}
    caller, dictionary = own["called"](*(), **{})
    named, _ = own["called"](*(), **{"named": None})
    return min(caller, 5), min(named, 6), min(dictionary, 3)


_CALLER_REFERENCES, _NAMED_REFERENCES, _DICTIONARY_REFERENCES = _expected_references()


class ModuleCaller:
    """Base of ``ObservedCall``. Torch calls it instead of ``_call_impl`` of its module.

    Args:
        module: whose calls these are.
        info: static facts of the module.
        engine: whose calls record.

    Attributes:
        attached: whether this occupies the module's slot.
        records: whether calls are recorded; always here, as the next two are not used.
        watch: in C, called with module, arguments and output where the output is looked at.
        number: of the module among those whose outputs are kept.
    """

    __slots__ = ("attached", "engine", "given", "info", "inner", "module", "number", "records", "stage", "taken", "watch")

    def __init__(self, module: nn.Module, info: ModuleInfo, engine: object) -> None:
        self.module, self.info, self.engine = module, info, engine
        self.attached = False
        self.records, self.watch, self.number = True, cast("Any", None), -1
        self.inner = bool(module._modules)
        self.stage = getattr(info, "stage", None) is not None
        self.taken: Described = ()
        self.given: Described = ()

    def release_module(self) -> bool:
        """Let go of the module, to take one again later; false if that is not possible, as here, where calls are not counted."""
        return False

    def take_module(self, module: nn.Module) -> None:
        """Observe a module, after ``release_module``: the one of before, as its inputs and outputs are known.

        Raises:
            TypeError: it has a module.
        """
        raise TypeError("only a caller that has released its module takes one")

    def _instead(self) -> Any:
        """The function to call instead, if the calling module has the dictionary of the observed one, or a copy of it."""
        raise NotImplementedError

    @leave_frame
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the module. Written for few instructions: between two large matrix products each of them is a cache miss."""
        module: Any = self.module
        own = module.__dict__
        # Another module may have this caller in a copy of the dictionary, or share the dictionary.
        expected = _NAMED_REFERENCES if kwargs else _CALLER_REFERENCES
        if not self.attached or _references(self) != expected or _references(own) != _DICTIONARY_REFERENCES:
            instead = self._instead()
            if instead is not None:
                return instead(*args, **kwargs)
        if _tracing():
            # TorchScript would record reading a shape in its graph.
            return module._call_impl(*args, **kwargs)
        # As in _call_impl, which handles every other case.
        if (
            own.get("_backward_hooks", True)
            or own.get("_backward_pre_hooks", True)
            or own.get("_forward_hooks", True)
            or own.get("_forward_pre_hooks", True)
            or _torch["_global_backward_pre_hooks"]
            or _torch["_global_backward_hooks"]
            or _torch["_global_forward_hooks"]
            or _torch["_global_forward_pre_hooks"]
            or type(module)._call_impl is not _CALL_IMPL
            or "_call_impl" in own
        ):
            forward = module._call_impl
        else:
            forward = module.forward
        call: CallLog | None = current.call
        if is_dynamo_compiling() or call is None or call.engine is not self.engine:
            return forward(*args, **kwargs)
        if (call.stages_left if self.stage else call.calls_left) <= 0:
            if self.stage:
                call.stages_left -= 1
            else:
                call.missed += 1
            return forward(*args, **kwargs)
        frame = None
        try:
            inputs = self.taken
            if kwargs:
                inputs = self.taken = describe_like(inputs, (*args[:8], *kwargs.values()))
            elif len(args) != 1 or type(args[0]) is not Tensor:
                inputs = self.taken = describe_like(inputs, args)
            else:
                try:
                    if not inputs or inputs[0][0] != args[0].shape or inputs[0][1] is not args[0].dtype or len(inputs) != 1:
                        inputs = self.taken = describe(args)
                except RuntimeError:
                    # A nested tensor has no shape. Asking first would cost more than an exception that is not raised.
                    inputs = ()
            # Written out, as is ``leave`` below: a call more would be a tenth of it all.
            if self.stage:
                call.stages_left -= 1
            else:
                call.calls_left -= 1
            number = call.count
            call.count = number + 1
            opened = call.opened
            frame = (number, self.info, perf_counter_ns(), inputs)
            opened.append(frame)
            clock = call.clock
            if clock is not None:
                taken = args[0] if args else next(iter(kwargs.values()), None)
                clock.enter(number, taken, frame[2], inner=self.inner)
        except Exception as error:
            report("module call", error)
            if frame is None:
                return forward(*args, **kwargs)
        try:
            output = forward(*args, **kwargs)
        except BaseException as error:
            self._failed(call, frame, error)
            raise
        try:
            now = perf_counter_ns()
            if not self.attached:
                call.forget_inside(frame)
            if not opened or (opened[-1] is not frame and call.reach(self.info, now) < 0):
                return output
            frame = opened.pop()
            number, _, _, inputs = frame
            if clock is not None:
                clock.leave(number, output, now, inner=self.inner)
            outputs = self.given
            if type(output) is tuple:
                outputs = self.given = describe_like(outputs, output)
            elif type(output) is not Tensor:
                outputs = describe(output)
            else:
                try:
                    if not outputs or outputs[0][0] != output.shape or outputs[0][1] is not output.dtype or len(outputs) != 1:
                        outputs = self.given = describe(output)
                except RuntimeError:
                    outputs = ()
            collector = call.output_stats
            statistics = collector.append(output, self.info) if collector is not None else None
            call.done.add((number, opened[-1][0] if opened else -1, self.info, frame[2], now, inputs, outputs, None, statistics))
        except Exception as error:
            report("module call", error)
        return output

    def _failed(self, call: CallLog, frame: Any, error: BaseException) -> None:
        """Record a call that an exception ends."""
        with contain("module call"):
            now = perf_counter_ns()
            if call.opened and (call.opened[-1] is frame or call.reach(self.info, now) >= 0):
                call.leave(now, failure=error_type(error))
