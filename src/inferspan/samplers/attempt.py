"""Readings that may fail: one that does is absent and costs no other.

What a library raises where the system does not answer as it expects is anything: psutil raises ``ValueError``, ``KeyError`` or
``IndexError`` for a line of ``/proc`` that it does not know.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["attempt", "number"]

T = TypeVar("T")
_log = logging.getLogger("inferspan")


def attempt(ask: Callable[..., T], *of: Any) -> T | None:
    """The result of ``ask(*of)``; ``None`` if it raises an ``Exception``."""
    try:
        return ask(*of)
    except Exception as error:
        _log.debug("a reading failed: %r", error)
        return None


def number(ask: Callable[..., object], *of: Any) -> float | None:
    """The finite number that ``ask(*of)`` returns; ``None`` if it raises or returns anything else."""
    value = attempt(ask, *of)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None
