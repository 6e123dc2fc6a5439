"""What differs from run to run is masked: its presence, type and length stay.

The names stand here and are not taken from the library: what is compared must not decide what is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["attributes", "hidden", "is_masked_metric", "resource"]

_VARYING = frozenset(
    {
        "inferspan.time_to_first_token",
        "inferspan.time_per_output_token",
        "inferspan.tokens_per_second",
        "inferspan.prefill.tokens_per_second",
        "inferspan.tokens.intervals",
        "inferspan.memory.start",
        "inferspan.memory.end",
        "inferspan.memory.peak",
        "inferspan.memory.peak_exact",
        "inferspan.energy",
        "inferspan.energy_per_output_token",
        "inferspan.device.time",
        "inferspan.profiler.kernel_time",
        "inferspan.kernel.queue_time",
        "inferspan.kernel.correlation",
        "inferspan.kernel.stream",
        "gen_ai.response.time_to_first_chunk",
        "exception.stacktrace",
    }
)
_VARYING_PREFIXES = ("gen_ai.latency.",)
_MACHINE = ("process.", "system.", "cpython.", "hw.", "inferspan.gpu.", "inferspan.torch.")


def hidden(value: Any) -> str:
    """The type of a value, and the length of a list."""
    if isinstance(value, list | tuple):
        kinds = sorted({type(part).__name__ for part in value})
        return f"<{', '.join(kinds)} x {len(value)}>"
    return f"<{type(value).__name__}>"


def attributes(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Attributes by name, those that vary masked; tuples as lists."""
    masked: dict[str, Any] = {}
    for key, value in sorted((found or {}).items()):
        if key in _VARYING or key.startswith(_VARYING_PREFIXES):
            masked[key] = hidden(value)
        else:
            masked[key] = list(value) if isinstance(value, tuple) else value
    return masked


def resource(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Keys of a resource with types: values name the machine, the process and versions."""
    return {key: hidden(value) for key, value in sorted((found or {}).items())}


def is_masked_metric(name: str, unit: str) -> bool:
    """Whether the values of a metric are times or readings of the machine."""
    return unit == "s" or name.startswith(_MACHINE)
