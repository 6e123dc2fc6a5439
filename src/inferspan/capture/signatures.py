"""Names of the parameters of a model's ``forward``: which argument a positional one is."""

from __future__ import annotations

import inspect
import itertools
import weakref
from typing import Any

__all__ = ["positional_names"]

_known: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()
"""By class, held weakly: a notebook defines its model's class again and again."""


def positional_names(kind: type) -> tuple[str, ...]:
    """Names of the positional parameters of a class's ``forward``, without ``self``, up to one that takes several; () if unknown."""
    names = _known.get(kind)
    if names is None:
        names = _known[kind] = _look_up(kind)
    return names


def _look_up(kind: Any) -> tuple[str, ...]:
    try:
        parameters = [*inspect.signature(kind.forward).parameters.values()][1:]
    except (TypeError, ValueError, AttributeError):
        return ()
    named = itertools.takewhile(lambda one: one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD), parameters)
    return tuple(one.name for one in named)
