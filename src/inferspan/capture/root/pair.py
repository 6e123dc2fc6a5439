"""A pair of forward hooks on the root, where no function can stand around its plain forward passes.

The pre-hook opens the request and the forward hook ends it. The request's span is not current in between: a context that is attached in
one hook and detached in another one may stay attached.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.call import ANNOUNCED, current, is_in_step, pass_state
from inferspan.capture.compile.state import is_optimized, leave_frame, set_eval_frame
from inferspan.capture.failures import error_type
from inferspan.capture.forward import ForwardCall, close_stale, start_forward
from inferspan.capture.modules.hook_pair import CopiedAway
from inferspan.capture.owner import OpenPass, Owner
from inferspan.guard import report

__all__ = ["RootEnter", "RootExit"]


class _RootHook(CopiedAway):
    """Base of both hooks.

    Args:
        owner: the instrumentation of the model.
        settle: takes hooks off that are not needed any more.
    """

    __slots__ = ("owner", "settle")

    def __init__(self, owner: Owner, settle: Callable[[], None]) -> None:
        self.owner = owner
        self.settle = settle


class RootEnter(_RootHook):
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
            if adapter is not None and pass_state(adapter) != ANNOUNCED:
                adapter.enter_root(*arguments)
            return
        evaluator = set_eval_frame(None)
        try:
            self._begin(module, arguments, compiled=evaluator is not None or is_optimized(module))
        finally:
            set_eval_frame(evaluator)

    def _begin(self, module: nn.Module, arguments: tuple[Any, ...], *, compiled: bool) -> None:
        owner = self.owner
        try:
            call = current.call
            if owner.model is not module or (call is not None and call.follows(module)):
                return
            if call is None and is_in_step(module):
                return
            if call is not None:
                close_stale(module)
                call = current.call
                if call is not None and call.follows(module):
                    return
                if isinstance(call, ForwardCall) and call.owner is owner:
                    if call.awaits_root:
                        call.awaits_root = False
                    else:
                        call.enter_again(owner.root_info, arguments)
                    return
            if not owner.is_open or owner.pausing.quiet:
                self.settle()
                return
            kwargs: Mapping[str, Any] = arguments[1] if len(arguments) > 1 else {}
            start_forward(owner, arguments[0], kwargs, OpenPass(threading.get_ident()), compiled=compiled)
        except Exception as error:
            report("start of a forward pass", error)


class RootExit(_RootHook):
    """Forward hook of the root, called after an ``Exception`` as well."""

    __slots__ = ()

    @leave_frame
    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        """Called by torch after the root's forward pass."""
        if is_dynamo_compiling():
            return
        call = current.call
        if call is not None and call.root_id == id(module):
            adapter = call.adapter
            if adapter is not None and adapter.passes.inside:
                adapter.leave_root(arguments[-1])
            elif adapter is not None and adapter.passes.drafting:
                adapter.keep_logits(arguments[-1])
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
                if not owner.is_open or owner.pausing.quiet:
                    self.settle()
                return
            now = perf_counter_ns()
            output = arguments[-1]
            # After an exception torch calls this hook inside its except block; with an output if it was a hook that raised.
            error = sys.exc_info()[1]
            failed = error is not None and _passes_through(error)
            if call.inner:
                call.leave_again(owner.root_info, output, now, error_type(error) if failed and error else None)
                return
            if not call.opened_pass.hooked:
                return
            call.finish(output, call.failure_of(error) if failed and error is not None else None, now)
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
