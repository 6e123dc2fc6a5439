"""The workflow of the example: its YAML is what GitHub reads, and its commands do what they promise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferspan.report.session import read_session
from tests.diff.recordings import noise, write

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.integration
EXAMPLE = Path(__file__).parents[3] / "examples" / "ci_gate"
ROOT = EXAMPLE.parents[1]


def job() -> dict[str, Any]:
    """The one job of the workflow."""
    found = yaml.safe_load((EXAMPLE / "inferspan-gate.yml").read_text())["jobs"]["gate"]
    assert isinstance(found, dict)
    return found


def run(step: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step of the workflow as its runner does, with inferspan and Python of this test."""
    (command,) = [one["run"] for one in job()["steps"] if one["name"] == step]
    own = {"GITHUB_WORKSPACE": str(folder), "GITHUB_STEP_SUMMARY": str(folder / "step.md"), "PYTHONPATH": str(ROOT / "src")}
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **job()["env"], **own, "PATH": path, **variables}
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    for name, words in (("python", ""), ("inferspan", "-m inferspan ")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (commands / name).chmod(0o755)
    # -e -o pipefail: the shell that a step gets.
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", command],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_every_step_does_one_thing() -> None:
    """It uses an action of a fixed version, or runs commands."""
    steps = job()["steps"]
    assert [step["name"] for step in steps if ("uses" in step) == ("run" in step)] == []
    assert [step["uses"] for step in steps if "uses" in step and "@v" not in step["uses"]] == []


def test_the_workflow_begins_with_a_pull_request() -> None:
    """YAML reads the key ``on`` as true."""
    assert yaml.safe_load((EXAMPLE / "inferspan-gate.yml").read_text())[True] == "pull_request"


def test_both_sides_are_recorded_in_turns(tmp_path: Path) -> None:
    """Each with its own code; runs are kept apart."""
    for side in ("base", "new"):
        shutil.copytree(EXAMPLE, tmp_path / side)
    (tmp_path / "new" / "model.py").write_text((EXAMPLE / "model.py").read_text().replace("class Classifier", "class Other") + "\n\nClassifier = Other\n")
    done = run("Record both in turns", tmp_path, ROUNDS="2")
    assert done.returncode == 0, done.stderr
    sessions = [read_session(tmp_path / f"{side}.jsonl") for side in ("base", "new")]
    assert [{request.span.name for request in session.requests} for session in sessions] == [{"forward Classifier"}, {"forward Other"}]
    assert [len(session.resources) for session in sessions] == [2, 2]
    assert [len(session.requests) for session in sessions] == [102, 102]


@pytest.mark.parametrize(("factor", "code", "first"), [(1.0, 0, "### no regression"), (1.05, 1, "### REGRESSION")])
def test_the_verdict_is_the_exit_code_of_the_job(tmp_path: Path, factor: float, code: int, first: str) -> None:
    """And the table is in its summary, with the page beside it."""
    write(tmp_path / "base.jsonl", noise(60, 1))
    write(tmp_path / "new.jsonl", [factor * value for value in noise(60, 2)])
    done = run("Compare", tmp_path)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "step.md").read_text().startswith(first)
    assert (tmp_path / "diff.html").exists()


def test_bad_recordings_fail_the_job(tmp_path: Path) -> None:
    """With the sentence that says why."""
    write(tmp_path / "base.jsonl", noise(60, 1))
    done = run("Compare", tmp_path)
    assert done.returncode == 2
    assert "new.jsonl" in done.stderr
