"""Tells hook engines when torch.compile is about to look at something, and when it has done so.

Nothing of ours may be seen by Dynamo: it would be traced, guarded on and, once it is gone, compiled again. A program may compile in the
middle of a pass, so everything comes off the modules for as long as that takes. From the first compilation in a process on, hooks do the
work of what stands in the place of a ``forward``: code that was compiled without hooks does not look for them, but for that it does.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Protocol

from ..guard import contain
from .compilation import compiled_graphs

__all__ = ["Compiling", "compiling"]


class _Watcher(Protocol):
    def compilation_begins(self) -> None:
        """Dynamo is about to trace something on this thread."""

    def compilation_ends(self) -> None:
        """It has done so."""


class Compiling:
    """What torch.compile has done in this process, and who wants to know."""

    def __init__(self) -> None:
        self._watchers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._seen = False

    def watch(self, watcher: _Watcher, *, first: bool) -> bool:
        """Tell ``watcher`` of compilations; returns whether there was none so far.

        Without Dynamo in the process nothing can be compiled, unless a program loads it in the middle of its ``first`` pass.
        """
        module = sys.modules.get("torch._dynamo.callback")
        if module is None:
            return not first and "torch._dynamo" not in sys.modules
        with contain("watching torch.compile"):
            self._watchers.add(watcher)
            self._seen = self._seen or compiled_graphs() > 0
            for callbacks, own in self._places(module):
                # torch._dynamo.reset() takes them out.
                if own not in callbacks:
                    callbacks.append(own)
            return not self._seen
        return False

    def leave(self, watcher: _Watcher) -> None:
        """``watcher`` need not be told any more."""
        self._watchers.discard(watcher)
        module = sys.modules.get("torch._dynamo.callback")
        if module is not None and not self._watchers:
            with contain("watching torch.compile"):
                for callbacks, own in self._places(module):
                    if own in callbacks:
                        callbacks.remove(own)

    def _places(self, module: Any) -> tuple[tuple[list[Any], Any], ...]:
        handler = module.callback_handler
        return (handler.start_callbacks, self._begins), (handler.end_callbacks, self._ends)

    def _begins(self, *_: Any) -> None:
        self._seen = True
        for watcher in list(self._watchers):
            with contain("watching torch.compile"):
                watcher.compilation_begins()

    def _ends(self, *_: Any) -> None:
        for watcher in list(self._watchers):
            with contain("watching torch.compile"):
                watcher.compilation_ends()


compiling = Compiling()
"""The one of this process."""
