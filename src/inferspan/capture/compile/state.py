"""The compiled parts of a model, and ways to keep code of ours out of compiled code.

Dynamo must not see code of ours: it guards on a hook that it traces, and removing the hook causes a recompilation; a hook that it meets as
a frame of its own is compiled by itself. Only torch's extension module is used here: ``torch._dynamo`` is loaded by the user or not at all.
"""

from __future__ import annotations

import functools
import sys
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

__all__ = [
    "SLOT",
    "SlotObserver",
    "compiled_graphs",
    "has_compiled",
    "holds_compiled",
    "ignores_slots",
    "is_compiled",
    "is_compiling",
    "is_optimized",
    "leave_alone",
    "leave_frame",
    "loaded",
    "may_hook",
    "set_eval_frame",
]

SLOT = "_compiled_call_impl"
"""Attribute of a module that ``nn.Module.__call__`` runs instead of ``_call_impl``."""
_frames: Any = torch._C._dynamo.eval_frame
set_eval_frame: Any = _frames.set_eval_frame
"""Sets the frame evaluator of this thread and returns the last one: ``None`` unless the thread runs inside compiled code."""


_Function = TypeVar("_Function")
_choose: Any = getattr(_frames, "set_code_exec_strategy", None)


def leave_frame(function: _Function) -> _Function:
    """Decorator: Dynamo does not compile frames of ``function``; it may compile the functions that they call."""
    code = cast(Any, function).__code__
    if _choose is not None:
        action = _frames._FrameAction
        _choose(code, _frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    else:
        _frames.skip_code(code)
    return function


def leave_alone(function: Any) -> Any:
    """Decorator: Dynamo neither compiles ``function`` nor what it calls."""
    if _choose is not None:
        action = _frames._FrameAction
        _choose(function.__code__, _frames._FrameExecStrategy(action.SKIP, action.SKIP))
        return function
    leave_frame(function)

    @leave_frame
    @functools.wraps(function)
    def alone(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return function(*args, **kwargs)
        evaluator = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_eval_frame(evaluator)

    return alone


def _plain(module: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    return call


_PLAIN: FunctionType = _plain(None)


class SlotObserver:
    """Base of the objects of ours that occupy ``SLOT``.

    They look like a function that calls the module as if the slot were empty. TorchScript leaves out functions that it cannot script, and
    refuses other values there. Dynamo inlines the function where it finds an observer: ``torch.export`` announces no compilation.
    """

    __slots__ = ()
    __defaults__ = None
    __kwdefaults__ = None
    __name__ = _PLAIN.__name__

    def __bool__(self) -> bool:
        # Who asks whether the slot holds something, as PEFT does, means whether the model was compiled.
        return False

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return FunctionType

    @property
    def __code__(self) -> CodeType:
        return _PLAIN.__code__

    @property
    def __globals__(self) -> dict[str, Any]:
        return _PLAIN.__globals__

    @property
    def __closure__(self) -> tuple[CellType, ...]:
        return (CellType(self._observed()),)

    def _observed(self) -> Any:
        """The module whose slot this occupies."""
        raise NotImplementedError


def loaded(module: str, name: str) -> Any:
    """``name`` of a module that the program has imported, ``None`` if it has not; nothing is imported here."""
    return getattr(sys.modules.get(module), name, None)


def _is_product(function: object) -> bool:
    """Whether ``function`` was returned by ``torch.compile``; ``torch.compiler.disable`` sets similar attributes."""
    if type(function) not in (FunctionType, MethodType):
        return False
    attributes = function.__dict__
    return "_torchdynamo_orig_callable" in attributes and not attributes.get("_torchdynamo_disable")


def is_compiled(module: nn.Module) -> bool:
    """Whether the module's own forward runs inside a compiled region, where hooks of ours must not be."""
    own = module.__dict__
    in_slot = own.get(SLOT)
    if in_slot is not None and not issubclass(type(in_slot), SlotObserver):
        return True
    # Traced modules of TorchScript raise if their class is asked for a forward.
    return _is_product(own.get("forward") or getattr(type(module), "forward", None))


def is_optimized(module: nn.Module) -> bool:
    """Whether the module was returned by ``torch.compile(model)``: it may be hooked itself, modules inside it may not."""
    optimized = loaded("torch._dynamo.eval_frame", "OptimizedModule")
    return optimized is not None and issubclass(type(module), optimized)


def holds_compiled(module: nn.Module) -> bool:
    """Whether the module or its class has a compiled function that may run modules without their observers."""
    if any(_is_product(value) for value in [*module.__dict__.values()]):
        return True
    classes = type(module).__mro__
    return any(_is_product(value) for kind in classes[: classes.index(nn.Module)] for value in kind.__dict__.values())


def has_compiled() -> bool:
    """Whether Dynamo has compiled anything in this process: its guards may then be about any module."""
    module = sys.modules.get("torch._dynamo.convert_frame")
    return bool(getattr(getattr(module, "input_codes", None), "seen", None))


def ignores_slots() -> bool:
    """Whether Dynamo inlines a module without hooks as its ``forward``, so that no guard is about ``SLOT``."""
    if loaded("torch._dynamo.variables.nn_module", "unpatched_nn_module_call") is None:
        return False
    # Reading a deprecated option is a warning; it has become the only way.
    entries = getattr(sys.modules.get("torch._dynamo.config"), "_config", {})
    option = "inline_inbuilt_nn_modules"
    return bool(getattr(entries.get(option), "deprecated", False) or getattr(sys.modules.get("torch._dynamo.config"), option, False))


def may_hook(module: nn.Module) -> bool:
    """Whether a hook pair of ours can be added and removed without failing a guard of any compiled code that runs the module.

    Dynamo guards on the number of hooks only if the user has one.
    """
    if not has_compiled():
        return True
    config = sys.modules.get("torch._dynamo.config")
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    theirs = any(not type(hook).__module__.startswith("inferspan.") for hook in hooks)
    return not theirs and getattr(config, "skip_nnmodule_hook_guards", True)


def is_compiling() -> bool:
    """Whether this thread compiles or exports something; torch's own function answers for all threads of the process."""
    if not torch.compiler.is_compiling():
        return False
    exporting = getattr(torch.compiler, "is_exporting", None)
    if is_dynamo_compiling() or exporting is None or exporting():
        return True
    guards: Any = sys.modules.get("torch._guards")
    return guards is None or guards.CompileContext.try_get() is not None or guards.TracingContext.try_get() is not None


def compiled_graphs() -> int:
    """Graphs that torch.compile has made in this process so far; 0 where it was never used."""
    module = sys.modules.get("torch._dynamo.utils")
    counters = getattr(module, "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters is not None else 0
