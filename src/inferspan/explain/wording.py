"""Shares and ratios of causes as people read them; durations and sizes are those of ``text/quantities``."""

from __future__ import annotations

__all__ = ["percent", "times"]


def percent(share: float) -> str:
    """A share of 0 to 1 with two digits, whole from 1 % on."""
    return f"{share * 100:.0f} %" if share >= 0.01 or share == 0 else f"{share * 100:.1g} %"


def times(ratio: float) -> str:
    """A ratio such as ``3.2 times``."""
    return f"{ratio:.2g} times" if ratio < 10 else f"{ratio:.0f} times"
