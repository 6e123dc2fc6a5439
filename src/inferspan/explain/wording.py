"""Numbers of causes as people read them."""

from __future__ import annotations

__all__ = ["bytes_text", "percent", "seconds_text", "times"]

_SECONDS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "us", 1e6))


def percent(share: float) -> str:
    """A share of 0 to 1 with two digits, whole from 1 % on."""
    return f"{share * 100:.0f} %" if share >= 0.01 or share == 0 else f"{share * 100:.1g} %"


def seconds_text(seconds: float) -> str:
    """A duration with three digits."""
    unit, factor = next((unit, factor) for low, unit, factor in _SECONDS if abs(seconds) >= low)
    value = seconds * factor
    return f"{value:.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def bytes_text(size: float) -> str:
    """An amount of memory in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def times(ratio: float) -> str:
    """A ratio such as ``3.2 times``."""
    return f"{ratio:.2g} times" if ratio < 10 else f"{ratio:.0f} times"
