"""Hooks on the root of an instrumented model, which open and end the requests of its plain forward passes.

A model compiled with ``model.compile()`` never runs root hooks; its compiled call is wrapped instead. The hooks go away for as long as
something compiles, because compiled code must not see them. A forward pass is ended by the thread that runs it and by no other:
``uninstrument()`` leaves the hooks of a running pass until it has returned, and ends only passes that an interrupt has left.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping
from time import perf_counter_ns
from types import FrameType
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.compile.state import SLOT, is_compiling, leave_frame, set_eval_frame
from inferspan.capture.modules.hooks import CopiedAway, in_hooks_of_a_failure, iterates_hooks
from inferspan.guard import contain, report

from .call import Call, current
from .failures import error_type, failure_of
from .forward import INTERRUPTED, ForwardCall, close_stale, invocations, start_forward
from .owner import OpenPass, Owner

__all__ = ["CompiledCall", "RootHooks"]

_remaining: weakref.WeakSet[RootHooks] = weakref.WeakSet()
"""Closed instances whose exit hook was in a table that torch was iterating, so that it could not be removed."""


class RootHooks:
    """The hooks on the root of one model, or the wrapper around its compiled call.

    Args:
        owner: the instrumentation of the model.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._enter: Any = None
        self._exit: Any = None
        self._wrapper: CompiledCall | None = None
        self._passes: dict[OpenPass, None] = {}
        """Passes whose end only the hooks see, oldest first."""
        self._paused: set[int] = set()
        """Identities of the calls that keep the hooks off."""
        self._compiling = False

    def attach(self, model: nn.Module) -> None:
        """Put the hooks on ``model``."""
        _take_remaining()
        with self._lock:
            self._attach(model)

    def _attach(self, model: nn.Module) -> None:
        implementation = model.__dict__.get(SLOT)
        if implementation is not None and self._wrapper is None:
            self._wrapper = CompiledCall(self._owner, implementation)
            model.__dict__[SLOT] = self._wrapper
        self._settle()

    @property
    def idle(self) -> bool:
        """Whether no pass runs that needs the hooks."""
        return not self._passes

    # -------------------------------------------------------------------------------------------------------- on and off
    def _settle(self) -> None:
        """Put the hooks on or take them off, whichever the state asks for; the caller holds the lock."""
        owner = self._owner
        model = owner.model
        if model is None:
            return
        if self._compiling:
            wanted = False
        elif self._passes:
            wanted = True
        else:
            wanted = owner.is_open and not self._paused and self._wrapper is None
        if not wanted:
            self._take(model)
            return
        if self._enter is None:
            self._enter = model.register_forward_pre_hook(_RootEnter(owner, self), with_kwargs=True)
        if self._exit is None:
            self._exit = model.register_forward_hook(_RootExit(owner, self), with_kwargs=True, always_call=True)

    def _take(self, model: nn.Module) -> None:
        if self._enter is not None:
            self._enter.remove()
            self._enter = None
        # Removing a hook while torch iterates the table would raise there. It stays, does nothing, and is removed at the next occasion.
        if self._exit is None:
            return
        if iterates_hooks() or (not self._owner.is_open and _iterated_elsewhere(model)):
            _remaining.add(self)
            return
        self._exit.remove()
        self._exit = None
        _remaining.discard(self)

    def settle(self) -> None:
        """Take off hooks that are not needed any more, those of submodules included."""
        with self._lock, contain("detaching"):
            self._settle()
        if not self._owner.is_open and self.idle:
            with contain("detaching"):
                self._owner.engine.close()

    def refresh(self, model: nn.Module) -> bool:
        """Look at the model again; whether it has got a compiled call since."""
        with self._lock:
            had = self._wrapper
            if self._owner.is_open:
                self._attach(model)
            return self._wrapper is not had

    def before_compile(self) -> None:
        """Take the hooks off, because ``model.compile()`` will compile the call that runs them."""
        with self._lock:
            self._compiling = True
            self._settle()

    def after_compile(self) -> None:
        """Put them back."""
        with self._lock:
            self._compiling = False
            self._settle()

    def compilation_begins(self) -> None:
        """Take the hooks off while Dynamo compiles on this thread, unless other hooks or running passes need them."""
        model, mine = self._owner.model, threading.get_ident()
        with self._lock:
            # If the user has hooks, Dynamo guards on their number, so ours must be present on every call. A pass needs its exit hook.
            ours = (self._enter is not None) + (self._exit is not None)
            third_party = model is None or len(model._forward_hooks) + len(model._forward_pre_hooks) > ours
            others = any(opened.thread != mine for opened in self._passes)
            if ours and not third_party and not others and not iterates_hooks():
                self._compiling = True
                self._settle()

    def pause(self, call: Call) -> None:
        """Keep the hooks off until ``resume(call)``, unless a forward pass needs them now."""
        with self._lock:
            if not self._passes:
                self._paused.add(id(call))
                self._settle()

    def resume(self, call: Call) -> None:
        """Undo ``pause(call)``."""
        if id(call) in self._paused:
            with self._lock:
                self._paused.discard(id(call))
                self._settle()

    # ------------------------------------------------------------------------------------------------------------ passes
    def open_pass(self) -> OpenPass | None:
        """See :meth:`Owner.open_pass <inferspan.capture.owner.Owner.open_pass>`."""
        with self._lock:
            if not self._owner.is_open:
                return None
            opened = OpenPass(threading.get_ident())
            self._passes[opened] = None
            return opened

    def close_pass(self, opened: OpenPass) -> bool:
        """See :meth:`Owner.close_pass <inferspan.capture.owner.Owner.close_pass>`."""
        with self._lock:
            if opened not in self._passes:
                return False
            del self._passes[opened]
            if not self._owner.is_open or self._wrapper is not None:
                with contain("detaching"):
                    self._settle()
            return True

    def _left(self) -> list[ForwardCall]:
        """Passes that an interrupt has left without their exit hook, newest first: the model is not on the stack of their thread."""
        model, mine = self._owner.model, threading.get_ident()
        frames = sys._current_frames()
        left: list[ForwardCall] = []
        running: dict[int, int] = {}
        with self._lock:
            passes = [*self._passes]
        for opened in reversed(passes):
            call, thread = opened.call, opened.thread
            if not isinstance(call, ForwardCall) or model is None:
                continue
            if thread not in running:
                running[thread] = invocations(model, frames.get(thread))
            needed = 1 + call.depth
            if running[thread] >= needed:
                running[thread] -= needed
            elif thread == mine or thread not in frames or not call.compiled:
                # Dynamo runs compiled passes in frames of its own.
                left.append(call)
        return left

    # ------------------------------------------------------------------------------------------------------- close, fork
    def close(self) -> None:
        """Take everything off that no running pass needs, after the owner is closed; the last pass that runs takes the rest."""
        with contain("detaching"):
            for call in self._left():
                call.finish(None, INTERRUPTED, perf_counter_ns())
        model = self._owner.model
        with self._lock, contain("detaching"):
            wrapper = self._wrapper
            self._wrapper = None
            restored = wrapper.original if wrapper is not None else None
            if restored is not None and model is not None and model.__dict__.get(SLOT) is wrapper:
                model.__dict__[SLOT] = restored
            self._settle()
        _take_remaining()

    def forked(self, *, inside: bool) -> None:
        """Called in a forked child, where passes of the parent's other threads do not run.

        A lock that one of them held would never be released.

        Args:
            inside: whether the fork happened inside a call of the surviving thread.
        """
        self._lock = threading.Lock()
        if not inside:
            self._passes.clear()
            self._paused.clear()
            self._compiling = False
            self._settle()


def _take_remaining() -> None:
    for hooks in [*_remaining]:
        hooks.settle()


def _iterated_elsewhere(model: nn.Module) -> bool:
    """Whether another thread iterates the model's table of exit hooks for a failed pass, during which the table must not change."""
    mine = threading.get_ident()
    for thread, top in sys._current_frames().items():
        frame: FrameType | None = top if thread != mine else None
        while frame is not None:
            if in_hooks_of_a_failure(frame):
                table = getattr(frame.f_locals.get("self"), "_forward_hooks", None)
                if table is model._forward_hooks:
                    return True
            frame = frame.f_back
    return False


class _RootHook(CopiedAway):
    """Base of both hooks on the root."""

    __slots__ = ("hooks", "owner")

    def __init__(self, owner: Owner, hooks: RootHooks) -> None:
        self.owner = owner
        self.hooks = hooks


class _RootEnter(_RootHook):
    """Forward pre-hook of the root."""

    __slots__ = ()

    @leave_frame
    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        """Called by torch before the root's forward pass."""
        if is_dynamo_compiling():
            return
        call = current.call
        if call is not None and call.root_id == id(module) and self.owner.is_open:
            adapter = call.adapter
            if adapter is not None and (adapter.passes.inside or not adapter.steps.open):
                adapter.enter_root(*arguments)
            return
        evaluator = set_eval_frame(None)
        try:
            self._begin(module, arguments, compiled=evaluator is not None)
        finally:
            set_eval_frame(evaluator)

    def _begin(self, module: nn.Module, arguments: tuple[Any, ...], *, compiled: bool) -> None:
        owner = self.owner
        try:
            call = current.call
            if owner.model is not module or (call is not None and call.follows(module)):
                return
            if call is not None:
                close_stale(module)
                call = current.call
                if call is not None and call.follows(module):
                    return
                if isinstance(call, ForwardCall) and call.owner is owner:
                    call.enter_again(owner.root_info, arguments)
                    return
            if not owner.is_open:
                self.hooks.settle()
                return
            kwargs: Mapping[str, Any] = arguments[1] if len(arguments) > 1 else {}
            start_forward(owner, arguments[0], kwargs, compiled=compiled)
        except Exception as error:
            report("start of a forward pass", error)


class _RootExit(_RootHook):
    """Forward hook of the root, called after an ``Exception`` as well."""

    __slots__ = ()

    @leave_frame
    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        """Called by torch after the root's forward pass."""
        if is_dynamo_compiling():
            return
        call = current.call
        if call is not None and call.root_id == id(module):
            if call.adapter is not None and call.adapter.passes.inside:
                call.adapter.leave_root(arguments[-1])
            return
        evaluator = set_eval_frame(None)
        try:
            self._end(module, arguments)
        finally:
            set_eval_frame(evaluator)

    def _end(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        owner = self.owner
        try:
            call = current.call
            if owner.model is not module or (call is not None and call.follows(module)):
                return
            while call is not None and not (isinstance(call, ForwardCall) and call.owner is owner):
                call = call.outer
            if not isinstance(call, ForwardCall):
                if not owner.is_open:
                    self.hooks.settle()
                return
            now = perf_counter_ns()
            output = arguments[-1]
            # After an exception torch calls this hook inside its except block; with an output if it was a hook that raised.
            error = sys.exc_info()[1]
            failed = error is not None and _passes_through(error)
            if call.depth:
                call.leave_again(owner.root_info, output, now, error_type(error) if failed and error else None)
                return
            content = owner.settings.content_on_spans
            call.finish(output, failure_of(error, content=content) if failed and error is not None else None, now)
        except Exception as error:
            report("end of a forward pass", error)


def _passes_through(error: BaseException) -> bool:
    """Whether ``error`` came out of the running ``_call_impl``: a caller's own except block around the model also has one."""
    implementation = nn.Module._call_impl.__code__
    frame = sys._getframe(3)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame is frame and frame.f_code is implementation:
            return True
        trace = trace.tb_next
    return False


class CompiledCall:
    """Wraps ``_compiled_call_impl`` of a model that was compiled with ``model.compile()``; ends its passes itself."""

    def __init__(self, owner: Owner, original: Any) -> None:
        self._owner = weakref.ref(owner)
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the original as one request."""
        owner = self._owner()
        if owner is None or is_compiling():
            return self.original(*args, **kwargs)
        call: ForwardCall | None = None
        with contain("start of a forward pass"):
            outer = current.call
            model = owner.model
            if model is not None and not (outer is not None and outer.follows(model)):
                close_stale(None)
                call = start_forward(owner, args, kwargs, by_hooks=False)
        if call is None:
            return self.original(*args, **kwargs)
        try:
            result = self.original(*args, **kwargs)
        except BaseException as error:
            with contain("end of a forward pass"):
                call.finish(None, failure_of(error, content=owner.settings.content_on_spans), perf_counter_ns())
            raise
        with contain("end of a forward pass"):
            call.finish(result, None, perf_counter_ns())
        return result
