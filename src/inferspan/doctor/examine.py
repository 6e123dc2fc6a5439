"""Runs the probe and collects its findings.

In comes a :class:`Command`; out comes a :class:`Result`. A probe that crashes, hangs or cannot start is a finding.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferspan.doctor.command import Command
from inferspan.doctor.findings import PROBLEM, WARNING, Finding, problem

__all__ = ["LONGEST", "Result", "examine"]

LONGEST = 180.0
"""Seconds that the probe may take: the import of torch from a slow disk takes most of them."""


@dataclass
class Result:
    """Findings by topic, in their order."""

    topics: dict[str, list[Finding]] = field(default_factory=dict)

    def of(self, *states: str) -> list[Finding]:
        """Findings in one of these states."""
        return [finding for findings in self.topics.values() for finding in findings if finding.state in states]

    @property
    def problems(self) -> list[Finding]:
        """What does not work."""
        return self.of(PROBLEM)

    @property
    def warnings(self) -> list[Finding]:
        """What is missing without harm."""
        return self.of(WARNING)


def examine(command: Command, outside: Mapping[str, str], *, has_command: bool, send: bool, seconds: float) -> Result:
    """Run the probe instead of the program.

    Args:
        command: how to run it.
        outside: environment of the caller.
        has_command: whether it stands in for a program.
        send: whether test requests are sent.
        seconds: time limit of each connection and request.
    """
    result = Result()
    options = {
        "outside": {name: value for name, value in outside.items() if name.startswith(("OTEL_", "INFERSPAN_"))},
        "program": command.program,
        "name": command.name,
        "started_by": command.started_by,
        "command": has_command,
        "send": send,
        "seconds": seconds,
    }
    with tempfile.TemporaryDirectory(prefix="inferspan-doctor-") as folder:
        output, log = Path(folder) / "findings", Path(folder) / "log"
        words = [*command.prefix, "-m", "inferspan.doctor.probe", str(output), json.dumps(options)]
        with log.open("wb") as said:
            ended = _run(words, command.environ, said)
        begun = _read(output, result)
        if begun is not None:
            result.topics[begun or "start"] = [_failed(command, begun, ended, log.read_text(errors="replace"))]
    return result


def _run(words: list[str], environ: Mapping[str, str], said: Any) -> int | str:
    try:
        process = subprocess.Popen(words, env=dict(environ), stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    except OSError as error:
        return error.strerror or str(error)
    try:
        return process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        return f"it took longer than {LONGEST:g} s"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _read(output: Path, result: Result) -> str | None:
    """Fill the result; the topic in which the probe has ended, empty if in none, ``None`` if it came to its end."""
    begun = ""
    try:
        lines = output.read_text(encoding="utf-8").splitlines()
    except OSError:
        return begun
    for line in lines:
        found = json.loads(line)
        if "end" in found:
            return None
        if "begin" in found:
            begun = found["begin"]
        else:
            result.topics[found["topic"]] = [Finding(**finding) for finding in found["findings"]]
            begun = ""
    return begun


def _failed(command: Command, begun: str, ended: int | str, said: str) -> Finding:
    python = next((word for word in command.prefix if "python" in os.path.basename(word)), sys.executable)
    missing = re.search(r"No module named '?([\w.]+)", said)
    if missing is not None and not begun:
        name = missing[1].partition(".")[0]
        package = "inferspan" if name == "opentelemetry" else name
        return problem(name, f"it is not installed for {python}", f"{python} -m pip install {package}")
    if isinstance(ended, str):
        why = ended
    elif ended < 0:
        known = {each.value: each.name for each in signal.Signals}
        why = f"it was ended by {known.get(-ended, f'signal {-ended}')}"
    else:
        why = f"it ended with exit code {ended}"
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    what = f"while looking at {begun}" if begun else f"before it began ({python})"
    text = f"{why} {what}{': ' + last.strip()[:300] if last else ''}"
    return problem("doctor", text, f"start {python} by hand, and import what it was looking at")
