"""The stack, started once for the integration tests that use it, and the programs whose telemetry they look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.integration.dashboards.paths import running_paths
from tests.integration.dashboards.served import Served, serve
from tests.integration.delivery.fleet import Fleet, running_fleet
from tests.integration.servers import PROGRAMS, Stack, running_stack
from tests.support.distribution import servers_of
from tests.support.programs import need

HERE = Path(__file__).resolve().parent
PROGRAM_TIMEOUT = 600.0

T = TypeVar("T")
RunProgram = Callable[..., dict[str, Any]]


def plain_environment() -> dict[str, str]:
    """The environment without anything that steers telemetry; models are never looked for on a hub."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "INFERSPAN_"))}
    return {**kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class _Running:
    """Servers that tests of several files share; they are stopped after the last of these files, for they cost a third of a core.

    Such files run in one process, one after another (``tests/support/distribution.py``).
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._ends: dict[str, ExitStack] = {}

    def get(self, name: str, start: Callable[[], AbstractContextManager[T]]) -> T:
        """What the fixture of this name has started; started now if nothing runs."""
        if name not in self._values:
            with ExitStack() as ends:
                self._values[name] = ends.enter_context(start())
                self._ends[name] = ends.pop_all()
        value: T = self._values[name]
        return value

    def stop_others(self, kept: str | None) -> None:
        """Stop all but those of this name."""
        for name in self._values.keys() - {kept}:
            del self._values[name]
            self._ends.pop(name).close()


_running = _Running()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the fixtures of the last test of a file, those of the whole file included."""
    if nextitem is None:
        _running.stop_others(None)
    elif nextitem.path != item.path:
        _running.stop_others(servers_of(nextitem.nodeid))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """Collector, Jaeger and Prometheus; skipped where a program is not installed, unless it is required."""
    need(*PROGRAMS)
    return _running.get("stack", lambda: running_stack(tmp_path_factory.mktemp("stack"), plain_environment()))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Programs have served models, and their telemetry has arrived by OTLP, by scrape and through agent and gateway."""
    need(*PROGRAMS)

    @contextmanager
    def start() -> Iterator[Served]:
        with running_paths(tmp_path_factory.mktemp("paths"), plain_environment()) as paths:
            yield serve(paths, tmp_path_factory.mktemp("programs"), plain_environment())

    return _running.get("served", start)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Agents and gateways, made by the test as it needs them."""
    with running_fleet(tmp_path, plain_environment()) as running:
        yield running


@pytest.fixture(scope="session")
def run_program(tmp_path_factory: pytest.TempPathFactory) -> RunProgram:
    """Run a script, named by its path from this folder, in a process of its own; what it says it did comes back as a dictionary."""

    def run(script: str, **environment: str) -> dict[str, Any]:
        truth = tmp_path_factory.mktemp("program") / "truth.json"
        result = subprocess.run(
            [sys.executable, str(HERE / script), str(truth)],
            cwd=truth.parent,
            env={**plain_environment(), **environment},
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIMEOUT,
            check=False,
        )
        assert result.returncode == 0, f"{script}\n{result.stdout[-4000:]}\n{result.stderr[-8000:]}"
        return {**json.loads(truth.read_text()), "output": result.stdout + result.stderr}

    return run
