"""Modules that ``torch.jit.script`` and ``torch.jit.trace`` make of a program's modules.

TorchScript compiles the hooks of a module and looks at all of its attributes, so that hooks of ours, or what we have put around a compiled
call, make it fail. The function that makes a scripted module is wrapped instead while a model is instrumented: meanwhile nothing of ours is
on any model. The call that ``torch.jit.trace`` records comes later and is an ordinary one.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from inferspan.guard import contain

from .state import leave_alone, leave_frame

__all__ = ["Scripting"]

_MODULE, _NAME = "torch.jit._recursive", "create_script_module"


class Scripting:
    """Wraps torch's function that makes a scripted module.

    Args:
        changed: called with true before the outermost call on any thread, and with false after it.
    """

    def __init__(self, changed: Callable[[bool], None]) -> None:
        self._changed = changed
        self._running = 0
        self._lock = threading.Lock()
        self._wrapped: tuple[Any, Any] | None = None

    def wrap(self) -> None:
        """Wrap the function, unless it is wrapped or this torch has none."""
        module = sys.modules.get(_MODULE)
        original = getattr(module, _NAME, None)
        if self._wrapped is not None or original is None:
            return

        @leave_frame
        @functools.wraps(original)
        def create(*args: Any, **kwargs: Any) -> Any:
            self._enter()
            try:
                return original(*args, **kwargs)
            finally:
                self._leave()

        # First, or two threads might wrap it twice.
        self._wrapped = (original, create)
        setattr(module, _NAME, create)

    def unwrap(self) -> None:
        """Restore the function; a wrapper of another library on top stays."""
        wrapped, self._wrapped = self._wrapped, None
        module = sys.modules.get(_MODULE)
        if wrapped is not None and getattr(module, _NAME, None) is wrapped[1]:
            setattr(module, _NAME, wrapped[0])

    def forked(self) -> None:
        """Called in a forked child, where no other thread runs."""
        self._lock = threading.Lock()
        self._running = 0

    @leave_alone
    def _enter(self) -> None:
        with self._lock:
            self._running += 1
            first = self._running == 1
        if first:
            with contain("watching torch.jit"):
                self._changed(True)

    @leave_alone
    def _leave(self) -> None:
        with self._lock:
            self._running -= 1
            last = self._running == 0
        if last:
            with contain("watching torch.jit"):
                self._changed(False)
