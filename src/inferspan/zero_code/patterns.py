"""The settings ``include`` and ``exclude``: which models they name, and which of their patterns have named none."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

__all__ = ["Patterns", "class_names"]


def class_names(kind: type) -> tuple[str, ...]:
    """Names by which a pattern may mean a class: ``Net``, ``Outer.Net``, ``package.module.Outer.Net``."""
    return tuple(dict.fromkeys((kind.__name__, kind.__qualname__, f"{kind.__module__}.{kind.__qualname__}")))


class Patterns:
    """Name patterns, as of files, and which of them have matched something.

    Args:
        patterns: of class names or names of models; upper and lower case differ.
    """

    def __init__(self, patterns: Iterable[str] | None) -> None:
        self._patterns = tuple(patterns or ())
        self._matched: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def match(self, names: Iterable[str]) -> bool:
        """Whether a pattern names one of ``names``; all of those that do count as used."""
        given = tuple(names)
        found = {pattern for pattern in self._patterns if any(fnmatchcase(name, pattern) for name in given)}
        self._matched |= found
        return bool(found)

    def match_class(self, kind: type) -> bool:
        """Whether a pattern names the class."""
        return bool(self._patterns) and self.match(class_names(kind))

    @property
    def unused(self) -> list[str]:
        """Patterns that have matched nothing so far, in order."""
        return [pattern for pattern in self._patterns if pattern not in self._matched]
