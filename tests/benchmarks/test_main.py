"""``python -m benchmarks`` as a program: its help, its errors, and a small run from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as program
from benchmarks.models import MODELS
from benchmarks.rows import ROWS, chosen
from benchmarks.steps import plans

ROOT = Path(__file__).parents[2]


def test_tiny(tmp_path: Path) -> None:
    """A small model is measured in one round: every span is at the receiver, and table, Markdown and JSON say the same."""
    command = [sys.executable, "-m", "benchmarks", "--model", "tiny", "--rounds", "1", "--tokens", "4", "--threads", "1"]
    command += ["--rows", "a/a,default,all,naive", "--json", str(tmp_path / "found.json"), "--markdown", str(tmp_path / "found.md")]
    # A variable of the shell must not send the spans elsewhere.
    environ = {**os.environ, "OTEL_TRACES_EXPORTER": "none", "INFERSPAN_MODULES": "none"}
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, env=environ)
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    modules, layers, tokens = 57, 12, 4
    frame = 1 + 2 + tokens
    assert {line["key"]: line.get("spans") for line in found["table"]} == {
        "a/a": "0",
        "default": str(frame + 3 * layers),
        "all": str(frame + tokens * modules),
        "all-device": None,
        "naive": str(tokens * (modules + 1)),
    }
    assert all(line["figures"]["alone"]["pairs"] == 1 for line in found["table"] if "figures" in line)
    assert run.stdout.strip() == (tmp_path / "found.md").read_text().strip()
    assert "INFERSPAN_MODULES is left out of account" in run.stderr and "revision" in found["machine"]


def test_ended_from_outside(tmp_path: Path) -> None:
    """A run that is ended in its last part has left the parts before it in its files."""
    lines = [
        "from benchmarks import __main__ as program",
        'program._SMALL["scale"] = lambda *_: [{"setting": "first"}]',
        "def stop(*_): raise KeyboardInterrupt",
        'program._SMALL["micro"] = stop',
        f'program.main(["--parts", "scale,micro", "--json", {str(tmp_path / "found.json")!r}, "--markdown", {str(tmp_path / "found.md")!r}])',
    ]
    run = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode != 0 and "KeyboardInterrupt" in run.stderr
    assert json.loads((tmp_path / "found.json").read_text())["scale"] == [{"setting": "first"}]
    assert "How the cost grows" in (tmp_path / "found.md").read_text()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names every plan, model, row and part."""
    with pytest.raises(SystemExit) as ended:
        program.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for word in [*plans.PLANS, *MODELS, *plans.PARTS, *(row.key for row in ROWS)]:
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rows", "nothing"], "no row begins with 'nothing'"),
        (["--parts", "table,nothing"], "no part 'nothing'"),
        (["--models", "nothing"], "no model 'nothing'"),
        (["--rounds", "0"], "use a whole number above 0"),
    ],
)
def test_wrong_arguments(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong word ends the program with a sentence, before anything is loaded."""
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2 and sentence in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("arguments", [["gpu"], ["--models", "tiny", "--mode", "compiled"]])
def test_no_gpu(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What needs a GPU says so where there is none."""
    with pytest.raises(SystemExit):
        program.main(arguments)
    assert "needs an NVIDIA GPU" in capsys.readouterr().err


def test_plans() -> None:
    """Shares of a plan are of one whole, its rows and models exist, and every target belongs to a row that is measured."""
    for plan in plans.PLANS.values():
        assert sum(case.share for case in plan.cases) == pytest.approx(1)
        assert sum(plan.parts.values()) <= 1 and set(plan.parts) <= set(plans.PARTS)
        for case in plan.cases:
            keys = {row.key for row in chosen(case.rows)}
            assert case.model in MODELS and set(case.targets) <= keys and "a/a" in keys
