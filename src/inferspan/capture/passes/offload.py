"""Time that requests spend on moving offloaded weights, as accelerate does before and after each call of a module."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from inferspan.capture.call import current
from inferspan.guard import read_attribute

__all__ = ["HOOKS", "METHODS", "timed"]

HOOKS = "accelerate.hooks"
METHODS = ("pre_forward", "post_forward")
"""Of ``AlignDevicesHook``: weights come in before a call, and leave after it. None of them runs inside another."""


def timed(original: Any, hook: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around these methods: add their time to the requests that run on the thread."""
    call = current.call
    if call is None or not read_attribute(hook, "offload", False):
        return original(*args, **kwargs)
    began = perf_counter_ns()
    try:
        return original(*args, **kwargs)
    finally:
        took = perf_counter_ns() - began
        while call is not None:
            call.moving_ns += took
            call = call.outer
