"""Version of the installed package."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed

__all__ = ["version"]


@lru_cache(maxsize=1)
def version() -> str:
    """Version of the installed package, ``0+unknown`` from a bare source tree."""
    try:
        return _installed("inferspan")
    except PackageNotFoundError:
        return "0+unknown"
