"""Names that explain reads from recordings beside those of ``semconv``: of the roofline, and of recompilations."""

from __future__ import annotations

__all__ = ["BOUND", "COMPILE_GUARD", "COMPILE_REASON", "COMPILE_TIME", "FUNCTION", "PEAK_SHARE", "RECOMPILATION_EVENT", "RECOMPILES"]

BOUND = "inferspan.device.bound"
PEAK_SHARE = "inferspan.device.peak.share"
RECOMPILES = "inferspan.compile.recompiles"
COMPILE_TIME = "inferspan.compile.time"
RECOMPILATION_EVENT = "inferspan.recompilation"
COMPILE_REASON = "inferspan.compile.reason"
COMPILE_GUARD = "inferspan.compile.guard"
FUNCTION = "code.function.name"
