"""How module calls are recorded: the request that runs on a thread is a tape, and what stands for a module's ``forward`` writes on it.

In: calls of observed modules. Out: one flat sequence a pass, in the layout of ``ModuleCall``, in the order in which they ended. This is the
twin, in Python, of ``_recorder.c``; ``recorder`` decides which of the two is used.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from ..guard import contain, report
from ..records import ModuleCall, ModuleInfo
from .compilation import leave_frame
from .failures import error_type
from .shapes import Described, describe, describe_like

if TYPE_CHECKING:
    from .call import Call
    from .device_clock import CallClock
    from .output_stats import OutputStats

__all__ = ["Forward", "Hot", "Tape", "current"]

_FIELDS = len(ModuleCall._fields)
_START = ModuleCall._fields.index("start")
_references: Any = getattr(sys, "getrefcount", lambda _: 0)


class _Thread(threading.local):
    call: Call | None = None


current = _Thread()
"""``current.call`` is the innermost request that runs on this thread."""


class Tape:
    """The tape of one request.

    Attributes:
        room: module calls that the pass may still have; without any they are only counted.
        missed: those that were only counted.
        count: the number of the next one.
        engine: whose modules write on it; those of another model, inside of this one, do not.
        clock: is told the boundaries of recorded calls; ``None`` where device times are not measured.
        output_stats: is given what they return; ``None`` where no statistics of it are wanted.
    """

    room: int
    missed: int
    count: int
    engine: object
    clock: CallClock | None
    output_stats: OutputStats | None

    def __init__(self) -> None:
        self.room = self.missed = self.count = 0
        self.engine = None
        self.clock = None
        self.output_stats = None
        self.opened: list[tuple[int, ModuleInfo, int, Described]] = []
        self.done: list[Any] = []

    @property
    def open_calls(self) -> int:
        """Calls that have not ended yet."""
        return len(self.opened)

    @property
    def recorded(self) -> int:
        """Calls of the pass that have ended."""
        return len(self.done) // _FIELDS

    def enter(self, info: ModuleInfo, inputs: Described, now: int) -> int:
        """Begin a call inside of the innermost one; its number."""
        self.room -= 1
        number = self.count
        self.count = number + 1
        self.opened.append((number, info, now, inputs))
        return number

    def reach(self, info: ModuleInfo, now: int, failure: str = "_OTHER") -> int:
        """End what an exception has left open above the innermost call of ``info``.

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
        self.done.extend((number, parent, info, start, now, inputs, outputs, failure, statistics))

    def begun_before(self, moment: int) -> bool:
        """Whether some call that has ended began earlier."""
        return bool(self.done) and min(self.done[_START::_FIELDS]) < moment

    def cut(self) -> Sequence[Any]:
        """What has ended so far; the tape begins anew."""
        done, self.done = self.done, []
        return done

    def discard(self) -> None:
        """Forget every call, open or ended."""
        self.done = []
        self.opened.clear()

    def adopt(self, other: Tape) -> None:
        """Become a copy of another tape, on which another thread may go on writing."""
        self.room, self.missed, self.count = other.room, other.missed, other.count
        self.engine, self.clock, self.output_stats = other.engine, other.clock, other.output_stats
        # In this order no call can be in both: one that ends in between is in neither, and its children move up.
        self.done, self.opened = [*other.done], [*other.opened]


class Hot:
    """All that an observed call reads, in two cache lines, and in a class whose attributes Python finds without searching.

    It stands beside ``forward`` in the module's dictionary as well, so that a copy of the dictionary shows in its reference count.
    """

    __slots__ = ("__weakref__", "engine", "forward", "found", "given", "info", "inner", "module", "taken")

    forward: Any
    """What the module had before."""
    found: Any
    """``forward`` of the module's class when it was last looked at."""

    def __init__(self, module: nn.Module, info: ModuleInfo, engine: object) -> None:
        self.module: Any = module
        self.info, self.engine = info, engine
        self.forward, self.found = module.forward, type(module).forward
        self.inner = bool(module._modules)
        self.taken: Described = ()
        self.given: Described = ()

    def __reduce__(self) -> Any:
        # What is copied along with a module holds nothing of ours.
        return object, ()


def _expected_references() -> int:
    """How often one is referred to while it is looked at in ``__call__``, as the running Python counts: by its two places and there.

    Never more than by those, the variable and the argument: a tracer that looks at the variables here holds another until this returns.
    """
    places = [Hot.__new__(Hot)]
    places += places
    hot = places[0]
    return min(int(_references(hot)), len(places) + 2)


_REFERENCES = _expected_references()


class Forward:
    """What ``ObservedForward`` inherits its call from."""

    __slots__ = ("_hot",)
    _hot: Hot

    def _follow(self) -> None:
        """The module has another class, or its class another ``forward``, than when this was last looked at."""
        raise NotImplementedError

    def _of_copy(self) -> Any:
        """What to call instead, if this is called for a module that has got a copy of the dictionary of the observed one."""
        raise NotImplementedError

    @leave_frame
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass. Written for few instructions: between two large matrix products each of them is a cache miss."""
        # Once: a class with __getattr__ has every attribute searched for.
        hot = self._hot
        if is_dynamo_compiling():
            return hot.forward(*args, **kwargs)
        if type(hot.module).forward is not hot.found:
            self._follow()
        if _references(hot) != _REFERENCES:
            forward = self._of_copy()
            if forward is not None:
                return forward(*args, **kwargs)
        call = current.call
        if call is None or call.engine is not hot.engine:
            return hot.forward(*args, **kwargs)
        if call.room <= 0:
            call.missed += 1
            return hot.forward(*args, **kwargs)
        try:
            inputs = hot.taken
            if kwargs:
                inputs = hot.taken = describe_like(inputs, (*args[:8], *kwargs.values()))
            elif len(args) != 1 or type(args[0]) is not Tensor:
                inputs = hot.taken = describe_like(inputs, args)
            else:
                try:
                    if not inputs or inputs[0][0] != args[0].shape or inputs[0][1] is not args[0].dtype or len(inputs) != 1:
                        inputs = hot.taken = describe(args)
                except RuntimeError:
                    # A nested tensor has no shape. Asking first would cost more than an exception that is not raised.
                    inputs = ()
            # Written out, as is ``leave`` below: a call more would be a tenth of it all.
            call.room -= 1
            number = call.count
            call.count = number + 1
            opened = call.opened
            frame = (number, hot.info, perf_counter_ns(), inputs)
            opened.append(frame)
            clock = call.clock
            if clock is not None:
                taken = args[0] if args else next(iter(kwargs.values()), None)
                clock.enter(number, taken, frame[2], inner=hot.inner)
        except Exception as error:
            report("module call", error)
            return hot.forward(*args, **kwargs)
        try:
            output = hot.forward(*args, **kwargs)
        except BaseException as error:
            self._failed(call, frame, error)
            raise
        try:
            now = perf_counter_ns()
            if not opened or (opened[-1] is not frame and call.reach(hot.info, now) < 0):
                return output
            opened.pop()
            if clock is not None:
                clock.leave(number, output, now, inner=hot.inner)
            outputs = hot.given
            if type(output) is tuple:
                outputs = hot.given = describe_like(outputs, output)
            elif type(output) is not Tensor:
                outputs = describe(output)
            else:
                try:
                    if not outputs or outputs[0][0] != output.shape or outputs[0][1] is not output.dtype or len(outputs) != 1:
                        outputs = hot.given = describe(output)
                except RuntimeError:
                    outputs = ()
            collector = call.output_stats
            statistics = collector.append(output) if collector is not None else None
            call.done.extend((number, opened[-1][0] if opened else -1, hot.info, frame[2], now, inputs, outputs, None, statistics))
        except Exception as error:
            report("module call", error)
        return output

    def _failed(self, call: Call, frame: Any, error: BaseException) -> None:
        """Record a call through which an exception passes."""
        with contain("module call"):
            now = perf_counter_ns()
            if call.opened and (call.opened[-1] is frame or call.reach(self._hot.info, now) >= 0):
                call.leave(now, failure=error_type(error))
