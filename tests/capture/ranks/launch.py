"""Starts a job of two ranks and reads what they have recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from inferspan.report.session import Session, read_sessions

__all__ = ["ran"]

ROOT = Path(__file__).resolve().parents[3]


def ran(job: str, folder: Path) -> Session:
    """Run the module of this folder that has this name by torchrun; the session of both ranks."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "INFERSPAN_"))}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", f"tests.capture.ranks.{job}", str(folder)],
        env={**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}, cwd=ROOT, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    return read_sessions(sorted(folder.glob("*.jsonl")))
