"""Hooks of modules that put hooks on the nodes of the autograd graph, during recorded requests and while a checkpoint is recomputed.

They return ``None``, as the hooks of nodes do: no tensor, gradient or graph is changed. Torch's own ``register_full_backward_hook`` puts
nodes around a module, whose outputs may not be changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.compile.state import leave_alone
from inferspan.capture.modules.hook_pair import CopiedAway
from inferspan.capture.modules.recorder import current
from inferspan.guard import report
from inferspan.records import ModuleInfo

from .backward import BackwardPass, ForwardPass, WatchedCall, in_backward, latest_on_this_thread, watch
from .graph import Edge, edges_of, next_number, region_of

__all__ = ["AfterForward", "BeforeForward", "GradientLog", "hooks_of"]

_tracing: Any = torch._C._get_tracing_state


class _Frame(NamedTuple):
    """A call of a module that has begun."""

    info: ModuleInfo
    call: WatchedCall
    inputs: list[Edge]
    number: int


class GradientLog:
    """The calls of one forward pass, or of what is recomputed in a backward pass.

    Args:
        forward: the forward pass.
        home: the backward pass, if it is recomputed.
    """

    def __init__(self, forward: ForwardPass, home: BackwardPass | None = None) -> None:
        self.forward = forward
        self._home = home
        self._stack: list[_Frame] = [] if home is None else home.stack

    def enter(self, info: ModuleInfo, given: Any) -> None:
        """A module is about to run."""
        order = self.forward.state.order
        order.setdefault(info.name, len(order))
        parent = self._stack[-1].call if self._stack else None
        graph = torch.is_grad_enabled()
        inputs = edges_of(given, leaves=True) if graph else []
        call = WatchedCall(self.forward, info, parent, self._home)
        self._stack.append(_Frame(info, call, inputs, next_number() if graph else -1))

    def leave(self, info: ModuleInfo, output: Any) -> None:
        """It has returned."""
        stack = self._stack
        if not any(frame.info is info for frame in stack):
            return
        while stack[-1].info is not info:
            stack.pop()  # an exception has passed through, and somebody has caught it
        frame = stack.pop()
        if not torch.is_grad_enabled() or frame.number < 0:
            self.forward.recomputes = True
            return
        self._watch(frame.call, frame.inputs, output, frame.number)

    def returned(self, output: Any) -> None:
        """The model has returned."""
        self._stack.clear()
        if torch.is_grad_enabled():
            # No node of it is looked at: only where its gradients arrive.
            self._watch(WatchedCall(self.forward, None, None, None), [], output, None)

    def _watch(self, call: WatchedCall, inputs: list[Edge], output: Any, number: int | None) -> None:
        outputs = edges_of(output, leaves=False)
        if not outputs:
            return
        region = region_of(inputs, outputs, number)
        watch(call, region, self.forward.handles if self._home is None else None)

    def drop(self) -> None:
        """Forget calls that have not returned."""
        self._stack.clear()


class _Hook(CopiedAway):
    """Base of the hooks of a module."""

    __slots__ = ("_engine", "_info")

    def __init__(self, info: ModuleInfo, engine: Any) -> None:
        self._info = info
        self._engine = engine

    def _log(self) -> GradientLog | None:
        """Where a call on this thread is noted."""
        if in_backward():
            run = latest_on_this_thread()
            if run is None or run.forward.state is not self._engine.inside.passes.gradients:
                return None
            return GradientLog(run.forward, run)
        call: Any = current.call
        looking = call.looking if call is not None and call.engine is self._engine else None
        return None if looking is None or looking.passes is None else looking.passes.gradients


class BeforeForward(_Hook):
    """Pre-hook of a module whose gradients are wanted."""

    __slots__ = ()

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), kwargs: Any = None, *_: Any) -> None:
        """Note where the gradients of the inputs go."""
        if is_dynamo_compiling() or _tracing():
            return
        try:
            if (log := self._log()) is not None:
                began = perf_counter_ns()
                log.enter(self._info, (args, kwargs))
                _count(began)
        except Exception as own:
            report("gradients", own)


class AfterForward(_Hook):
    """Forward hook of a module whose gradients are wanted."""

    __slots__ = ()

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), *rest: Any) -> None:
        """Watch the nodes of the call."""
        if is_dynamo_compiling() or _tracing():
            return
        try:
            if (log := self._log()) is not None:
                began = perf_counter_ns()
                log.leave(self._info, rest[-1])
                _count(began)
        except Exception as own:
            report("gradients", own)


def _count(began: int) -> None:
    call: Any = current.call
    if call is not None:
        call.overhead += perf_counter_ns() - began


def hooks_of(module: nn.Module, info: ModuleInfo, engine: Any) -> Sequence[Any]:
    """Put both hooks on a module; their handles."""
    return (
        module.register_forward_pre_hook(BeforeForward(info, engine), with_kwargs=True),
        module.register_forward_hook(AfterForward(info, engine)),
    )
