"""Wraps methods of libraries around models once the program has loaded them; nothing is imported for it.

They are wrapped at the end of the library's import, so that its first call is seen, or at the next request, if the import was already
running when the model was instrumented.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from inferspan.capture.compile.state import leave_alone
from inferspan.capture.owner import Owner
from inferspan.capture.patching import ClassMethods, Undo

from .imports import ImportWatch
from .offload import HOOKS, METHODS, timed
from .pipelines import BASE, ITERATORS, LISTS, Pipelines
from .serving import SERVING, SUBMITS, THREAD, carried

__all__ = ["LibraryWatch"]


class _Imports(ImportWatch):
    # Below compiled code that imports something it is a frame that Dynamo would compile.
    find_spec = leave_alone(ImportWatch.find_spec)


_imports = _Imports()
"""That of all instrumented models, in ``sys.meta_path`` as long as there is one."""


class LibraryWatch:
    """Pipelines of transformers, the thread of its server, and the hooks by which accelerate moves weights.

    Args:
        owner_of: finds the instrumentation of a model, if it has one.
        methods: the wrapped methods that all models share.
        undo: where the way back is put.
    """

    __slots__ = ("__weakref__", "_methods", "_undo", "_waiting")

    def __init__(self, owner_of: Callable[[object], Owner | None], methods: ClassMethods, undo: Undo) -> None:
        self._methods, self._undo = methods, undo
        pipelines = Pipelines(owner_of)
        base = [(BASE, "Pipeline", "__call__", pipelines.call), (BASE, "Pipeline", "forward", pipelines.forward)]
        self._waiting: dict[str, list[tuple[str, str, str, Any]]] = {
            ITERATORS: [*base, (ITERATORS, "PipelineIterator", "__next__", pipelines.next)],
            LISTS[0]: [(*LISTS, "__call__", pipelines.call)],
            SERVING: [(SERVING, THREAD, name, carried) for name in SUBMITS],
            HOOKS: [(HOOKS, "AlignDevicesHook", name, timed) for name in METHODS],
        }
        """Rows (module, class, method, wrapper) by the module that is loaded last."""

    def begin(self) -> None:
        """Wrap those that are loaded, and each of the others once it is."""
        # The imports are watched for the whole process, and must not keep the parts of a model that was collected.
        watch = weakref.ref(self)

        def loaded(_: Any) -> None:
            found = watch()
            if found is not None:
                found.look()

        # Any module of a row may be the last one whose import ends.
        for name in {place for rows in list(self._waiting.values()) for place, *_ in rows}:  # a look() on another thread takes rows
            self._undo.push(functools.partial(_imports.forget, name, loaded))
            _imports.after(name, loaded)
        _imports.install()
        self.look()

    def look(self) -> None:
        """Wrap those that are loaded by now; called after imports and at each request, by several threads at once."""
        for module in list(self._waiting) if self._waiting else ():
            if module not in sys.modules:
                continue
            taken = self._waiting.pop(module, [])  # by one of the threads
            rows: list[tuple[Any, str, Any]] = [
                (getattr(sys.modules.get(place), kind, None), name, around) for place, kind, name, around in taken
            ]
            if any(owner is None for owner, _, _ in rows):
                self._waiting[module] = taken  # it is being loaded
                continue
            for owner, name, around in rows:
                self._undo.push(self._methods.acquire(owner, name, around))
