"""Tells whoever has hooks on a model when torch.compile is about to look at something, and when it has done so.

Nothing of ours may be seen by Dynamo: it would be traced, guarded on and, once it is gone, compiled again. A program may compile in the
middle of a pass, so everything comes off the modules for as long as that takes. From the first compilation in a process on, hooks do the
work of what stands in the place of a compiled call: code that was compiled without hooks does not look for them.
"""

from __future__ import annotations

import importlib
import sys
import threading
import weakref
from types import FrameType
from typing import Any, Protocol

from inferspan.guard import contain

from .state import has_compiled, leave_alone

__all__ = ["Compiling", "compiling"]


class _Watcher(Protocol):
    def compilation_begins(self) -> None:
        """Dynamo is about to trace something on this thread."""

    def compilation_ends(self) -> None:
        """It has done so."""


class _Imports:
    """Stands in ``sys.meta_path`` and finds nothing: it sees when a program loads Dynamo, which may be in the middle of a pass.

    ``torch._dynamo`` imports its ``callback`` module as one of the first of some ninety, so one of the others comes after it.
    """

    def __init__(self, compiling: Compiling) -> None:
        self._compiling = compiling

    @leave_alone
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Called for each module that is imported for the first time."""
        if name.startswith("torch._dynamo."):
            self._compiling.listen()


def _iterates_importers() -> bool:
    """Whether some thread goes through ``sys.meta_path``: of what is taken out behind its back, it would skip the next."""
    code = getattr(getattr(getattr(importlib, "_bootstrap", None), "_find_spec", None), "__code__", None)
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code is code:
                return True
            frame = frame.f_back
    return False


class Compiling:
    """What torch.compile has done in this process, and who wants to know."""

    def __init__(self) -> None:
        self._watchers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._own = (self._begins, self._ends)
        self._imports = _Imports(self)
        # A model that the garbage collector finds while this is held leaves on this very thread.
        self._lock = threading.RLock()

    def watch(self, watcher: _Watcher) -> bool:
        """Tell ``watcher`` of compilations; returns whether there was none so far."""
        with self._lock:
            self._watchers[id(watcher)] = watcher
            # An interpreter that exits has no importers any more.
            if sys.meta_path is not None and self._handler() is None and self._imports not in sys.meta_path:
                sys.meta_path.insert(0, self._imports)
        self.listen()
        if "torch._dynamo.callback" not in sys.modules:
            # On another thread its import may have begun.
            return "torch._dynamo" not in sys.modules
        return not has_compiled()

    def listen(self) -> None:
        """See that the callbacks are there: Dynamo may have been loaded since, and ``torch._dynamo.reset()`` takes them out."""
        handler = self._handler()
        if handler is None or not self._watchers:
            return
        with contain("watching torch.compile"):
            for callbacks, own in self._places(handler):
                if own not in callbacks:
                    callbacks.append(own)

    def leave(self, watcher: _Watcher) -> None:
        """``watcher`` need not be told any more."""
        with self._lock:
            self._watchers.pop(id(watcher), None)
            # An interpreter that exits has no importers any more. What has to stay for the moment does nothing, and goes the next time.
            if not self._watchers and self._imports in (sys.meta_path or ()) and not _iterates_importers():
                sys.meta_path.remove(self._imports)
        handler = self._handler()
        if handler is not None and not self._watchers:
            with contain("watching torch.compile"):
                for callbacks, own in self._places(handler):
                    if own in callbacks:
                        callbacks.remove(own)

    def _handler(self) -> Any:
        """Dynamo's own list of whom to call; ``None`` where it is not loaded, or not yet so far."""
        return getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)

    def _places(self, handler: Any) -> tuple[tuple[list[Any], Any], ...]:
        return (handler.start_callbacks, self._own[0]), (handler.end_callbacks, self._own[1])

    def forked(self) -> None:
        """Called in a forked child, where nobody is left to release the lock."""
        self._lock = threading.RLock()

    def _all(self) -> list[Any]:
        # The references are listed in one go: what is collected meanwhile leaves before or after.
        return [watcher for reference in self._watchers.valuerefs() if (watcher := reference()) is not None]

    def _begins(self, *_: Any) -> None:
        for watcher in self._all():
            with contain("watching torch.compile"):
                watcher.compilation_begins()

    def _ends(self, *_: Any) -> None:
        for watcher in self._all():
            with contain("watching torch.compile"):
                watcher.compilation_ends()


compiling = Compiling()
"""The one of this process."""
