"""Numbers with units as people read them: ``12.3 ms``, ``1.5 GiB``, ``54.1 tok/s``; ``None`` becomes a dash."""

from __future__ import annotations

__all__ = ["ABSENT", "WIDEST", "bytes_text", "change_text", "count_text", "interval_text", "real_text", "seconds_text"]

ABSENT = "-"
_SECONDS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (1e-6, "us", 1e6))
WIDEST = 1e6
"""Factor between the ends of an interval that still tells something."""
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def real_text(value: float | None, unit: str = "") -> str:
    """Three significant digits, and the unit after a space."""
    if value is None:
        return ABSENT
    size = abs(value)
    if size >= 1e15:
        return f"{value:.2e} {unit}".rstrip()
    digits = 0 if size >= 100 or value == 0 else 1 if size >= 10 else 2 if size >= 1 else 3
    text = f"{value:,.{digits}f}" if size >= 1e-3 or value == 0 else f"{value:.2e}"
    return f"{text} {unit}".rstrip()


def seconds_text(value: float | None) -> str:
    """A duration in s, ms or us."""
    if value is None:
        return ABSENT
    for low, unit, factor in _SECONDS:
        if abs(value) >= low:
            return real_text(value * factor, unit)
    return "0 s" if value == 0 else real_text(value * 1e9, "ns")


def bytes_text(value: float | None) -> str:
    """An amount of memory in binary units."""
    if value is None:
        return ABSENT
    size = float(value)
    for unit in _BYTES:
        if abs(size) < 1024 or unit == _BYTES[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else real_text(size, unit)
        size /= 1024
    raise AssertionError("unreachable")


def change_text(ratio: float) -> str:
    """A ratio as a change in percent, ``+3.3 %``; from 10 on as a factor."""
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %" if ratio < 10 else f"x {real_text(ratio)}"  # -0.0 + 0.0 is 0.0


def interval_text(low: float, high: float) -> str:
    """Ends of the interval of a ratio as changes; few and scattered values allow any change, and their ends would be numbers of no use."""
    return "any change" if high > WIDEST * low else f"{change_text(low)} to {change_text(high)}"


def count_text(value: int | None) -> str:
    """A whole number with thousands separated."""
    return ABSENT if value is None else f"{value:,}"
