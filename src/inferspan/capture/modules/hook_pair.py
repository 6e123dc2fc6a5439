"""The pair of forward hooks that records a module where an ``ObservedCall`` cannot; each call appends one row.

Hooks write to the log of the request that runs on their thread and do nothing without one. They return ``None``, take any arguments (torch
calls a hook removed after its snapshot without kwargs), carry no state of a call, and turn into functions that do nothing when the model is
copied or pickled.
"""

from __future__ import annotations

from contextlib import nullcontext
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.compile.state import leave_alone
from inferspan.guard import report
from inferspan.records import ModuleInfo

from .recorder import CallLog, current
from .shapes import describe

__all__ = ["CopiedAway", "EnterHook", "ExitHook"]

_tracing: Any = torch._C._get_tracing_state
"""Whether TorchScript traces the program; it would record reading a shape in its graph."""


_NOTHING = getattr, (nullcontext(), "__exit__")
"""Makes a function that takes any arguments and returns ``None``, in the place of a hook of ours in a copy or from a pickle. This package
is not needed where that is loaded, nor where a pickle of a copy is.
"""


class CopiedAway:
    """Base of hooks: a copy of the model must not write into the original's requests."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        make, given = _NOTHING
        return make(*given)

    def __reduce__(self) -> Any:
        return _NOTHING


class EnterHook(CopiedAway):
    """Pre-hook of a submodule. Written for few instructions: between two large matrix products each of them is a cache miss."""

    __slots__ = ("_engine", "_last", "info", "stage")

    def __init__(self, info: ModuleInfo, engine: object) -> None:
        self.info = info
        self.stage = info.stage is not None
        self._engine = engine
        self._last: Any = None

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), kwargs: Any = None, *rest: Any) -> None:
        """Begin a row, unless nothing is recorded on this thread."""
        if is_dynamo_compiling() or _tracing():
            return
        call: CallLog | None = current.call
        if call is None or call.engine is not self._engine:
            return
        if (call.stages_left if self.stage else call.calls_left) <= 0:
            if self.stage:
                call.stages_left -= 1
            else:
                call.missed += 1
            return
        try:
            if kwargs:
                inputs = describe((*args[:8], *kwargs.values()))
            elif len(args) == 1 and type(args[0]) is Tensor and not args[0].is_nested:
                inputs = self._last
                if not inputs or inputs[0][0] != args[0].shape or inputs[0][1] is not args[0].dtype:
                    inputs = self._last = describe(args)
            else:
                inputs = describe(args)
            number = call.enter(self.info, inputs, perf_counter_ns())
            if call.clock is not None:
                call.clock.enter(number, args[0] if args else next(iter(kwargs.values()), None) if kwargs else None)
        except Exception as error:
            report("module hook", error)


class ExitHook(CopiedAway):
    """Forward hook of a submodule; see ``EnterHook``."""

    __slots__ = ("_engine", "_last", "info")

    def __init__(self, info: ModuleInfo, engine: object) -> None:
        self.info = info
        self._engine = engine
        self._last: Any = None

    @leave_alone
    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """End the row of the call."""
        if is_dynamo_compiling() or _tracing():
            return
        call: CallLog | None = current.call
        if call is None or call.engine is not self._engine or not call.open_calls:
            return
        try:
            now = perf_counter_ns()
            output = rest[-1]
            number = call.reach(self.info, now)
            if number < 0:
                return
            if call.clock is not None:
                call.clock.leave(number, output)
            if type(output) is Tensor and not output.is_nested:
                outputs = self._last
                if not outputs or outputs[0][0] != output.shape or outputs[0][1] is not output.dtype:
                    outputs = self._last = describe(output)
            else:
                outputs = describe(output)
            collector = call.output_stats
            statistics = collector.append(output, self.info) if collector is not None else None
            call.leave(now, outputs, None, statistics)
        except Exception as error:
            report("module hook", error)
