"""Runs the scripts of hard situations that are kept beside the repository: each builds one that broke other tools.

The folder is ``HARD_CASES`` or ``../shared/cases``; without it there is nothing to run, and the tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

FOLDER = Path(os.environ.get("HARD_CASES") or Path(__file__).resolve().parents[3] / "shared" / "cases")
CASES = sorted((*FOLDER.glob("[0-9]*.py"), *FOLDER.glob("open/[0-9]*.py")), key=lambda path: path.name)
NONE = pytest.param(None, marks=pytest.mark.skip(reason=f"no case in {FOLDER}"), id="none")
TIMEOUT = 600.0


@pytest.mark.parametrize("case", [pytest.param(case, id=case.stem) for case in CASES] or [NONE])
def test_case(case: Path, tmp_path: Path) -> None:
    """The script exits with 0 and prints ``ok``."""
    environment = {**os.environ, "LIB": "inferspan", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, str(case)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert result.returncode == 0, f"{case.name}\n{result.stdout[-4000:]}\n{result.stderr[-8000:]}"
    assert result.stdout.splitlines()[-1:] == ["ok"]
