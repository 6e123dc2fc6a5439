"""The setting ``peaks``: ceilings of the device that the user gives."""

from __future__ import annotations

import math

from inferspan.setting_checks import fail
from inferspan.text.lists import pairs

__all__ = ["peaks"]

_NAMES = ("flops", "bandwidth")
_ALLOWED = "use a mapping of flops (FLOP/s) and bandwidth (bytes a second), or text such as flops=989e12,bandwidth=4.8e12"


def peaks(name: str, value: object) -> tuple[tuple[str, float], ...]:
    """Check the value of the setting.

    Args:
        name: of the setting.
        value: a mapping of ``flops`` and ``bandwidth`` to numbers above 0, or text of the form ``flops=...,bandwidth=...``.

    Raises:
        SettingsError: it is something else.
    """
    given: dict[object, object]
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",") if part.strip()]
        given = {key.strip(): number.strip() for key, _, number in parts}
    else:
        try:
            given = pairs(value)
        except Exception:  # neither, or an object that only looks like a mapping
            raise fail(name, value, _ALLOWED) from None
    found = []
    for key, number in given.items():
        try:
            ceiling = float(number)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise fail(name, value, _ALLOWED) from None
        if key not in _NAMES or isinstance(number, bool) or not math.isfinite(ceiling) or ceiling <= 0:
            raise fail(name, value, _ALLOWED)
        found.append((str(key), ceiling))
    if not found:
        raise fail(name, value, _ALLOWED)
    return tuple(sorted(found))
