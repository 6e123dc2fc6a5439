"""Hooks that note which modules run; they return ``None``, so nothing that they see is changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.compile.state import leave_alone
from inferspan.capture.modules.hook_pair import CopiedAway
from inferspan.capture.modules.recorder import current
from inferspan.guard import report

__all__ = ["FlowHook"]

_tracing: Any = torch._C._get_tracing_state


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
            call: Any = current.call
            looking = call.looking if call is not None and call.engine is self._engine else None
            passes = None if looking is None else looking.passes
            if passes is not None and passes.flow is not None:
                passes.flow.enter(self._number, passes.step(), (args, kwargs))
        except Exception as own:
            report("control flow", own)
