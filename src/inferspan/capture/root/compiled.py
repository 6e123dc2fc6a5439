"""Wrappers for models that are instrumented first and compiled then: of ``model.compile()`` and of calls of an ``OptimizedModule``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn

from inferspan.capture.compile.optimized import is_exporting
from inferspan.capture.compile.state import leave_frame, set_eval_frame
from inferspan.capture.owner import Owner
from inferspan.guard import contain

from .call import OptimizedCall

__all__ = ["around_compile", "around_optimized"]


class _Compilable(Owner, Protocol):
    """An instrumented model that may be compiled."""

    def before_compile(self) -> None:
        """Remove observers that would be compiled with the model."""

    def after_compile(self) -> None:
        """Observe the compiled call, or put the observers back."""

    def sees_call(self, optimized: nn.Module) -> bool:
        """Whether the model's own observer sees the calls of this compiled module."""


TargetsOf = Callable[[object], Sequence[_Compilable]]
"""Returns the instrumentations registered under a module, its own and those of wrappers."""


def around_compile(targets_of: TargetsOf) -> Callable[..., Any]:
    """Wrapper of ``model.compile()``."""

    def compile_(original: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _taken_off([target for target in targets_of(model) if target.model is model]):
            return original(*args, **kwargs)

    return compile_


@contextmanager
def _taken_off(targets: Sequence[_Compilable]) -> Iterator[None]:
    """Keep what observes the models off them meanwhile."""
    for target in targets:
        with contain("model.compile()"):
            target.before_compile()
    try:
        yield
    finally:
        for target in targets:
            with contain("model.compile()"):
                target.after_compile()


def around_optimized(targets_of: TargetsOf) -> Callable[..., Any]:
    """Wrapper of the call of an ``OptimizedModule``, the result of ``torch.compile(model)``."""

    def request_of(original: Callable[..., Any], module: Any) -> OptimizedCall | None:
        inner = module.__dict__.get("_modules", {}).get("_orig_mod")
        for root in (module, inner):
            for target in targets_of(root):
                if target.model is root and target.is_open and not (root is inner and target.sees_call(module)):
                    return OptimizedCall(target, module, original)
        return None

    @leave_frame
    def call(original: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_exporting(module):
            inner = module.__dict__.get("_modules", {}).get("_orig_mod")
            with _taken_off([target for target in targets_of(inner) if target.model is inner]):
                return original(module, *args, **kwargs)
        request: OptimizedCall | None = None
        evaluator = set_eval_frame(None)
        try:
            with contain("start of a forward pass"):
                request = request_of(original, module)
        finally:
            set_eval_frame(evaluator)
        return original(module, *args, **kwargs) if request is None else request(*args, **kwargs)

    return call
