"""Functions that run once a module has been imported, by any code at any time; nothing is imported here.

An entry of ``sys.meta_path`` asks the other entries for the module and puts a function around its execution, for that one import. The
loader, the spec and the module are those that the program would have had. A module that cannot be imported fails with its own traceback.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from inferspan.capture.compile.importers import take_off
from inferspan.guard import contain

__all__ = ["ImportWatch"]

_IMPORTLIB = "<frozen importlib._bootstrap_external>"


class ImportWatch:
    """Runs functions after the import of modules, from ``install()`` to ``remove()``."""

    def __init__(self) -> None:
        self._after: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._searching = threading.local()

    def after(self, name: str, function: Callable[[ModuleType], None]) -> None:
        """Call ``function`` with the module ``name`` once it has been imported; at once if it has been already."""
        self._after.setdefault(name, []).append(function)
        module = sys.modules.get(name)
        # A module that is being imported now is not complete.
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            _run(function, module)

    def forget(self, name: str, function: Callable[[ModuleType], None]) -> None:
        """Undo one ``after``; with the last one the watch ends as well, until the next ``install()``."""
        with contextlib.suppress(KeyError, ValueError):
            self._after[name].remove(function)
        if not any(self._after.values()):
            take_off(self)
            # Another thread may have added one meanwhile, and have found the watch installed. No lock: a model may be collected anywhere.
            if any(self._after.values()):
                self.install()

    def install(self) -> None:
        """Begin to watch."""
        # An interpreter that exits has no importers any more.
        if sys.meta_path is not None and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Watch no longer; imports that run now end without the functions."""
        self._after.clear()
        take_off(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Called by Python for each module that is imported for the first time, or again."""
        if name not in self._after or getattr(self._searching, "name", None) == name:
            return None
        self._searching.name = name
        try:
            spec = _find(name, path, target, self)
        finally:
            self._searching.name = None
        with contain("import of a library"):
            loader = getattr(spec, "loader", None)
            # The loader of a source file belongs to one module, that of an archive to all in it; others are classes.
            if hasattr(loader, "exec_module") and hasattr(loader, "__dict__") and not isinstance(loader, type):
                _after_execution(loader, name, lambda module: self._executed(name, module))
        return spec

    def _executed(self, name: str, module: ModuleType) -> None:
        for function in tuple(self._after.get(name, ())):
            _run(function, module)


def _find(name: str, path: Any, target: Any, without: object) -> Any:
    """What the other entries of ``sys.meta_path`` find."""
    for finder in tuple(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if finder is not without and find is not None:
            spec = find(name, path, target)
            if spec is not None:
                return spec
    return None


def _run(function: Callable[[ModuleType], None], module: ModuleType) -> None:
    with contain("import of a library"):
        function(module)


def _after_execution(loader: Any, name: str, done: Callable[[ModuleType], None]) -> None:
    """Call ``done`` with the module ``name`` once ``loader`` has executed it."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        if module.__name__ != name:
            execute(module)
            return
        # There may be another one of ours inside.
        vars(loader).pop("exec_module", None)
        execute(module)
        done(module)

    # Python leaves its own frames out of the traceback of a failed import, those between two of them included, by the name of the file.
    exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORTLIB)
    loader.exec_module = exec_module
