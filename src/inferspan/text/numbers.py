"""Numbers with their nouns."""

from __future__ import annotations

__all__ = ["counted"]


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: ``1 request``, ``2 requests``.

    Args:
        value: the number.
        noun: for one.
        plural: for all other numbers; default: the noun with an s.
    """
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"
