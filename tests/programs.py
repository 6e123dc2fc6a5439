"""Programs that tests run: looked up on PATH, and what it means where one is missing."""

from __future__ import annotations

import os
import shutil

import pytest

__all__ = ["need"]

DEMANDED = ("otelcol", "jaeger", "prometheus", "promtool")
"""What REQUIRE_INTEGRATION asks for. kubectl is a second look at what a schema has checked already."""


def need(*programs: str) -> None:
    """Skip the test where a program is not installed; with ``REQUIRE_INTEGRATION`` set, as in CI, a demanded one is a failure."""
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return
    reason = f"not on PATH: {', '.join(missing)}"
    if os.environ.get("REQUIRE_INTEGRATION") and set(missing) & set(DEMANDED):
        pytest.fail(f"REQUIRE_INTEGRATION is set, but {reason}")
    pytest.skip(reason)
