"""Programs that tests run: looked up on PATH, and what it means where one is missing; and processes for parts of a test."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

__all__ = ["elsewhere", "need"]

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


def elsewhere(function: Callable[..., Any], *args: Any) -> Any:
    """What ``function`` returns in a new process: providers that it sets for the program do not stay for other tests.

    Args:
        function: of a module of tests, not nested.
        args: that can be pickled, as must be what it returns.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result(timeout=120)
