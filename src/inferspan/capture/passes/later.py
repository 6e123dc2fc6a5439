"""Results of a forward pass that have not run anything when it returns: generators, coroutines, other iterators and awaitables.

They are the program's own objects and not wrapped, so their end is not seen.
"""

from __future__ import annotations

from types import AsyncGeneratorType, CoroutineType, GeneratorType

__all__ = ["runs_later"]

_KINDS = {GeneratorType: "generator", AsyncGeneratorType: "async generator", CoroutineType: "coroutine"}


def runs_later(output: object) -> str | None:
    """The kind of a result whose code runs later; ``None`` for any other result."""
    kind = type(output)
    if kind in _KINDS:
        return _KINDS[kind]
    if hasattr(kind, "__await__"):
        return "awaitable"
    return "iterator" if hasattr(kind, "__next__") or hasattr(kind, "__anext__") else None
