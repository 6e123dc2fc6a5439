"""``python -m benchmarks.batching`` as a program: a small run from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_small_run(tmp_path: Path) -> None:
    """Both parts are measured, every request is at the receiver, and the file has the lines that were printed."""
    command = [sys.executable, "-m", "benchmarks.batching", "--model", "tiny", "--rounds", "1", "--concurrent", "3", "--tokens", "4"]
    command += ["--requests", "70", "--threads", "1", "--json", str(tmp_path / "found.json")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [line["way"] for line in found["pace"]] == ["A/A", "default"]
    assert [line["requests"] for line in found["memory"]] == [*map(str, range(7, 71, 7)), "growth over the last 80 %"]
    assert "| default |" in run.stdout
