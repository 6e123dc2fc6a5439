"""Names that explain reads from recordings beside those of ``semconv``: of recompilations."""

from __future__ import annotations

__all__ = ["COMPILE_GUARD", "COMPILE_REASON", "COMPILE_TIME", "FUNCTION", "RECOMPILATION_EVENT", "RECOMPILES"]

RECOMPILES = "inferspan.compile.recompiles"
COMPILE_TIME = "inferspan.compile.time"
RECOMPILATION_EVENT = "inferspan.recompilation"
COMPILE_REASON = "inferspan.compile.reason"
COMPILE_GUARD = "inferspan.compile.guard"
FUNCTION = "code.function.name"
