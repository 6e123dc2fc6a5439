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

from .log import FlowLog

__all__ = ["FlowHook", "hooks_of_model"]

_tracing: Any = torch._C._get_tracing_state
_CALL: Any = getattr(nn.Module._call_impl, "__code__", None)


class _Hook(CopiedAway):
    """Base of the hooks: of calls in a request whose control flow is looked at on this thread.

    Args:
        engine: observers of the model.
    """

    __slots__ = ("_engine",)

    def __init__(self, engine: object) -> None:
        self._engine = engine

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), kwargs: Any = None, *_: Any) -> None:
        """Note the call."""
        if is_dynamo_compiling() or _tracing():
            return
        try:
            call: Any = current.call
            looking = call.looking if call is not None and call.engine is self._engine else None
            passes = None if looking is None else looking.passes
            if passes is not None and passes.flow is not None:
                self._note(passes.flow, passes.step(), module, (args, kwargs))
        except Exception as own:
            report("control flow", own)

    def _note(self, log: FlowLog, step: int | None, module: nn.Module, given: Any) -> None:
        raise NotImplementedError


class FlowHook(_Hook):
    """Pre-hook of a module.

    Args:
        number: of the module.
        engine: observers of its model.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int, engine: object) -> None:
        super().__init__(engine)
        self._number = number

    def _note(self, log: FlowLog, step: int | None, module: nn.Module, given: Any) -> None:
        log.enter(self._number, step, given)


def _runs_inside(module: nn.Module, frame: FrameType) -> bool:
    """Whether a call of the module is around the one that a hook of it is called for."""
    calls, at = 0, frame.f_back
    while at is not None and calls < 2:
        calls += at.f_code is _CALL and at.f_locals.get("self") is module
        at = at.f_back
    return calls > 1


class _BeforeModel(_Hook):
    """Pre-hook of the model itself: a pass begins."""

    __slots__ = ()

    def _note(self, log: FlowLog, step: int | None, module: nn.Module, given: Any) -> None:
        log.enter_model(step, given, sys.exc_info()[1], partial(_runs_inside, module, sys._getframe()))


class _AfterModel(_Hook):
    """Forward hook of the model itself, called after a failure as well: the pass has ended."""

    __slots__ = ()

    def _note(self, log: FlowLog, step: int | None, module: nn.Module, given: Any) -> None:
        log.leave_model(sys.exc_info()[1])


def hooks_of_model(root: nn.Module, engine: object) -> list[Any]:
    """Hook the model itself, of which passes begin and end there; handles of the hooks."""
    return [
        root.register_forward_pre_hook(_BeforeModel(engine), with_kwargs=True),
        root.register_forward_hook(_AfterModel(engine), with_kwargs=True, always_call=True),
    ]
