"""The thread on which ``transformers serve`` runs ``generate()``: what is given to it runs in the context of who gives it.

Without that a request would not know the HTTP request that it answers. In: functions for the thread. Out: the same, which see the caller's
context variables; results and exceptions are untouched.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import Any

__all__ = ["SERVING", "SUBMITS", "THREAD", "carried"]

SERVING, THREAD = "transformers.cli.serving.utils", "InferenceThread"
SUBMITS = ("submit", "async_submit")
"""Methods that take a function first, and the function's arguments after it."""


def carried(original: Any, thread: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around these methods."""
    if not args or not callable(args[0]):
        return original(*args, **kwargs)
    return original(partial(copy_context().run, args[0]), *args[1:], **kwargs)
