"""Observers on the root of an instrumented model: they open and end the requests of its plain forward passes.

By default an ``ObservedRoot`` occupies the model's ``_compiled_call_impl`` slot. Where torch would bypass the slot, or compiled code may
guard on it, a pair of forward hooks is registered instead. A model compiled with ``model.compile()`` runs neither; its compiled call is
wrapped. All of it goes away for as long as something compiles, because compiled code must not see it. A forward pass is ended by the
thread that runs it and by no other:
``uninstrument()`` leaves the hooks of a running pass until it has returned, and ends only passes that an interrupt has left.
"""

from __future__ import annotations

import sys
import threading
import weakref
from time import perf_counter_ns
from types import FrameType
from typing import Any

from torch import jit, nn

from inferspan.capture.call import Call, current
from inferspan.capture.compile.state import SLOT, SlotObserver, has_compiled, ignores_slots
from inferspan.capture.forward import INTERRUPTED, ForwardCall
from inferspan.capture.modules.hooks import in_hooks_of_a_failure, iterates_hooks
from inferspan.capture.modules.observer import can_hold
from inferspan.capture.owner import OpenPass, Owner
from inferspan.capture.running import invocations
from inferspan.guard import contain

from .call import CompiledCall, ObservedRoot
from .pair import RootEnter, RootExit

__all__ = ["RootHooks"]

_remaining: weakref.WeakSet[RootHooks] = weakref.WeakSet()
"""Closed instances whose exit hook was in a table that torch was iterating, so that it could not be removed."""


class RootHooks:
    """The observer or the hooks on the root of one model, or the wrapper around its compiled call.

    Args:
        owner: the instrumentation of the model.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._enter: Any = None
        self._exit: Any = None
        self._observer: ObservedRoot | None = None
        """The observer that occupies the slot, or will again; ``None`` where only hooks are possible."""
        self._wrapper: CompiledCall | None = None
        self._passes: dict[OpenPass, None] = {}
        """Running passes, oldest first."""
        self._paused: set[int] = set()
        """Identities of the calls that keep the hooks off."""
        self._compiling = False
        self._scripting = False

    def attach(self, model: nn.Module) -> None:
        """Put the observer or the hooks on ``model``."""
        _take_remaining()
        with self._lock:
            if can_hold(model) and (not has_compiled() or (ignores_slots() and not self._others(model))):
                self._observer = ObservedRoot(self._owner, model)
            self._attach(model)

    def _attach(self, model: nn.Module) -> None:
        implementation = model.__dict__.get(SLOT)
        if implementation is not None and self._wrapper is None and not issubclass(type(implementation), SlotObserver):
            self._wrapper = CompiledCall(self._owner, implementation)
            model.__dict__[SLOT] = self._wrapper
        self._settle()

    def _others(self, model: nn.Module) -> bool:
        """Whether the root has hooks of the user's."""
        hooks = (*model._forward_hooks.values(), *model._forward_pre_hooks.values())
        return any(not type(hook).__module__.startswith("inferspan.") for hook in hooks)

    @property
    def _hooked(self) -> bool:
        """Whether a pass runs whose end only the hooks see."""
        return any(opened.hooked for opened in self._passes)

    @property
    def idle(self) -> bool:
        """Whether no running pass needs the observers on the model."""
        return not self._passes

    @property
    def around(self) -> bool:
        """Whether one function runs around each pass, rather than a pair of hooks."""
        return self._observer is not None or self._wrapper is not None

    # -------------------------------------------------------------------------------------------------------- on and off
    def _settle(self) -> None:
        """Put the observer or the hooks on or take them off, whichever the state asks for; the caller holds the lock."""
        owner = self._owner
        model = owner.model
        if model is None:
            return
        off = self._compiling or self._scripting
        wanted = owner.is_open and not owner.pausing.quiet and not self._paused and self._wrapper is None and not off
        observer = self._observer
        if observer is not None and wanted and observer.put(model):
            wanted = False
        elif observer is not None:
            observer.take(model)
        if self._hooked and not off:
            wanted = True
        # Scripted modules take no hooks.
        if not wanted or issubclass(type(model), jit.ScriptModule):
            self._take(model)
            return
        if self._enter is None:
            self._enter = model.register_forward_pre_hook(RootEnter(owner, self.settle), with_kwargs=True)
        if self._exit is None:
            self._exit = model.register_forward_hook(RootExit(owner, self.settle), with_kwargs=True, always_call=True)

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

    def scripting(self, *, begins: bool) -> None:
        """Take everything off, the wrapper of a compiled call included: TorchScript looks at it all; or put it back."""
        with self._lock:
            self._scripting = begins
            pair = (self._wrapper, getattr(self._wrapper, "original", None))
            self._swap(*(pair if begins else reversed(pair)))
            self._settle()

    def _swap(self, old: Any, new: Any) -> None:
        """Put ``new`` into the slot of a compiled model if ``old`` is there."""
        model = self._owner.model
        if old is not None and model is not None and model.__dict__.get(SLOT) is old:
            model.__dict__[SLOT] = new

    def compilation_begins(self) -> None:
        """Take everything off while Dynamo compiles on this thread, except hooks that others or running passes need."""
        model, mine = self._owner.model, threading.get_ident()
        with self._lock:
            third_party = model is None or self._others(model)
            if self._observer is not None:
                # Below a call of the root Dynamo compiles what the root runs. Elsewhere it may inline that call: with hooks of the user's,
                # and always if this torch looks at the slot, it guards on the slot then, so that nothing may be there later.
                if (third_party or not ignores_slots()) and not self._is_inside():
                    if model is not None:
                        self._observer.take(model)
                    self._observer = None
                    self._settle()
                else:
                    self._compiling = True
                    self._settle()
                    return
            # If the user has hooks, Dynamo guards on their number, so ours must be present on every call. A pass needs its exit hook.
            others = any(opened.hooked and opened.thread != mine for opened in self._passes)
            if (self._enter is not None or self._exit is not None) and not third_party and not others and not iterates_hooks():
                self._compiling = True
                self._settle()

    def _is_inside(self) -> bool:
        """Whether a forward pass or a ``generate()`` of the model runs on this thread."""
        call = current.call
        while call is not None:
            if call.engine is self._owner.engine:
                return True
            call = call.outer
        return False

    def pause(self, call: Call) -> None:
        """Keep the hooks off until ``resume(call)``, unless a forward pass needs them now."""
        with self._lock:
            if not self._hooked:
                self._paused.add(id(call))
                self._settle()

    def resume(self, call: Call) -> None:
        """Undo ``pause(call)``."""
        if id(call) in self._paused:
            with self._lock:
                self._paused.discard(id(call))
                self._settle()

    # ------------------------------------------------------------------------------------------------------------ passes
    def open_pass(self, opened: OpenPass) -> bool:
        """See :meth:`Owner.open_pass <inferspan.capture.owner.Owner.open_pass>`."""
        with self._lock:
            if not self._owner.is_open:
                return False
            opened.registered = self._owner
            self._passes[opened] = None
            return True

    def close_pass(self, opened: OpenPass) -> bool:
        """See :meth:`Owner.close_pass <inferspan.capture.owner.Owner.close_pass>`."""
        with self._lock:
            known = self._passes.pop(opened, opened) is None
            opened.registered = opened.call = None
            if not known:
                return False
            if not self._owner.is_open or self._wrapper is not None or self._owner.pausing.quiet:
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
            if not isinstance(call, ForwardCall) or model is None or not opened.hooked:
                continue
            if thread not in running:
                running[thread] = invocations(model, frames.get(thread))
            needed = 1 + len(call.inner)
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
        with self._lock, contain("detaching"):
            self._swap(self._wrapper, getattr(self._wrapper, "original", None))
            self._wrapper = None
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
            self._compiling = self._scripting = False
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
