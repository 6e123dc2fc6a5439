"""Whether a module is meant by a pattern: a name, a group, a regular expression, a class or a predicate."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Any

from torch import nn

from inferspan.setting_checks import MODULE_GROUPS, SettingsError, brief

__all__ = ["Pattern", "matches"]

Pattern = str | type | Callable[[str, nn.Module], Any]


def matches(path: str, module: nn.Module, pattern: Pattern, where: str = "inferspan setting 'modules'") -> bool:
    """Whether ``pattern`` means a module.

    Args:
        path: of the module in its model.
        module: the module.
        pattern: a path or glob (``model.layers.*.mlp``), ``re:`` and a regular expression that is matched from the start of the path, a
            group of ``MODULE_GROUPS``, the exact name of a class or of one of its bases, a class, or a function of path and module.
        where: what the pattern was given to, for the error.

    Raises:
        SettingsError: the function raised.
    """
    if isinstance(pattern, str):
        words = MODULE_GROUPS.get(pattern)
        if words is not None:
            return any(word in path.lower() for word in words)
        if pattern.startswith("re:"):
            return re.match(pattern[3:], path) is not None
        return fnmatch.fnmatchcase(path, pattern) or any(kind.__name__ == pattern for kind in _kinds(module))
    if isinstance(pattern, type):
        return issubclass(type(module), pattern)
    try:
        return bool(pattern(path, module))
    except Exception as error:
        said = f"{type(error).__name__}: {brief(str(error))}"
        raise SettingsError(f"{where}: the function {brief(pattern)}, called with path and module, raised {said}") from error


def _kinds(module: nn.Module) -> tuple[type, ...]:
    """The class of a module and its bases, up to the one that all modules have."""
    return tuple(kind for kind in type(module).__mro__ if issubclass(kind, nn.Module) and kind is not nn.Module)
