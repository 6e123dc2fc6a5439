"""Calls of an ``OptimizedModule``, the result of ``torch.compile(model)``.

Dynamo inlines the call of a module of ``torch.nn`` itself, so that nothing on the module sees it. ``OptimizedModule.__call__`` is wrapped
instead while a model is instrumented. Dynamo never traces it: an ``OptimizedModule`` inside compiled code stands for the module in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

from inferspan.guard import contain

from .state import leave_frame, loaded

__all__ = ["OptimizedModules", "is_exporting", "runs_disabled", "shows_call"]

_MISSING = object()
Around = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class OptimizedModules:
    """Wraps ``OptimizedModule.__call__``, once Dynamo is loaded."""

    def __init__(self) -> None:
        self.around: Around | None = None
        """Called as ``around(original, module, args, kwargs)`` instead of the method."""
        self._wrapped: tuple[Any, Any, Any] | None = None

    def wrap(self) -> None:
        """Wrap the method, unless it is wrapped or not there yet."""
        kind, around = loaded("torch._dynamo.eval_frame", "OptimizedModule"), self.around
        if kind is None or around is None or self._wrapped is not None:
            return
        with contain("watching torch.compile"):
            own = kind.__dict__.get("__call__", _MISSING)
            original = kind.__call__

            @leave_frame
            @functools.wraps(original)
            def call(self: Any, *args: Any, **kwargs: Any) -> Any:
                return around(original, self, args, kwargs)

            # First, or two threads might wrap it twice.
            self._wrapped = (kind, call, own)
            kind.__call__ = call

    def unwrap(self) -> None:
        """Restore the method; a wrapper of another library on top stays, and ours under it does nothing for models that are closed."""
        wrapped, self._wrapped = self._wrapped, None
        if wrapped is None:
            return
        kind, call, own = wrapped
        if kind.__dict__.get("__call__") is call:
            if own is _MISSING:
                del kind.__call__
            else:
                kind.__call__ = own


def _compiled_callable(module: Any) -> Any:
    names = module.__dict__
    return getattr(names.get("_forward") or names.get("forward"), "_torchdynamo_orig_callable", None)


def shows_call(module: Any) -> bool:
    """Whether an ``OptimizedModule`` calls the module in it outside of compiled code, so that an observer on that module sees the call."""
    inner = _compiled_callable(module)
    return type(inner) is MethodType and inner.__self__ is module._orig_mod


def runs_disabled(module: Any) -> bool:
    """Whether an ``OptimizedModule`` comes from ``torch.compiler.disable``, so that nothing of it is compiled."""
    kind = loaded("torch._dynamo.eval_frame", "DisableContext")
    return kind is not None and isinstance(module.__dict__.get("dynamo_ctx"), kind)


def is_exporting(module: Any) -> bool:
    """Whether an ``OptimizedModule`` was made to export the module in it, as ``torch.export`` does up to torch 2.8 or so."""
    return bool(getattr(module.__dict__.get("dynamo_ctx"), "export", False))
