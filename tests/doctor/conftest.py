"""The doctor in a process of its own, in an environment that a test plants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Told:
    """What the doctor says."""

    code: int
    whole: dict[str, Any]
    text: str

    def topic(self, name: str) -> dict[str, dict[str, str]]:
        """Findings of a topic by name."""
        return {finding["name"]: finding for finding in self.whole["topics"][name]}

    @property
    def problems(self) -> dict[str, tuple[str, str]]:
        """Value and fix of each problem."""
        return {finding["name"]: (finding["value"], finding["fix"]) for finding in self.whole["problems"]}


Doctor = Callable[..., Told]


def clean(environ: dict[str, str]) -> dict[str, str]:
    """The environment without anything that steers telemetry, with some variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "INFERSPAN_"))}
    path = os.pathsep.join(part for part in (environ.get("PYTHONPATH"), kept.get("PYTHONPATH")) if part)
    return {**kept, **environ, **({"PYTHONPATH": path} if path else {})}


@pytest.fixture
def without_torch(tmp_path: Path) -> str:
    """A folder with a torch that imports at once: what it is asked of CUDA is that there is none."""
    folder = tmp_path / "stand-ins"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("class version:\n    cuda = None\n    hip = None\n")
    return str(folder)


@pytest.fixture
def doctor(tmp_path: Path, without_torch: str) -> Doctor:
    """``inferspan doctor --json``; torch is a stand-in unless ``real_torch`` is set, because its import takes seconds."""

    def run(*arguments: object, python: str = sys.executable, real_torch: bool = False, **environ: str) -> Told:
        if not real_torch:
            environ["PYTHONPATH"] = os.pathsep.join(part for part in (environ.get("PYTHONPATH"), without_torch) if part)
        command = [python, "-m", "inferspan", "doctor", "--json", *map(str, arguments)]
        done = subprocess.run(command, env=clean(environ), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode in (0, 1), done.stderr
        assert done.stderr == ""
        return Told(done.returncode, json.loads(done.stdout), done.stdout)

    return run
