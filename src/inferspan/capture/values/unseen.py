"""Operations of ours that modes of the program do not see.

A program may count operations, such as by ``FlopCounterMode``, or change them. What inferspan computes is none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["hidden", "modes", "unseen"]

P = ParamSpec("P")
R = TypeVar("R")
_functions: Any = torch._C._is_torch_function_mode_enabled
_dispatches: Any = torch._C._len_torch_dispatch_stack
_AS_IT_IS: AbstractContextManager[None] = nullcontext()


@contextmanager
def _without_modes() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def unseen() -> AbstractContextManager[None]:
    """A context without modes of torch functions and of the dispatcher on this thread; they are back, in their order, after it."""
    return _without_modes() if _functions() or _dispatches() else _AS_IT_IS


def modes() -> bool:
    """Whether a mode of the program, or one of ours, would see operations on this thread; two calls in C."""
    return bool(_functions() or _dispatches())


def hidden(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of ours whose operations are unseen; one that runs in each step calls ``modes`` itself."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if _functions() or _dispatches():
            with _without_modes():
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return call
