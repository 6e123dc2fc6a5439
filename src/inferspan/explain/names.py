"""Names that explain reads from recordings beside those of ``semconv``: attributes of the roofline and of recompilations."""

from __future__ import annotations

__all__ = ["BOUND", "COMPILE_EVENTS", "COMPILE_TIME", "FLOPS", "PEAK_SHARE", "RECOMPILES", "TRAFFIC"]

FLOPS = "inferspan.device.flops"
TRAFFIC = "inferspan.device.bytes"
BOUND = "inferspan.device.bound"
PEAK_SHARE = "inferspan.device.peak.share"
RECOMPILES = "inferspan.compile.recompiles"
COMPILE_TIME = "inferspan.compile.time"
COMPILE_EVENTS = "inferspan.compile."
"""Begin of the names of events and of their attributes."""
