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

__all__ = ["AS_IT_IS", "dispatches", "functions", "hidden", "modes", "unseen", "without_modes"]

P = ParamSpec("P")
R = TypeVar("R")
functions: Any = torch._C._is_torch_function_mode_enabled
"""In C: whether there is a mode of functions on this thread."""
dispatches: Any = torch._C._len_torch_dispatch_stack
"""In C: how many modes of the dispatcher there are."""
AS_IT_IS: AbstractContextManager[None] = nullcontext()


@contextmanager
def without_modes() -> Iterator[None]:
    """A context without modes; for code that runs in each step and asks ``functions`` and ``dispatches`` itself, see ``unseen``."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def unseen() -> AbstractContextManager[None]:
    """A context without modes of torch functions and of the dispatcher on this thread; they are back, in their order, after it."""
    return without_modes() if functions() or dispatches() else AS_IT_IS


def modes() -> bool:
    """Whether a mode of the program, or one of ours, would see operations on this thread; two calls in C."""
    return bool(functions() or dispatches())


def hidden(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of ours whose operations are unseen; one that runs in each step calls ``modes`` itself."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if functions() or dispatches():
            with without_modes():
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return call
