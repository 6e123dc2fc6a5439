"""Hooks that note which modules run; they return ``None``, so nothing that they see is changed."""

from __future__ import annotations

import sys
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.compile.state import leave_alone
from inferspan.capture.modules.hook_pair import CopiedAway
from inferspan.capture.modules.recorder import current
from inferspan.guard import report

__all__ = ["FlowHook", "hooks_of_model"]

_tracing: Any = torch._C._get_tracing_state
_CALL: Any = getattr(nn.Module._call_impl, "__code__", None)


def _log(engine: object) -> Any:
    """The control flow of the request that is looked at on this thread now, and the number of its open step; ``None`` without one."""
    call: Any = current.call
    looking = call.looking if call is not None and call.engine is engine else None
    passes = None if looking is None else looking.passes
    return None if passes is None or passes.flow is None else (passes.flow, passes.step())


class FlowHook(CopiedAway):
    """Pre-hook of a module.

    Args:
        number: of the module.
        engine: observers of its model.
    """

    __slots__ = ("_engine", "_number")

    def __init__(self, number: int, engine: object) -> None:
        self._number, self._engine = number, engine

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), kwargs: Any = None, *_: Any) -> None:
        """Note the call."""
        if is_dynamo_compiling() or _tracing():
            return
        try:
            if (found := _log(self._engine)) is not None:
                found[0].enter(self._number, found[1], (args, kwargs))
        except Exception as own:
            report("control flow", own)


def _runs_inside(module: nn.Module, frame: FrameType) -> bool:
    """Whether a call of the module is around the one that a hook of it is called for."""
    calls, at = 0, frame.f_back
    while at is not None and calls < 2:
        calls += at.f_code is _CALL and at.f_locals.get("self") is module
        at = at.f_back
    return calls > 1


class _BeforeModel(CopiedAway):
    """Pre-hook of the model itself."""

    __slots__ = ("_engine",)

    def __init__(self, engine: object) -> None:
        self._engine = engine

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), kwargs: Any = None, *_: Any) -> None:
        """Note that a pass begins."""
        if is_dynamo_compiling() or _tracing():
            return
        try:
            if (found := _log(self._engine)) is not None:
                found[0].enter_model(found[1], (args, kwargs), sys.exc_info()[1], partial(_runs_inside, module, sys._getframe()))
        except Exception as own:
            report("control flow", own)


class _AfterModel(CopiedAway):
    """Forward hook of the model itself, called after a failure as well."""

    __slots__ = ("_engine",)

    def __init__(self, engine: object) -> None:
        self._engine = engine

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), *_: Any) -> None:
        """Note how the pass has ended."""
        if is_dynamo_compiling() or _tracing():
            return
        try:
            if (found := _log(self._engine)) is not None:
                found[0].leave_model(sys.exc_info()[1])
        except Exception as own:
            report("control flow", own)


def hooks_of_model(root: nn.Module, engine: object) -> list[Any]:
    """Hook the model itself, of which passes begin and end there; handles of the hooks."""
    return [
        root.register_forward_pre_hook(_BeforeModel(engine), with_kwargs=True),
        root.register_forward_hook(_AfterModel(engine), with_kwargs=True, always_call=True),
    ]
