"""The optional C extension: whether it was built, loads, is of this version, and is wanted.

In comes an environment; out comes the module, or nothing and the reason, and Python code does the same work. Nothing is raised. One
that is there and cannot be used is logged once, with what to do.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

from . import setting_checks as check
from .settings import EXTENSION_VARIABLE, SettingsError

__all__ = ["ABI", "Extension", "find", "load"]

_log = logging.getLogger("inferspan")
_told: set[str] = set()
"""Lines that have been logged."""

ABI = 13
"""Version of the interface between C and Python: incremented here and in ``csrc/module.c`` with every change of it."""
NAME = "inferspan.capture.modules._recorder"
CONTENTS = (
    "Boundaries", "BoundaryEvents", "CallFigures", "CallLog", "KeptOutputs", "ModuleCaller", "NativeEvents", "PassTemplate",
    "attach_callers", "bind", "count_values", "detach_callers", "moments_of", "reduce_logits", "same_structure",
)  # fmt: skip
"""Names that an extension must have; that of an older working copy may lack some."""
AGAIN = "install inferspan again"


class Extension(NamedTuple):
    """The extension, or why there is none."""

    module: ModuleType | None
    reason: str = ""
    """Why Python code is used; empty with a module."""
    broken: bool = False
    """Whether it is there and cannot be used."""

    def __str__(self) -> str:
        """A few words for people: which of the two records, and why."""
        return "C extension" if self.module is not None else f"Python ({self.reason})"


def find(environ: Mapping[str, str] | None = None, *, name: str = NAME) -> Extension:
    """Look for the extension, without logging the result.

    Args:
        environ: environment to read, default ``os.environ``.
        name: the module to import.
    """
    text = (os.environ if environ is None else environ).get(EXTENSION_VARIABLE, "").strip()
    try:
        if text and not check.boolean("extension", text):
            return Extension(None, f"{EXTENSION_VARIABLE}={text}")
    except SettingsError as error:
        _tell(logging.WARNING, f"{EXTENSION_VARIABLE}={text} is ignored: {error}")
    # No import of the file may raise into the program.
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return Extension(None, "the C extension was not built")
        return _broken(error)
    except Exception as error:
        return _broken(error)
    found = getattr(module, "ABI", None)
    if found != ABI:
        return Extension(None, f"the C extension is of another version of inferspan, ABI {found} where {ABI} is needed: {AGAIN}", True)
    missing = [name for name in CONTENTS if not hasattr(module, name)]
    if missing:
        return Extension(None, f"the C extension is incomplete, without {', '.join(missing)}: {AGAIN}", True)
    return Extension(module)


def load(environ: Mapping[str, str] | None = None, *, name: str = NAME) -> Extension:
    """The extension as the recorder uses it; one that is there and cannot be used is a warning, once.

    Args:
        environ: environment to read, default ``os.environ``.
        name: the module to import.
    """
    found = find(environ, name=name)
    if found.broken:
        _tell(logging.WARNING, f"{found.reason}. Until then module calls are recorded by Python code, which only takes longer")
    else:
        _tell(logging.INFO, f"module calls are recorded by: {found}")
    return found


def _broken(error: Exception) -> Extension:
    words = " ".join(str(error).split())
    return Extension(None, f"the C extension does not load ({type(error).__name__}: {words}): {AGAIN}", True)


def _tell(level: int, line: str) -> None:
    if line not in _told:
        _told.add(line)
        _log.log(level, "%s", line)
