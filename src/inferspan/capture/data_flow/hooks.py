"""Hooks by which the data flow of a pass is seen, and what is kept of it for a handle.

They are on the modules, and on the model itself, during passes that are recorded with their modules. They return ``None``, so nothing that
they see is changed.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.compile.state import has_compiled, leave_alone, may_hook
from inferspan.capture.modules.hook_pair import CopiedAway
from inferspan.capture.modules.recorder import current
from inferspan.guard import contain, report
from inferspan.records import ModuleInfo, PassFlow

from .log import FlowLog

__all__ = ["Flows", "attach"]

_tracing: Any = torch._C._get_tracing_state
KEPT_PASSES = 16
"""Passes of the latest request that a handle shows."""


class Flows:
    """Whether the data flow of one model is recorded, and that of its latest request.

    Attributes:
        wanted: the setting ``data_flow``.
        active: whether hooks are attached with those of the modules; changes with the selection only.
    """

    def __init__(self, root: nn.Module, wanted: str) -> None:
        self._root = weakref.ref(root)
        self.wanted = wanted
        self.active = False
        self._lock = threading.Lock()
        self._request: weakref.ref[Any] | None = None
        self._passes: list[PassFlow] = []

    def begin(self, call: Any) -> FlowLog:
        """The log of a request."""
        return FlowLog(call, self._why_not, self._keep)

    def _keep(self, call: Any, flow: PassFlow) -> None:
        with self._lock:
            if self._request is None or self._request() is not call.scope:
                self._request, self._passes = weakref.ref(call.scope), []
            if len(self._passes) < KEPT_PASSES:
                self._passes.append(flow)

    def passes(self) -> list[PassFlow]:
        """The recorded passes of the latest request, at most ``KEPT_PASSES``."""
        with self._lock:
            return list(self._passes)

    def _why_not(self) -> str | None:
        """Why operations are not followed; an empty text if they are not wanted, ``None`` if they are followed."""
        if self.wanted != "operations":
            return ""
        if has_compiled():
            return "something was compiled in this process"
        root = self._root()
        for module in () if root is None else root.modules():
            if issubclass(type(module), nn.MultiheadAttention | nn.TransformerEncoder | nn.TransformerEncoderLayer) and not module.training:
                return f"torch runs {type(module).__name__} as one operation only while no mode is active"
        return None

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the lock."""
        self._lock = threading.Lock()


class _Hook(CopiedAway):
    """Base of the hooks of one module."""

    __slots__ = ("_engine", "_info")

    def __init__(self, info: ModuleInfo, engine: Any) -> None:
        self._info = info
        self._engine = engine

    def _log(self, *, begins: bool = False) -> FlowLog | None:
        """Of the request that records modules on this thread now."""
        call: Any = current.call
        if call is None or call.engine is not self._engine:
            return None
        log: FlowLog | None = call.flow
        if log is None and begins and call.calls_left > 0:
            log = call.flow = self._engine.flows.begin(call)
        return log


class _Before(_Hook):
    """Pre-hook of a module."""

    __slots__ = ()

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), kwargs: Any = None, *_: Any) -> None:
        """Note where the arguments come from."""
        if is_dynamo_compiling() or _tracing() or (log := self._log(begins=True)) is None:
            return
        try:
            log.enter(self._info, self._info, (args, kwargs))
        except Exception as error:
            report("data flow", error)


class _After(_Hook):
    """Forward hook of a module."""

    __slots__ = ()

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), *rest: Any) -> None:
        """Note what the module has made."""
        if is_dynamo_compiling() or _tracing() or (log := self._log()) is None:
            return
        try:
            log.leave(self._info, self._info, rest[-1])
        except Exception as error:
            report("data flow", error)


class _BeforeModel(_Hook):
    """Pre-hook of the model itself."""

    __slots__ = ("_names",)

    def __init__(self, info: ModuleInfo, engine: Any, names: Sequence[str]) -> None:
        super().__init__(info, engine)
        self._names = names

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), kwargs: Any = None, *_: Any) -> None:
        """Note the inputs."""
        if is_dynamo_compiling() or _tracing() or (log := self._log(begins=True)) is None or current.call.calls_left <= 0:
            return
        try:
            names = self._names
            given = [(names[place] if place < len(names) else f"input {place}", value) for place, value in enumerate(args)]
            log.enter_model([*given, *(kwargs or {}).items()])
        except Exception as error:
            report("data flow", error)


class _AfterModel(_Hook):
    """Forward hook of the model itself, called after a failure as well."""

    __slots__ = ()

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), *rest: Any) -> None:
        """Note what the outputs are made of."""
        if is_dynamo_compiling() or _tracing() or (log := self._log()) is None:
            return
        try:
            log.leave_model(rest[-1])
        except Exception as error:
            report("data flow", error)


def _names_of(root: nn.Module) -> list[str]:
    """Names of the arguments that the model takes by position."""
    with contain("data flow"):
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [name for name, one in inspect.signature(root.forward).parameters.items() if one.kind in kinds]
    return []


def attach(
    root: nn.Module | None, selection: Sequence[tuple[weakref.ref[nn.Module], ModuleInfo, Any, Any]], engine: Any, fused: set[int],
    handles: list[Any],
) -> bool:  # fmt: skip
    """Hook the model and modules; ``handles`` gets the handles of the hooks. Returns whether some could not be hooked."""
    refused = False
    if root is not None and not issubclass(type(root), torch.jit.ScriptModule) and may_hook(root):
        info = ModuleInfo("", type(root).__name__, None, "")
        handles.append(root.register_forward_pre_hook(_BeforeModel(info, engine, _names_of(root)), with_kwargs=True))
        handles.append(root.register_forward_hook(_AfterModel(info, engine), with_kwargs=True, always_call=True))
    for reference, info, *_ in selection:
        module = reference()
        if module is None:
            continue
        if id(module) in fused or not may_hook(module):
            refused = True
            continue
        handles.append(module.register_forward_pre_hook(_Before(info, engine), with_kwargs=True))
        handles.append(module.register_forward_hook(_After(info, engine), with_kwargs=True))
    return refused
