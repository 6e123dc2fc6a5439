"""Functions that Dynamo is about to compile, and whether they can call a model: it inlines such calls, and no observer sees them.

In: the call stack of one of Dynamo's callbacks, whose compiler has the frame that it compiles. Nothing of the program's is run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType, FrameType, MethodType
from typing import Any

from torch import nn

__all__ = ["compiles_calls_of"]

_COMPILER = ("_compile", "torch._dynamo.convert_frame")
_PARTS = ("code", "locals", "globals", "closure")


def compiles_calls_of(model: nn.Module) -> bool:
    """Whether the frame that Dynamo compiles on this thread has ``model``, or a module around it, within reach."""
    return any(_holds(value, model) for value in _reached())


def _reached() -> Iterator[Any]:
    """Values of the variables, and of the global names, of the frame that is compiled."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_name, frame.f_globals.get("__name__")) != _COMPILER:
        frame = frame.f_back
    if frame is None:
        return
    code, variables, names, closure = (frame.f_locals.get(part) for part in _PARTS)
    if isinstance(variables, dict):
        yield from variables.values()
    for cell in closure if isinstance(closure, tuple) else ():
        try:
            yield cell.cell_contents
        except (AttributeError, ValueError):  # a variable that has no value yet
            continue
    if isinstance(code, CodeType) and isinstance(names, dict):
        yield from (names[name] for name in code.co_names if name in names)


def _holds(value: Any, model: nn.Module) -> bool:
    if type(value) is partial:
        return any(_holds(part, model) for part in (value.func, *value.args, *value.keywords.values()))
    if type(value) is MethodType:
        value = value.__self__
    return isinstance(value, nn.Module) and any(module is model for module in nn.Module.modules(value))
