"""Notifies the observers of a model when torch.compile begins and ends a compilation.

Dynamo must not see observers of ours: it would trace them, guard on them and, once they are removed, compile again. A program may compile
in the middle of a pass, so all observers are detached for as long as that takes. After the first compilation in a process, forward hooks
replace ``ObservedCall``: code compiled without hooks never checks for them.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any, Protocol

from inferspan.guard import contain

from .compilations import CompilationLog
from .importers import take_off
from .optimized import OptimizedModules
from .scripted import Scripting
from .state import has_compiled, leave_alone

__all__ = ["Compiling", "compiling"]


class _Watcher(Protocol):
    def compilation_begins(self) -> None:
        """Dynamo begins to trace something on this thread."""

    def compilation_ends(self) -> None:
        """Dynamo has ended."""

    def scripting(self, *, begins: bool) -> None:
        """TorchScript begins to look at modules, or has ended."""


class _Imports:
    """An entry of ``sys.meta_path`` that finds nothing: it notices when a program loads Dynamo, perhaps in the middle of a pass.

    ``torch._dynamo`` imports its ``callback`` module as one of the first of some ninety, so one of the others comes after it.
    """

    def __init__(self, compiling: Compiling) -> None:
        self._compiling = compiling

    @leave_alone
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Called for each module that is imported for the first time."""
        if name.startswith("torch._dynamo."):
            self._compiling.listen()


class Compiling:
    """The compilations of this process, and the watchers that are notified of them."""

    def __init__(self) -> None:
        self._watchers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._own = (self._begins, self._ends)
        self._imports = _Imports(self)
        self.optimized = OptimizedModules()
        """The wrapper around calls of what ``torch.compile(model)`` returns."""
        self.log = CompilationLog()
        """What was compiled on each thread."""
        self._scripting = Scripting(self._scripts)
        # While this is held, the garbage collector may find a model, which leaves on this thread.
        self._lock = threading.RLock()

    def watch(self, watcher: _Watcher) -> bool:
        """Notify ``watcher`` of compilations; returns whether there was none so far."""
        if self._watchers.get(id(watcher)) is not watcher or self._handler() is None:
            with self._lock:
                self._watchers[id(watcher)] = watcher
                # An interpreter that exits has no importers any more.
                if sys.meta_path is not None and self._handler() is None and self._imports not in sys.meta_path:
                    sys.meta_path.insert(0, self._imports)
        self._scripting.wrap()
        self.listen()
        if "torch._dynamo.callback" not in sys.modules:
            # Another thread may have begun to import it.
            return "torch._dynamo" not in sys.modules
        return not has_compiled()

    def listen(self) -> None:
        """Register the callbacks again: Dynamo may have been loaded since, and ``torch._dynamo.reset()`` removes them."""
        handler = self._handler()
        if handler is None or not self._watchers:
            return
        self.optimized.wrap()
        self.log.wrap()
        with contain("watching torch.compile"):
            for callbacks, own in self._places(handler):
                if own not in callbacks:
                    callbacks.append(own)

    def leave(self, *watchers: _Watcher) -> None:
        """Stop notifying ``watchers``."""
        with self._lock:
            for watcher in watchers:
                self._watchers.pop(id(watcher), None)
            # The last model may be collected at any instruction here, and its own leave() removes the entry.
            if not self._watchers:
                take_off(self._imports)
        if not self._watchers:
            self._scripting.unwrap()
        handler = self._handler()
        if handler is not None and not self._watchers:
            self.optimized.unwrap()
            self.log.unwrap()
            with contain("watching torch.compile"):
                for callbacks, own in self._places(handler):
                    if own in callbacks:
                        callbacks.remove(own)

    def _handler(self) -> Any:
        """Dynamo's own list of callbacks; ``None`` if it is not loaded, or not yet that far."""
        return getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)

    def _places(self, handler: Any) -> tuple[tuple[list[Any], Any], ...]:
        return (handler.start_callbacks, self._own[0]), (handler.end_callbacks, self._own[1])

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the lock."""
        self._lock = threading.RLock()
        self._scripting.forked()

    def _all(self) -> list[Any]:
        # The references are listed in one go: a watcher that is collected meanwhile leaves before or after.
        return [watcher for reference in self._watchers.valuerefs() if (watcher := reference()) is not None]

    def _begins(self, *_: Any) -> None:
        for watcher in self._all():
            with contain("watching torch.compile"):
                watcher.compilation_begins()

    def _ends(self, *_: Any) -> None:
        for watcher in self._all():
            with contain("watching torch.compile"):
                watcher.compilation_ends()

    def _scripts(self, begins: bool) -> None:
        for watcher in self._all():
            with contain("watching torch.jit"):
                watcher.scripting(begins=begins)


compiling = Compiling()
"""The one of this process."""
