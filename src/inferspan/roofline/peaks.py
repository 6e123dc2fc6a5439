"""The ceilings of a device: floating point operations and bytes of memory a second.

In: name of a device and a dtype; what the program, the environment or an earlier measurement of the CPU say. Out: :class:`Peaks`, or
``None`` for a device that nobody has told of. Nothing is measured here.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .cards import CARDS

__all__ = ["Peaks", "apple_chip", "cache_file", "cpu_name", "peaks_of", "read_measured"]


class Peaks(NamedTuple):
    """Ceilings of a device; one that is not known is ``None``."""

    flops: float | None
    """FLOP/s for the dtype."""
    bandwidth: float | None
    """Bytes a second."""


def peaks_of(
    device: str, name: str | None, dtype: str, given: Mapping[str, float] | None = None, *, threads: int = 0,
    environ: Mapping[str, str] | None = None,
) -> Peaks | None:  # fmt: skip
    """The ceilings that count for a model.

    Args:
        device: type of the device, such as ``cuda``.
        name: what its driver calls it; ``None`` for a CPU.
        dtype: of the weights and products, such as ``bfloat16``; ``tf32`` for products of float32 in that format.
        given: ``flops`` or ``bandwidth``, or both, of the setting ``peaks``; these count before all else.
        threads: of a CPU, on which its measured figures depend.
        environ: environment that names the cache, default ``os.environ``.
    """
    flops: float | None = None
    bandwidth: float | None = None
    if device == "cpu":
        measured = read_measured(environ).get(f"{cpu_name()}, {threads} threads", {})
        flops, bandwidth = measured.get(dtype), measured.get("bandwidth")
    elif name is not None and (card := _card(name)) is not None:
        flops, bandwidth = card.flops.get(dtype), card.bandwidth
    flops, bandwidth = (given or {}).get("flops", flops), (given or {}).get("bandwidth", bandwidth)
    return None if flops is None and bandwidth is None else Peaks(flops, bandwidth)


_OTHERS = frozenset({"mig", "laptop", "mobile", "ti", "super", "d"})
"""Words of a slice of a card, or of another card that has the name of one in the table."""


def _card(name: str) -> Any:
    """The row of a card; of several that fit the longest, which tells the variants apart. Other variants and parts of cards have none."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    fitting = [card for card in CARDS if words.issuperset(own := card.name.lower().split()) and not words & _OTHERS.difference(own)]
    return max(fitting, key=lambda card: len(card.name), default=None)


def cpu_name() -> str:
    """What the processor calls itself, or its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def apple_chip() -> str | None:
    """Name of an Apple chip, such as ``Apple M1 Max``; ``None`` on other machines."""
    import ctypes

    if platform.system() != "Darwin":
        return None
    size = ctypes.c_size_t(128)
    text = ctypes.create_string_buffer(size.value)
    failed = ctypes.CDLL(None).sysctlbyname(b"machdep.cpu.brand_string", text, ctypes.byref(size), None, 0)
    return None if failed else text.value.decode("ascii", "replace")


def cache_file(environ: Mapping[str, str] | None = None) -> Path:
    """Where measured figures of CPUs are kept: ``inferspan/peaks.json`` in the user's cache folder."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(environ.get("HOME", "~")).expanduser() / ".cache") / "inferspan" / "peaks.json"


def read_measured(environ: Mapping[str, str] | None = None) -> dict[str, dict[str, float]]:
    """Figures that ``inferspan peaks --measure`` has kept, by processor and threads; empty if there are none that can be read."""
    try:
        found = json.loads(cache_file(environ).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        str(name): {str(key): float(value) for key, value in row.items() if isinstance(value, int | float) and value > 0}
        for name, row in found.items() if isinstance(row, dict)
    }  # fmt: skip
