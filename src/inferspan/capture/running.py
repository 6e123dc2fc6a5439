"""Calls that are running, as the Python stack shows them."""

from __future__ import annotations

from types import FrameType

from torch import nn

__all__ = ["invocations"]


def invocations(root: nn.Module, frame: FrameType | None) -> int:
    """How many calls of ``root`` are running on the Python stack below ``frame``."""
    implementation = nn.Module._call_impl.__code__
    found = 0
    while frame is not None:
        if frame.f_code is implementation and frame.f_locals.get("self") is root:
            found += 1
        frame = frame.f_back
    return found
