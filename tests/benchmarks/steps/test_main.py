"""``python -m benchmarks.steps``: a step taken apart, and the command line of both of its modes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.models import LLAMA, MODELS, llama
from benchmarks.steps import __main__ as steps
from benchmarks.steps.pairs import SETTINGS
from benchmarks.steps.parts import parts, take_apart
from inferspan.capture.compile.state import SLOT

ROOT = Path(__file__).parents[3]


def test_each_part_is_measured_and_put_back() -> None:
    """Steps but the first of a request are shared out over the parts, the first part costs nothing more than itself, and all is as before."""
    model, threads = llama(**LLAMA["tiny"]), torch.get_num_threads()
    seen: list[int] = []
    layer = model.model.layers[0]
    found = take_apart(model, requests=2, tokens=30, say=lambda _: seen.append(SLOT in vars(layer)))
    names = ["nothing on the modules", "calls go through our callable", "and are recorded"]
    assert [one.part for one in found] == [*parts(cuda=False)] == names
    assert sum(one.steps for one in found) == 2 * 29 and all(one.steps and one.error > 0 for one in found)
    assert (found[0].seconds, found[0].ratio) == (0, 1)
    assert seen == [False, False] and SLOT not in vars(layer) and torch.get_num_threads() == threads


def test_on_a_gpu_the_device_clock_is_taken_apart_as_well() -> None:
    """Each part adds one thing to the one before it."""
    assert [*parts(cuda=True)] == [*parts(cuda=False), "and get events on the device"]


def test_settings_from_end_to_end(tmp_path: Path) -> None:
    """Settings of a small model are compared: table, JSON and progress are where they belong, and the shell's variables change nothing."""
    command = [sys.executable, "-m", "benchmarks.steps", "--model", "tiny", "--settings", "all, default,all-device", "--requests", "1"]
    environ = {**os.environ, "INFERSPAN_MODULES": "none", "INFERSPAN_EXTENSION": "0", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run([*command, "--json", str(tmp_path / "found.json")], cwd=ROOT, capture_output=True, text=True, timeout=240, env=environ)
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(line["key"], line.get("spans"), line.get("verdict")) for line in found["table"]] == [
        ("a/a", None, None),
        ("all", "58", None),
        ("default", "1 or 13", None),
        ("all-device", None, "needs a GPU"),
    ]
    assert {variant for _, _, variant, _ in found["table"][1]["timed"]} == {"plain", "plain again", "recorded"}
    assert f"| {found['table'][1]['ratio']} | {found['table'][1]['sure']} |" in run.stdout
    assert "Export is not in these ratios" in run.stdout and "recorded by: Python (INFERSPAN_EXTENSION=0)" in run.stdout
    assert "INFERSPAN_MODULES is left out of account" in run.stderr and "[steps] 1 requests of each setting" in run.stderr


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names every option, model and setting."""
    with pytest.raises(SystemExit) as ended:
        steps.main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    for word in [*MODELS, *SETTINGS, "--settings", "--mode", "--requests", "--seconds", "--json", "Export is in neither"]:
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--settings", "all,nothing"], "no setting 'nothing': there are unsampled, disabled, default"),
        (["--settings", "a/a"], "no setting 'a/a'"),
        (["--seconds", "5"], "go with --settings"),
        (["--json", "x"], "go with --settings"),
        (["--mode", "eager"], "go with --settings"),
        (["--settings", "all", "--requests", "0"], "use a whole number above 0"),
        (["--settings", "all", "--mode", "prefill"], "invalid choice: 'prefill'"),
    ],
)
def test_wrong_arguments(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong word ends the program with a sentence, before anything is loaded."""
    with pytest.raises(SystemExit) as ended:
        steps.main(arguments)
    assert ended.value.code == 2 and sentence in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """Compiled decode says that it needs one."""
    with pytest.raises(SystemExit):
        steps.main(["--settings", "default", "--mode", "compiled"])
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
