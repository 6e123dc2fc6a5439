"""Operations of ours that modes of the program do not see.

A program may count operations, such as by ``FlopCounterMode``, or change them. What inferspan computes is none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["unseen"]

_functions: Any = torch._C._len_torch_function_stack
_dispatches: Any = torch._C._len_torch_dispatch_stack
_AS_IT_IS: AbstractContextManager[None] = nullcontext()


@contextmanager
def _without_modes() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def unseen() -> AbstractContextManager[None]:
    """A context without modes of torch functions and of the dispatcher on this thread; they are back, in their order, after it."""
    return _without_modes() if _functions() or _dispatches() else _AS_IT_IS
