"""Hooks on the modules that are looked at inside, which write to the log of the request that runs on their thread."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.compile.state import leave_alone, may_hook
from inferspan.capture.modules.hook_pair import CopiedAway
from inferspan.capture.modules.recorder import current
from inferspan.capture.values.unseen import unseen
from inferspan.guard import contain, report
from inferspan.records import ModuleInfo

from .hooks import InsideLog
from .memory import MemoryAfter, MemoryBefore, module_reader
from .plan import Plan
from .results import NonfiniteError

__all__ = ["AfterHook", "BeforeHook", "WatchHook", "attach"]

_tracing: Any = torch._C._get_tracing_state
_functions: Any = torch._C._is_torch_function_mode_enabled
_dispatches: Any = torch._C._len_torch_dispatch_stack


class _Hook(CopiedAway):
    """Base of hooks of a module that is looked at."""

    __slots__ = ("_engine", "_info", "_plan")

    def __init__(self, info: ModuleInfo, plan: Plan, engine: object) -> None:
        self._info = info
        self._plan = plan
        self._engine = engine

    def _log(self) -> InsideLog | None:
        """Of the recorded request that runs on this thread."""
        call: Any = current.call
        return call.looking if call is not None and call.engine is self._engine else None


class BeforeHook(_Hook):
    """Pre-hook of a module whose inputs are looked at, or before which functions run."""

    __slots__ = ()

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), kwargs: Any = None, *_: Any) -> None:
        """Look at them, and run the functions."""
        if is_dynamo_compiling() or _tracing() or (log := self._log()) is None:
            return
        try:
            log.latest.pop(self._info.name, None)
            if self._plan.attends and log.attention is not None:
                with contain("attention"):
                    log.attention.enter(self._info.name, module)
            with unseen():
                log.take(self._info, self._plan, args, kwargs or {})
            log.run(self._plan.functions["before"], module, (args, kwargs or {}), None, self._info.name)
        except Exception as own:
            report("results of functions", own)


class AfterHook(_Hook):
    """Forward hook of a module that is looked at."""

    __slots__ = ()

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), *rest: Any) -> None:
        """Look at the output; raises ``NonfiniteError`` where that is wanted."""
        if is_dynamo_compiling() or _tracing() or (log := self._log()) is None:
            return
        error: NonfiniteError | None = None
        plan, kwargs = self._plan, rest[0] if len(rest) > 1 else {}
        try:
            if not plan.before:
                log.latest.pop(self._info.name, None)
            if plan.attends and log.attention is not None:
                with contain("attention"), unseen():
                    attended = log.attention.leave(self._info.name, args, kwargs, rest[-1])
                    if attended:
                        log.latest.setdefault(self._info.name, []).extend(attended)
            if plan.watched:
                with unseen():
                    log.look(self._info, rest[-1])
                if log.waits:
                    error = log.failure(self._info, rest[-1], (args, kwargs))
            if plan.positions:
                log.positions.add(log.step(), perf_counter_ns(), rest[-1])
            if plan.functions["after"]:
                log.run(plan.functions["after"], module, (args, kwargs), rest[-1], self._info.name)
        except Exception as own:
            report("numerics watch", own)
        if error is not None:
            raise error


class WatchHook(CopiedAway):
    """Hook of a module of which only the output is looked at, in few instructions: ``AfterHook`` does the same for all others.

    An observer in the module's slot calls it where it keeps an output not itself; else it is a forward hook of torch.

    Args:
        info: facts of the module.
        engine: whose calls look at it.
        number: of the module, for what keeps outputs.
    """

    __slots__ = ("_engine", "_info", "_name", "_number")

    def __init__(self, info: ModuleInfo, engine: object, number: int = -1) -> None:
        self._info, self._name = info, info.name
        self._engine = engine
        self._number = number

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), *rest: Any) -> None:
        """Look at the output; raises ``NonfiniteError`` where that is wanted."""
        if is_dynamo_compiling() or _tracing():
            return
        call: Any = current.call
        if call is None or call.engine is not self._engine or (log := call.looking) is None:
            return
        error: NonfiniteError | None = None
        try:
            latest = log.latest
            if latest:
                latest.pop(self._name, None)
            steps, watch = log.steps, log.watch
            step = steps.index if steps is not None and steps.open else None
            if _functions() or _dispatches():
                with unseen():
                    looked = watch.see(self._name, step, rest[-1], call, self._number)
            else:
                looked = watch.see(self._name, step, rest[-1], call, self._number)
            if looked is not None:
                latest[self._name] = [looked]
            if log.waits:
                with unseen():
                    error = log.failure(self._info, rest[-1], (args, {}))
        except Exception as own:
            report("numerics watch", own)
        if error is not None:
            raise error


def attach(
    entries: Sequence[tuple[weakref.ref[nn.Module], ModuleInfo, Any, bool]],
    engine: Any,
    fused: set[int],
    handles: list[Any],
    observe: Callable[[nn.Module, ModuleInfo, WatchHook, int], bool] | None = None,
) -> bool:
    """Hook modules.

    Args:
        entries: modules, their facts, parents, and whether an observer can occupy their slots.
        engine: whose calls look at them.
        fused: identities of modules that are run as one operation.
        handles: gets the handles of the hooks.
        observe: puts an observer into the slot of a module, which calls the hook with this number; returns whether it could.

    Returns:
        Whether some could not be hooked.
    """
    refused = engine.inside.reads_modules = False
    device = engine.inside.device() if engine.inside.read_memory != "none" else None
    for number, (reference, info, _, observable) in enumerate(entries):
        module = reference()
        if module is None:
            continue
        plan, passes = engine.inside.plan.get(info.name) or Plan(), engine.inside.passes
        looks = plan.before or plan.after
        read = module_reader(module, device) if plan.memory else None
        if read is None and not looks and not passes.wants(info.name):
            continue
        if id(module) in fused or not may_hook(module):
            refused = refused or plan.does_more or read is not None or passes.wants(info.name)
            engine.inside.attention.refuse(info.name, fused=id(module) in fused)
            continue
        if plan.before:
            handles.append(module.register_forward_pre_hook(BeforeHook(info, plan, engine), with_kwargs=True))
        if read is not None:
            engine.inside.reads_modules = True
            handles.append(module.register_forward_pre_hook(MemoryBefore(info.name, read, engine)))
            handles.append(module.register_forward_hook(MemoryAfter(info.name, read, engine)))
        if plan.only_watched and engine.inside.on_nonfinite != "raise":
            hook, alone = WatchHook(info, engine, number), read is None and not passes.wants(info.name)
            if observe is None or not (alone and observable and observe(module, info, hook, number)):
                handles.append(module.register_forward_hook(hook))
        elif plan.after:
            handles.append(module.register_forward_hook(AfterHook(info, plan, engine), with_kwargs=True))
        handles += passes.attach(module, info.name, engine)
    handles += engine.inside.passes.attach_model(engine.root, engine)
    return refused
