"""Observers of the submodules of a model, attached only while a recorded forward pass runs; each module call appends one row.

By default an ``ObservedCall`` occupies the module's ``_compiled_call_impl`` slot. Where torch would bypass the slot, or using it is unsafe,
a pair of forward hooks is registered instead. Both write to the log of the request that runs on their thread and do nothing without one.
Hooks return ``None``, take any arguments (torch calls a hook removed after its snapshot without kwargs), carry no state of a call, and turn
into importable no-ops when the model is copied or pickled. Attaching is counted over the recorded requests.
"""

from __future__ import annotations

import dis
import sys
import threading
import weakref
from time import perf_counter_ns
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.compile.state import holds_compiled, is_compiled, is_optimized, leave_alone, may_hook
from inferspan.capture.compile.watch import compiling
from inferspan.guard import contain, report
from inferspan.records import ModuleInfo

from .observer import ObservedCall, can_observe
from .recorder import CallLog, current
from .selection import select
from .shapes import describe

__all__ = ["CopiedAway", "ModuleObservers", "in_hooks_of_a_failure", "iterates_hooks", "no_hook"]

_tracing: Any = torch._C._get_tracing_state
"""Whether TorchScript traces the program; it would record reading a shape in its graph."""


def no_hook(*_: Any, **__: Any) -> None:
    """Replaces a hook of ours in a copied or unpickled model."""


def _make_no_hook() -> Any:
    return no_hook


def _end_of_normal_path() -> int:
    """Last line of the normal path in ``_call_impl``, 0 if that is another function.

    Up to torch 2.5 both paths are one function, where the variable of the loop over the hooks is still set long after the loop.
    """
    implementation = getattr(nn.Module._call_impl, "__code__", None)
    if implementation is None:  # replaced by other code
        return 0
    last = [one.offset for one in dis.get_instructions(implementation) if one.argval == "_maybe_warn_non_full_backward_hook"]
    return max((line or 0 for offset, line in dis.findlinestarts(implementation) if last and offset <= last[-1]), default=0)


_NORMAL_PATH = _end_of_normal_path()


def in_hooks_of_a_failure(frame: FrameType) -> bool:
    """Whether ``frame`` is torch's call of a module that failed, where torch iterates the table of hooks itself.

    On the normal path it iterates a snapshot.
    """
    return frame.f_code is getattr(nn.Module._call_impl, "__code__", None) and frame.f_lineno > _NORMAL_PATH and "hook" in frame.f_locals


def iterates_hooks() -> bool:
    """Whether torch iterates over the hooks of a failed call on this thread: their tables must not change meanwhile."""
    if sys.exc_info()[1] is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if in_hooks_of_a_failure(frame):
            return True
        frame = frame.f_back
    return False


class CopiedAway:
    """Base of hooks: a copy of the model must not write into the original's requests."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return no_hook

    def __reduce__(self) -> Any:
        return _make_no_hook, ()


class _Enter(CopiedAway):
    """Pre-hook of a submodule. Written for few instructions: between two large matrix products each of them is a cache miss."""

    __slots__ = ("_engine", "_last", "info")

    def __init__(self, info: ModuleInfo, engine: object) -> None:
        self.info = info
        self._engine = engine
        self._last: Any = None

    @leave_alone
    def __call__(self, module: nn.Module, args: Any = (), kwargs: Any = None, *rest: Any) -> None:
        if is_dynamo_compiling() or _tracing():
            return
        call: CallLog | None = current.call
        if call is None or call.engine is not self._engine:
            return
        if call.room <= 0:
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


class _Exit(CopiedAway):
    """Forward hook of a submodule; see ``_Enter``."""

    __slots__ = ("_engine", "_last", "info")

    def __init__(self, info: ModuleInfo, engine: object) -> None:
        self.info = info
        self._engine = engine
        self._last: Any = None

    @leave_alone
    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
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
            statistics = collector.append(output) if collector is not None else None
            call.leave(now, outputs, None, statistics)
        except Exception as error:
            report("module hook", error)


class ModuleObservers:
    """Hooks on the selected submodules of one model, attached while at least one recorded call needs them."""

    def __init__(self, root: nn.Module, modules: str | tuple[str, ...], style: str) -> None:
        self._root = weakref.ref(root)
        self._modules = modules
        self._style = style
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False
        self._handles: list[Any] = []
        self._observed: list[ObservedCall] = []
        self._selection: list[tuple[weakref.ref[nn.Module], ModuleInfo, weakref.ref[nn.Module], bool]] = []
        self._above: list[tuple[weakref.ref[nn.Module], bool, list[int]]] = []
        self.compiled_inside = False
        """Whether something was compiled while a request of this model ran: it may have run modules without observers."""
        self._unobserved: str | None = None
        self.refresh()

    @property
    def unobserved(self) -> str | None:
        """Why some modules cannot be observed; ``None`` if all can."""
        return self._unobserved or ("modules: compiled in parts" if self.compiled_inside and self.expected else None)

    @property
    def expected(self) -> int:
        """Module calls of one forward pass, if each selected module is called once."""
        return len(self._selection)

    def refresh(self) -> None:
        """Select anew.

        Raises:
            SettingsError: a name pattern matches no module.
        """
        root = self._root()
        if root is None:
            return
        # Held weakly: the selection must not keep a detached child alive.
        self._selection = [
            (weakref.ref(module), info, weakref.ref(parent), can_observe(module))
            for module, info, parent in select(root, self._modules, self._style)
        ]
        self._above = [
            (weakref.ref(module), is_compiled(module), [*map(id, module._modules.values())]) for module in root.modules() if module._modules
        ]
        self._unobserved = self._what_is_compiled(root)

    def _what_is_compiled(self, root: nn.Module) -> str | None:
        if self._modules == "none":
            return None
        if is_optimized(root):
            # Its calls are compiled and have `inferspan.unobserved`; generate() of the model in it runs that model as it is.
            root = root._modules["_orig_mod"] or root
        if is_compiled(root):
            return "modules: compiled"
        compiled = any(is_compiled(module) or is_optimized(module) or holds_compiled(module) for module in root.modules())
        return "modules: compiled in parts" if compiled else None

    def prepare(self) -> None:
        """Select again if the structure has changed or a part was compiled since the last request."""
        with self._lock:
            if self._users == 0 and not self._is_current():
                with contain("module selection"):
                    self.refresh()

    def _is_current(self) -> bool:
        for reference, compiled, children in self._above:
            module = reference()
            if module is None or is_compiled(module) is not compiled or [*map(id, module._modules.values())] != children:
                return False
        for reference, info, parent, _ in self._selection:
            above, module = parent(), reference()
            if above is None or module is None or above._modules.get(info.name.rpartition(".")[2]) is not module:
                return False
        return True

    def acquire(self) -> None:
        """Attach, unless another recorded call has done so."""
        with self._lock:
            if self._closed:
                return
            self._users += 1
            if self._users > 1:
                return
            try:
                self._attach()
            except BaseException:
                self._users = 0
                self._detach()
                raise

    def _attach(self) -> None:
        self._detach()
        observe = compiling.watch(self)
        for reference, info, _, observable in self._selection:
            module = reference()
            if module is None:
                continue
            # If the user has hooks, ours must see the input and output that those return, and their failures.
            if observe and observable and not module._forward_hooks and not module._forward_pre_hooks:
                observed = ObservedCall(module, info, self)
                self._observed.append(observed)
                if observed.attach():
                    continue
                self._observed.pop()
            if may_hook(module):
                self._hook(module, info)

    def _hook(self, module: nn.Module, info: ModuleInfo) -> None:
        self._handles.append(module.register_forward_pre_hook(_Enter(info, self), with_kwargs=True))
        self._handles.append(module.register_forward_hook(_Exit(info, self)))

    def compilation_begins(self) -> None:
        """A compilation begins, perhaps in the middle of a pass: detach everything, so that Dynamo does not see it."""
        with self._lock:
            if not self._observed and not self._handles:
                return
            self._detach()

    def compilation_ends(self) -> None:
        """Attach again, for the rest of the interrupted pass."""
        with self._lock:
            if self._users and not self._closed:
                self._attach()

    def release(self) -> None:
        """Detach, if no other recorded call needs the hooks."""
        with self._lock:
            if not self._users:
                return
            self._users -= 1
            if not self._users:
                self._detach()

    def close(self) -> None:
        """Detach everything, for good."""
        with self._lock:
            self._closed = True
            self._users = 0
            self._detach()
        compiling.leave(self)

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the lock."""
        self._lock = threading.Lock()

    def close_in_child(self) -> None:
        """Detach the observers of requests on other threads of the parent: those threads do not run in a forked child."""
        with self._lock:
            self._users = 0
            self._detach()

    def _detach(self) -> None:
        # Each is forgotten once it is detached: after an interrupt in between the next call detaches the others.
        while self._observed:
            self._observed[-1].detach()
            self._observed.pop()
        # Hooks that stay for now do nothing without a recorded request, and are removed the next time.
        if not self._handles or iterates_hooks():
            return
        while self._handles:
            self._handles[-1].remove()
            self._handles.pop()
