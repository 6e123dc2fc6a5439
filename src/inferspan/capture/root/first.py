"""Notices the first call of a model that is not instrumented yet, so that it can be instrumented then and no earlier.

``FirstCall`` occupies the slot that ``ObservedRoot`` has on an instrumented model, so nothing else of the model changes, and copies and
pickles have nothing of it. It runs the model itself once ``settle`` has decided.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling

from inferspan.capture.call import current
from inferspan.capture.compile.state import SLOT, leave_frame, set_eval_frame
from inferspan.capture.compile.transforms import is_transforming
from inferspan.capture.modules.observer import can_hold
from inferspan.guard import contain

from .call import RootSlot, caller_of

__all__ = ["FirstCall", "can_notice", "is_part_of_a_request"]

_undecided = threading.local()
"""``depth``: calls of undecided models that run on this thread. Models inside them are parts, whatever becomes of the outer one."""


def can_notice(model: nn.Module) -> bool:
    """Whether torch looks for the slot when it calls ``model``."""
    return can_hold(model)


def is_part_of_a_request(model: nn.Module) -> bool:
    """Whether ``model`` is a module of a model whose request runs on this thread."""
    call = current.call
    while call is not None:
        owner: Any = getattr(call, "owner", None)
        root = owner.model if owner is not None else None
        if root is not None and any(part is model for part in root.modules()):
            return True
        call = call.outer
    return False


class FirstCall(RootSlot):
    """Occupies the slot of a model that has not been called.

    Args:
        model: the model; held weakly.
        settle: called with the model before each call that nothing is decided about; may instrument it.
    """

    __slots__ = ("__weakref__", "_model", "_settle")
    gives_way = True

    def __init__(self, model: nn.Module, settle: Callable[[nn.Module], object]) -> None:
        self._model = weakref.ref(model)
        self._settle = settle

    @leave_frame
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Decide about the model, and run it."""
        module = self._model()
        caller = caller_of(sys._getframe(1))
        if caller is not None and caller is not module:
            # It has a copy of the model's dictionary.
            if module is None or caller.__dict__ is not module.__dict__:
                self.take(caller)
            return caller._call_impl(*args, **kwargs)
        if module is None:
            raise ReferenceError("the model of this call does not exist any more")
        called: Any = module
        if not is_dynamo_compiling():
            self._decide(module)
        names = module.__dict__
        if names.get(SLOT) is not self:
            return called._wrapped_call_impl(*args, **kwargs)
        _undecided.depth = depth = getattr(_undecided, "depth", 0) + 1
        try:
            return called._call_impl(*args, **kwargs)
        finally:
            _undecided.depth = depth - 1

    def _decide(self, module: nn.Module) -> None:
        if getattr(_undecided, "depth", 0) or is_transforming():
            return
        evaluator = set_eval_frame(None)
        try:
            with contain("first call of a model"):
                self._settle(module)
        finally:
            set_eval_frame(evaluator)
