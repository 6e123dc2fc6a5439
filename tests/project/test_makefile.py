"""The Makefile: what pip says is kept in a file, and `make clean` removes everything that was made."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A folder like a virtual environment, whose python says 200 lines; it fails for a package named `missing`."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nfor n in $(seq 200); do echo "line $n of $*"; done\ncase "$*" in *missing*) exit 3;; esac\n')
    python.chmod(0o755)
    return tmp_path / "env"


def test_what_pip_says_is_in_the_log(environment: Path) -> None:
    """An installation prints a line for each part, and the log has every line of pip."""
    done = _make(f"VENV={environment}", f"{environment}/demo.stamp")
    log = (environment / "install.log").read_text()
    assert done.returncode == 0 and (environment / "demo.stamp").exists()
    assert len(done.stdout.splitlines()) < 12 and "line 1 of" not in done.stdout
    assert log.count("\n") == 600 and "line 200 of -m pip install --disable-pip-version-check --editable .[demo]" in log


def test_a_failed_installation_shows_the_end_of_the_log(environment: Path) -> None:
    """Where pip fails, make fails, with the end of what pip has said and the name of the log."""
    done = _make(f"VENV={environment}", "TORCH=missing", f"{environment}/demo.stamp")
    assert done.returncode != 0 and not (environment / "demo.stamp").exists()
    assert "line 200 of" in done.stdout and "line 100 of" not in done.stdout and f"the whole log is {environment}/install.log" in done.stdout


def test_clean_removes_what_pictures_left() -> None:
    """Packages of Node.js, what was built of them, and the pictures are among what is removed."""
    told = _make("--dry-run", "clean").stdout
    for name in ("node_modules", "build", "pictures"):
        assert f"grafana/preview/{name}" in told
