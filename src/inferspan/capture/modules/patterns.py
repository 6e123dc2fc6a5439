"""Whether a module is meant by a pattern: a name, a group, a regular expression, a class or a predicate."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from inferspan.setting_checks import MODULE_GROUPS, SettingsError, brief

__all__ = ["Paths", "Pattern", "glob_of", "matches", "paths_of"]

Pattern = str | type | Callable[[str, nn.Module], Any]
Paths = dict[int, Sequence[str]]
"""All paths of the modules that have several, by the identity of the module."""
MOST_VISITS = 1 << 16
"""Paths that are looked at: shared modules that hold shared ones have a number that grows with each level."""


def paths_of(root: nn.Module) -> Paths:
    """The paths of modules that stand at several places of a model, such as tied embeddings."""
    seen, shared, level = {id(root)}, False, [root]
    while level and not shared:
        children = [child for parent in level for _, child in _children(parent)]
        shared = any(id(child) in seen for child in children) or len({id(child) for child in children}) < len(children)
        seen.update(map(id, children))
        level = children
    if not shared:
        return {}
    found: dict[int, list[str]] = {}
    pending: list[tuple[str, nn.Module, frozenset[int]]] = [("", root, frozenset())]
    for prefix, parent, above in pending:  # which grows
        inside = above | {id(parent)}
        for name, child in _children(parent):
            if id(child) not in inside and len(pending) < MOST_VISITS:
                path = f"{prefix}.{name}" if prefix else name
                found.setdefault(id(child), []).append(path)
                pending.append((path, child, inside))
    return {module: paths for module, paths in found.items() if len(paths) > 1}


def glob_of(root: nn.Module | None, glob: str) -> Callable[[str], bool]:
    """Whether a glob means a module of a model, by one of its paths; others of the same module count as well."""
    same = {} if root is None or glob == "*" else {path: paths for paths in paths_of(root).values() for path in paths}
    return lambda path: any(fnmatch.fnmatchcase(one, glob) for one in same.get(path, (path,)))


def _children(parent: nn.Module) -> list[tuple[str, nn.Module]]:
    if issubclass(type(parent), torch.jit.ScriptModule):  # nothing in it can be observed
        return []
    return [(name, child) for name, child in parent._modules.items() if child is not None]


def matches(path: str, module: nn.Module, pattern: Pattern, where: str = "inferspan setting 'modules'", paths: Paths | None = None) -> bool:
    """Whether ``pattern`` means a module, at any of its paths.

    Args:
        path: of the module in its model.
        module: the module.
        pattern: a path or glob (``model.layers.*.mlp``), ``re:`` and a regular expression that is matched from the start of the path, a
            group of ``MODULE_GROUPS``, the exact name of a class or of one of its bases, a class, or a function of path and module.
        where: what the pattern was given to, for the error.
        paths: of ``paths_of``; without it a module has no other path.

    Raises:
        SettingsError: the function raised.
    """
    others = () if paths is None else paths.get(id(module), ())
    return any(_matches(one, module, pattern, where) for one in dict.fromkeys((path, *others)))


def _matches(path: str, module: nn.Module, pattern: Pattern, where: str) -> bool:
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
