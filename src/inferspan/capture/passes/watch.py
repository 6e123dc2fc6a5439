"""Wraps methods of libraries around models once the program has loaded them; nothing is imported for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from inferspan.capture.owner import Owner
from inferspan.capture.patching import ClassMethods, Undo

from .offload import HOOKS, METHODS, timed
from .pipelines import BASE, ITERATORS, LISTS, Pipelines
from .serving import SERVING, SUBMITS, THREAD, carried

__all__ = ["LibraryWatch"]


class LibraryWatch:
    """Pipelines of transformers, the thread of its server, and the hooks by which accelerate moves weights.

    Args:
        owner_of: finds the instrumentation of a model, if it has one.
        methods: the wrapped methods that all models share.
        undo: where the way back is put.
    """

    __slots__ = ("_methods", "_undo", "_waiting")

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

    def look(self) -> None:
        """Wrap those that are loaded by now; called at each request, by several threads at once."""
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
