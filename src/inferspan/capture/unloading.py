"""Follows a model out of its wrapper: ``merge_and_unload()`` and ``unload()`` of PEFT return the model inside, which is used from then on.

In: the methods of the instrumented model and of modules in it. Out: a call of the instrumentation with the module that was returned. The
result passes through untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from inferspan.guard import contain

from .patching import ClassMethods

__all__ = ["UNLOADING", "around_unloading", "watch_unloading"]

UNLOADING = ("merge_and_unload", "unload")


def around_unloading(holders: Callable[[nn.Module], Iterable[Callable[[nn.Module], None]]]) -> Any:
    """Wrapper of the methods; ``holders(module)`` gives a function to follow for each instrumented model that holds ``module``."""

    def unload(original: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        follow: list[Callable[[nn.Module], None]] = []
        inside: set[int] = set()
        with contain("unloading of adapters"):
            # Looked at before: the call takes the structure apart.
            follow = [*holders(module)]
            inside = {id(part) for part in module.modules()} - {id(module)} if follow else set()
        result = original(*args, **kwargs)
        with contain("unloading of adapters"):
            if isinstance(result, nn.Module) and id(result) in inside:
                for one in follow:
                    one(result)
        return result

    return unload


def watch_unloading(model: nn.Module, methods: ClassMethods, around: Any) -> Iterable[Callable[[], None]]:
    """Wrap the methods of the classes in ``model`` that have them; gives what undoes it."""
    for kind in {type(module) for module in model.modules()}:
        for name in UNLOADING:
            if callable(getattr(kind, name, None)):
                yield methods.acquire(kind, name, around)
