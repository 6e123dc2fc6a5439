"""The programs that read the configurations; a test that needs one which is not installed is skipped, or fails where it is required."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

# Nothing of the machine's own settings may decide what a configuration means.
OURS = ("OTEL", "JAEGER", "PROM", "GATEWAY", "INFERSPAN", "GRAFANA")


def clean_environment(**added: str) -> dict[str, str]:
    """The environment without the variables that configurations read."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(OURS)}, **added}


@pytest.fixture
def run_tool() -> Run:
    """Run a program to its end; its whole output is in ``stdout``."""

    def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = shutil.which(program)
        if path is None:
            if os.environ.get("REQUIRE_INTEGRATION"):
                pytest.fail(f"REQUIRE_INTEGRATION is set, but {program} is not on PATH")
            pytest.skip(f"{program} is not on PATH")
        return subprocess.run(
            [path, *arguments],
            env=clean_environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )

    return run
