"""Values of a session -> values that a page's script can hold: others become text, or ``None``.

In come attribute values and figures; out come ``None``, booleans, finite floats, integers up to 2**53, texts and lists of those. Larger
integers become text of their digits, maps text of JSON, so that no key of a file is ever a property in the script.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["plain", "plain_values", "rounded", "unknown_as_none"]

_EXACT = 2**53
_LONGEST_TEXT = 1_000_000
_DIGITS_FROM = 1e5
"""From here on six digits would cut off whole units."""


def plain(value: Any) -> Any:
    """A value as it is in the file; a mapping keeps its first level."""
    if isinstance(value, Mapping):
        return {_text(key): _plain(part) for key, part in value.items()}
    return _plain(value)


def plain_values(value: Any) -> Any:
    """Mappings and lists of ours with plain values inside; their keys are ours, not those of a file."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain_values(part) for part in value]
    return _plain(value)


def rounded(value: Any) -> Any:
    """The same with six significant digits: more than a timeline shows, and half the bytes."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.6g}") if abs(value) < _DIGITS_FROM else round(value, 1)
    if isinstance(value, Mapping):
        return {_text(key): rounded(part) if isinstance(part, float) else _plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [rounded(part) if not isinstance(part, Mapping) else _plain(part) for part in value]
    return _plain(value)


def unknown_as_none(value: float | None) -> float | None:
    """A figure that was calculated; an overflow is not known."""
    return value if value is not None and math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if -_EXACT <= value <= _EXACT else str(value)
    if isinstance(value, float):
        return unknown_as_none(value)
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return _text(json.dumps(value, ensure_ascii=False, default=str))
    return str(value)


def _text(value: str) -> str:
    left = len(value) - _LONGEST_TEXT
    return value if left <= 0 else f"{value[:_LONGEST_TEXT]} ... ({left:,} more characters are in the session file)"
