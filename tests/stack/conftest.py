"""The command ``inferspan stack`` in a folder of its own, with fake servers on PATH, and a look at every process that it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

FAKE = Path(__file__).with_name("fake_server.py")
MARK = "STACK_TEST_FOLDER"


class StackCommand:
    """Runs ``inferspan stack`` as a user would; each instance has programs, folder and environment of its own.

    Args:
        root: an empty folder.
        path: PATH with real programs; default: one with fakes only.
    """

    def __init__(self, root: Path, path: str | None = None) -> None:
        self.folder = root / "state"
        self.bin = root / "bin"
        self.bin.mkdir(parents=True)
        for name in () if path else ("otelcol", "jaeger", "prometheus"):
            self.add_program(name)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "INFERSPAN_", "OTELCOL_", "JAEGER_"))}
        self.environment = {**kept, "PATH": path or str(self.bin), MARK: str(root), "COLUMNS": "80"}

    def add_program(self, name: str) -> Path:
        """Put a fake on PATH."""
        path = self.bin / name
        path.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(FAKE.parent)!r})\nimport fake_server\nfake_server.main({name!r})\n"
        )
        path.chmod(0o755)
        return path

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Begin a command."""
        command, *rest = arguments
        return subprocess.Popen(
            [sys.executable, "-m", "inferspan", "stack", command, "--dir", str(self.folder), *rest],
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Run a command to its end: exit code, output, errors."""
        with self.start(*arguments, **environment) as process:
            out, err = process.communicate(timeout=240)
        return process.returncode, out, err

    def up(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Start a stack on free ports."""
        return self("up", "--free-ports", *arguments, **environment)

    def processes(self) -> list[psutil.Process]:
        """Every process that comes from this stack, by a variable that all of them inherit."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.environment[MARK] and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def left(self) -> list[str]:
        """What still runs after a few seconds in which it may end."""
        deadline = time.monotonic() + 60
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [process.name() for process in found]


def eventually(look: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[StackCommand]:
    """A stack that is ended with the test, whatever the test did."""
    command = StackCommand(tmp_path)
    yield command
    for process in command.processes():
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
