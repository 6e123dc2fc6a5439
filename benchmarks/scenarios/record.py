"""Recording: scenarios run in processes of their own, two at a time, and what they leave becomes one JSON file."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.scenarios.cases import SCENARIOS

__all__ = ["play", "play_process", "read", "record"]

_SIDE_BY_SIDE = 2
_TIMEOUT = 600.0
_VERSIONS = ("torch", "transformers", "opentelemetry-sdk")
_KEPT = ("INFERSPAN_EXTENSION", "INFERSPAN_BUILD_EXTENSION")
_FIXED = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "TRANSFORMERS_VERBOSITY": "critical"}


def play(names: Iterable[str]) -> dict[str, Any]:
    """Run scenarios in this process.

    Args:
        names: of scenarios.

    Returns:
        What each has left, in the plain form; ``{"failed": traceback}`` for one that went wrong.

    Raises:
        KeyError: there is no scenario of such a name.
    """
    from benchmarks.scenarios.run import Run

    found: dict[str, Any] = {}
    for name in names:
        scenario = SCENARIOS[name]
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                left = Run(Path(folder)).play(scenario.play)
                found[name] = json.loads(json.dumps(left))  # as it is read again
            except Exception:
                found[name] = {"failed": traceback.format_exc()}
    return found


def play_process(process: str, target: Path) -> None:
    """Run the scenarios of one process in this one, and write them; used by ``record`` in processes that it starts."""
    names = [name for name, scenario in SCENARIOS.items() if scenario.process == process]
    target.write_text(json.dumps(play(names)), encoding="utf-8")


def _run_process(process: str, folder: Path) -> dict[str, Any]:
    names = [name for name, scenario in SCENARIOS.items() if scenario.process == process]
    target = folder / f"{process}.json"
    environ = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(("OTEL_", "INFERSPAN_"))}
    environ.update(_FIXED, **SCENARIOS[names[0]].environ)
    command = [sys.executable, "-m", "benchmarks.scenarios", "play", process, str(target)]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        message = f"exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    except subprocess.TimeoutExpired:
        message = f"not done in {_TIMEOUT:.0f} s"
    if target.is_file():
        found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return found
    return {name: {"failed": message} for name in names}


def record(target: Path, processes: Sequence[str] | None = None) -> Mapping[str, Any]:
    """Run all scenarios and write what they leave.

    Args:
        target: the JSON file; one scenario a line.
        processes: only the scenarios of these processes.

    Returns:
        Scenarios that failed, by name, with the reason.
    """
    wanted = list(dict.fromkeys(one.process for one in SCENARIOS.values() if processes is None or one.process in processes))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        parts = list(pool.map(lambda process: _run_process(process, Path(folder)), wanted))
    found = {name: one for part in parts for name, one in part.items()}
    head = {"python": sys.version.split()[0], **{name: importlib.metadata.version(name) for name in _VERSIONS}}
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in SCENARIOS if name in found]
    target.write_text(f'{{"versions": {json.dumps(head)},\n"scenarios": {{\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    return {name: one["failed"] for name, one in found.items() if "failed" in one}


def read(path: Path) -> dict[str, Any]:
    """A recorded file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not one.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or "scenarios" not in found:
        raise ValueError(f"{path} holds no scenarios")
    return found
