"""One function around a plain forward pass, so that the request's span can be the current one while the model's own code runs.

``nn.Module.__call__`` runs what its ``_compiled_call_impl`` slot holds. ``ObservedRoot`` occupies it on an instrumented model, and runs
``_call_impl``: torch leaves the slot out of copies and pickles, and ``forward``, signatures and hooks stay as they are. ``CompiledCall``
wraps the function that ``model.compile()`` has put there, and ``OptimizedCall`` the call of an ``OptimizedModule``. An exception may be
raised at any instruction: the request has ended and its context is detached when the function returns.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType, MethodType
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as torch_calls

from inferspan.capture.call import ANNOUNCED, current, is_in_step, pass_state, step_by_hand
from inferspan.capture.compile.optimized import runs_disabled
from inferspan.capture.compile.state import SLOT, SlotObserver, leave_frame, set_eval_frame
from inferspan.capture.failures import error_type
from inferspan.capture.forward import INTERRUPTED, ForwardCall, close_stale, start_forward
from inferspan.capture.owner import OpenPass, Owner
from inferspan.guard import contain, report

__all__ = ["CompiledCall", "ObservedRoot", "OptimizedCall", "RequestCall", "RootSlot", "caller_of", "end_call", "settle"]

_torch_calls = vars(torch_calls)


@leave_frame
def caller_of(frame: FrameType) -> Any:
    """The module that torch is calling in ``frame``; ``None`` if the frame is not torch's."""
    return frame.f_locals.get("self") if frame.f_globals is _torch_calls else None


class RequestCall:
    """Runs a function as one request of a model.

    Args:
        owner: the instrumentation of the model.
    """

    __slots__ = ("_owner",)

    def __init__(self, owner: Owner) -> None:
        self._owner = weakref.ref(owner)

    def _function(self, caller: Any) -> Callable[..., Any]:
        """The function to run; ``caller`` is the module that torch is calling, ``None`` if this is not called by torch."""
        raise NotImplementedError

    @leave_frame
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run it; the result, exceptions and the order of hooks are those of the function."""
        if is_dynamo_compiling():
            return self._function(None)(*args, **kwargs)
        frame = sys._getframe(1)
        caller: Any = frame.f_locals.get("self") if frame.f_globals is _torch_calls else None
        del frame
        function = self._function(caller)
        outer = current.call
        # A step of generate(): for few instructions, before all else.
        if outer is not None and caller is not None and outer.root_id == id(caller):
            adapter = outer.adapter
            if adapter is None or pass_state(adapter) == ANNOUNCED:
                output = function(*args, **kwargs)
                if adapter is not None and adapter.passes.drafting:
                    adapter.keep_logits(output)
                return output
            return _loop_pass(adapter, function, args, kwargs)
        if outer is None and caller is not None and is_in_step(caller):
            return _pass_elsewhere(step_by_hand.get(), function, args, kwargs)
        opened = OpenPass(threading.get_ident(), hooked=False)
        call: ForwardCall | None = None
        try:
            evaluator = set_eval_frame(None)
            try:
                call = self._begin(caller, opened, args, kwargs, evaluated=evaluator is not None)
            finally:
                set_eval_frame(evaluator)
            output = function(*args, **kwargs)
            if call is not None:
                end_call(call, opened, output, None)
            return output
        except BaseException as error:
            if call is not None:
                end_call(call, opened, None, error)
            raise
        finally:
            if opened.registered is not None:
                settle(opened)

    def _begin(
        self, caller: Any, opened: OpenPass, args: tuple[Any, ...], kwargs: dict[str, Any], *, evaluated: bool
    ) -> ForwardCall | None:
        """Open the request, or enter the running one of a model that calls itself; ``None`` where the pass is neither."""
        owner = self._owner()
        if owner is None:
            return None
        try:
            module, call = owner.model, current.call
            if module is None or not owner.is_open:
                return None
            if caller is not None and caller is not module:
                self._leave_copy(caller, module)
                return None
            if call is not None:
                close_stale(None)
                call = current.call
                if call is not None and call.follows(module):
                    return None
                if isinstance(call, ForwardCall) and call.owner is owner:
                    return self._enter_again(call, opened, args, kwargs)
            call = self._start(owner, opened, args, kwargs, evaluated)
            if call is not None:
                with contain("context"):
                    call.scope.attach()
            return call
        except Exception as error:
            report("start of a forward pass", error)
            return None

    def _start(
        self, owner: Owner, opened: OpenPass, args: tuple[Any, ...], kwargs: dict[str, Any], evaluated: bool
    ) -> ForwardCall | None:
        return start_forward(owner, args, kwargs, compiled=evaluated, opened=opened)

    def _enter_again(
        self, call: ForwardCall, opened: OpenPass, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ForwardCall | None:
        if call.awaits_root:
            # Begun around this very call.
            call.awaits_root = False
            return None
        call.enter_again(call.owner.root_info, (args, kwargs))
        opened.again = True
        return call

    def _leave_copy(self, caller: nn.Module, module: nn.Module) -> None:
        """Leave a module that has a copy of the model's dictionary."""


@leave_frame
def _loop_pass(adapter: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a pass of the root inside a ``generate()`` that no helper of the loop has announced."""
    with contain("start of a step"):
        adapter.enter_root(args, kwargs)
    try:
        output = function(*args, **kwargs)
    except BaseException:
        with contain("end of a step"):
            if adapter.passes.inside:
                adapter.leave_root(None)
        raise
    with contain("end of a step"):
        if adapter.passes.inside:
            adapter.leave_root(output)
    return output


@leave_frame
def _pass_elsewhere(step: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run such a pass, with the request as the current one meanwhile."""
    current.call = step
    try:
        return _loop_pass(step.adapter, function, args, kwargs)
    finally:
        current.call = None


@leave_frame
def end_call(call: ForwardCall, opened: OpenPass, output: Any, error: BaseException | None) -> None:
    """End the request, or the inner call of a model that calls itself."""
    evaluator = set_eval_frame(None)
    try:
        now = perf_counter_ns()
        with contain("end of a forward pass"):
            if opened.again:
                opened.again = False
                call.leave_again(call.owner.root_info, output, now, None if error is None else error_type(error))
            elif opened.registered is not None:
                try:
                    call.finish(output, None if error is None else call.failure_of(error), now)
                finally:
                    call.scope.detach()
                opened.close()
    finally:
        set_eval_frame(evaluator)


@leave_frame
def settle(opened: OpenPass) -> None:
    """End a request that an interrupt in code of ours has left open, perhaps before its caller had it."""
    evaluator = set_eval_frame(None)
    try:
        call = current.call
        while call is not None and not (isinstance(call, ForwardCall) and call.opened_pass is opened):
            call = call.outer
        if call is None:
            call = opened.call
        if isinstance(call, ForwardCall):
            try:
                call.finish(None, INTERRUPTED, perf_counter_ns())
            finally:
                with contain("context"):
                    call.scope.detach()
    finally:
        opened.close()
        set_eval_frame(evaluator)


class RootSlot(SlotObserver):
    """Base of what occupies the slot of a model that is not compiled; ``_model`` is a weak reference to that model."""

    __slots__ = ()
    _model: weakref.ref[nn.Module]
    gives_way = False
    """Whether another one may take its place, with nothing in between."""

    def _observed(self) -> nn.Module | None:
        return self._model()

    def __reduce__(self) -> Any:
        # A copy of a module's dictionary gets an empty slot.
        return type(None), ()

    def put(self, model: nn.Module) -> bool:
        """Occupy the slot; false if something else does."""
        names = model.__dict__
        held = names.get(SLOT)
        if held is not None and held is not self and not getattr(type(held), "gives_way", False):
            return False
        names[SLOT] = self
        return True

    def take(self, model: nn.Module) -> None:
        """Leave the slot, if it is still ours."""
        if model.__dict__.get(SLOT) is self:
            # Another thread may do the same.
            model.__dict__.pop(SLOT, None)


class ObservedRoot(RootSlot, RequestCall):
    """Occupies the slot of an instrumented model that is not compiled.

    Args:
        owner: the instrumentation of the model.
        model: the model; held weakly.
    """

    __slots__ = ("__weakref__", "_model")

    def __init__(self, owner: Owner, model: nn.Module) -> None:
        super().__init__(owner)
        self._model = weakref.ref(model)

    @leave_frame
    def _function(self, caller: Any) -> Callable[..., Any]:
        module: Any = self._model() if caller is None else caller
        function: Callable[..., Any] = module._call_impl
        return function

    def _leave_copy(self, caller: nn.Module, module: nn.Module) -> None:
        if caller.__dict__ is not module.__dict__:
            self.take(caller)


class CompiledCall(RequestCall):
    """Wraps the function that ``model.compile()`` has put into the slot."""

    __slots__ = ("__weakref__", "original")

    def __init__(self, owner: Owner, original: Any) -> None:
        super().__init__(owner)
        self.original = original

    @leave_frame
    def _function(self, caller: Any) -> Callable[..., Any]:
        function: Callable[..., Any] = self.original
        return function


class OptimizedCall(RequestCall):
    """One call of an ``OptimizedModule``, for a model whose own observer does not see it or would be seen by Dynamo.

    Args:
        owner: the instrumentation of the module or of the one in it.
        module: what ``torch.compile(model)`` has returned.
        original: its ``__call__``.
    """

    __slots__ = ("_module", "_original")

    def __init__(self, owner: Owner, module: Any, original: Callable[..., Any]) -> None:
        super().__init__(owner)
        self._module = module
        self._original = original

    @leave_frame
    def _function(self, caller: Any) -> Callable[..., Any]:
        return MethodType(self._original, self._module)

    def _start(
        self, owner: Owner, opened: OpenPass, args: tuple[Any, ...], kwargs: dict[str, Any], evaluated: bool
    ) -> ForwardCall | None:
        call = start_forward(owner, args, kwargs, compiled=not runs_disabled(self._module), opened=opened)
        if call is not None:
            call.awaits_root = True
        return call
