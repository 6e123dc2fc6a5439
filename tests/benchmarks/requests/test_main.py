"""``python -m benchmarks.requests`` as a program: small runs from end to end, and how costs become sums."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.requests import __main__ as program
from benchmarks.requests import costs, loads
from benchmarks.requests.blocks import CLOCKS

ROOT = Path(__file__).parents[3]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.requests", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )


def test_parts_add_to_one_file(tmp_path: Path) -> None:
    """Two parts in two runs are in one file, each with its A/A, and the last run prints a table of both."""
    kept = tmp_path / "found.json"
    size = ["--seconds", "1", "--rounds", "2", "--tokens", "1,4", "--json", str(kept)]
    for part in ("cpu-generate", "cpu-forward-host"):
        run = _run("--part", part, *size, "--markdown", str(tmp_path / "found.md"))
        assert run.returncode == 0, run.stderr
    parts = {part["part"]: part for part in json.loads(kept.read_text())["parts"]}
    assert set(parts) == {"cpu-generate", "cpu-forward-host"}
    lines = parts["cpu-generate"]["lines"]
    assert [(line["steps"], line["setting"]) for line in lines] == [
        (tokens, setting) for tokens in (1, 4) for setting in loads.PARTS["cpu-generate"].settings
    ]
    assert {line["size"] for line in parts["cpu-forward-host"]["lines"]} == {"pass of 0.3 ms", "pass of 3.0 ms", "pass of 15.0 ms"}
    assert {line["clock"] for line in parts["cpu-generate"]["sums"]} == {"thread", "process", "wall"}
    assert parts["cpu-generate"]["sdk_span_ms"] > 0
    text = (tmp_path / "found.md").read_text()
    assert text.strip() == run.stdout.strip()
    assert "### cpu-generate" in text and "### cpu-forward-host" in text
    again = _run("--table", "--json", str(kept))
    assert again.stdout.strip() == text.strip()


def test_turns(tmp_path: Path) -> None:
    """Each setting has its pairs, and recording every module takes more than nothing."""
    kept = tmp_path / "found.json"
    run = _run("--turns", "--part", "cpu-generate", "--seconds", "6", "--rounds", "12", "--tokens", "4", "--json", str(kept))
    assert run.returncode == 0, run.stderr
    (part,) = json.loads(kept.read_text())["parts"]
    lines = {line["setting"]: line for line in part["lines"]}
    assert [*lines] == [*loads.PARTS["cpu-generate"].settings]
    assert all(2 <= line["blocks"] <= 12 for line in lines.values())
    assert lines["no logits, every module"]["process"]["added"] > lines["A/A"]["process"]["added"]


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names every part."""
    with pytest.raises(SystemExit) as ended:
        program.main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(part in text for part in loads.PARTS)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--part", "nothing"], "no part 'nothing'"),
        (["--part", "cpu-forward,cpu-generate"], "several parts need --json"),
        (["--rounds", "0"], "use a whole number above 0"),
    ],
)
def test_wrong_arguments(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong word ends the program with a sentence, before anything is loaded."""
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2 and sentence in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """What needs a GPU says so where there is none."""
    with pytest.raises(SystemExit):
        program.main(["--part", "gpu-forward"])
    assert "needs an NVIDIA GPU" in capsys.readouterr().err


def test_costs_as_a_sum() -> None:
    """Costs that are a sum of times for a request, for steps and for calls are found to be that sum."""

    def line(setting: str, steps: int, calls: int) -> dict[str, Any]:
        figures = {"plain": 1.0 + steps, "added": 0.5 + 0.015 * steps + 0.001 * calls}
        return {"model": "m", "mode": "eager", "steps": steps, "calls": calls, "setting": setting} | dict.fromkeys(CLOCKS, figures)

    lines = [line("no logits", steps, 12) for steps in (1, 8, 64)] + [line("no logits, every module", steps, 57 * steps) for steps in (1, 8, 64)]
    lines.append(line("default", 8, 12) | {clock: {"plain": 9.0, "added": 100.0} for clock in CLOCKS})
    for found in costs.fitted(lines):
        assert found["request_ms"] == pytest.approx(0.5) and found["step_us"] == pytest.approx(15) and found["call_us"] == pytest.approx(1)


def test_an_interval_holds_its_median() -> None:
    """The median of the values lies inside its interval, which lies inside the values."""
    median, low, high = costs.interval([1.0, 2.0, 3.0, 4.0, 10.0])
    assert 1.0 <= low <= median == 3.0 <= high <= 10.0
