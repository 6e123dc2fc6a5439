"""Entries of lists and pairs as a user gives them, in code or in a text with commas."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["entries", "pairs", "whole_number"]

_BYTES = (bytes, bytearray, memoryview, array)
"""Sequences of numbers, which nobody means as a list: a text that was encoded by mistake, or nothing."""


def entries(value: object) -> Sequence[Any] | None:
    """The entries of a list, or of a text with commas; ``None`` for anything else: bytes, sets, generators."""
    if isinstance(value, str):
        return value.split(",")
    return value if isinstance(value, Sequence) and not isinstance(value, _BYTES) else None


def pairs(value: object) -> dict[Any, Any]:
    """A mapping, or a list of pairs, as a dict.

    Raises:
        Exception: it is neither, whatever the program's own mapping raises then.
    """
    if isinstance(value, Mapping) or hasattr(value, "keys"):
        return dict(value)  # type: ignore[call-overload, no-any-return]
    found = None if isinstance(value, str) else entries(value)
    # A text of two characters is a pair for Python.
    if found is None or any(isinstance(one, str | set | frozenset) or entries(one) is None for one in found):
        raise TypeError("neither a mapping nor a list of pairs")
    return dict(found)


def whole_number(value: object, limit: int) -> int | None:
    """A number from 0 to below ``limit``, or its digits; ``None`` for anything else, such as true and false."""
    if isinstance(value, str):
        digits = value.strip()
        # ``isdigit()`` alone is true of superscripts as well.
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= len(str(limit)) else -1
    else:
        try:
            number = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
        except Exception:  # no number, or one of the program's
            number = -1
    return number if 0 <= number < limit else None
