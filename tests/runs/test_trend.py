"""Runs of a program in a row, from archived recordings and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.cli import main
from tests.runs.recordings import BEGIN, recording

DAY = 86_400


def groups(folder: Path) -> list[dict[str, Any]]:
    """What ``inferspan trend`` writes of a folder."""
    output = folder.parent / "trend.out"
    assert main(["trend", str(folder), "--json", str(output)]) == 0
    found = json.loads(output.read_text())["groups"]
    assert isinstance(found, list)
    return found


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Three days: the second one is slower, the third has another torch."""
    folder = tmp_path / "archive"
    folder.mkdir()
    for day, (seconds, torch) in enumerate([(1.0, "2.12"), (1.5, "2.12"), (1.2, "2.13")]):
        recording(
            folder / f"{'cab'[day]}.jsonl", seconds=seconds, begin=BEGIN + day * DAY, more={semconv.ENERGY: 20.0},
            resource={semconv.TORCH_VERSION: torch},
        )  # fmt: skip
    return folder


def test_runs_stand_in_order_of_time(archive: Path) -> None:
    """Not of their names."""
    (group,) = groups(archive)
    assert [run["file"] for run in group["runs"]] == ["c.jsonl", "a.jsonl", "b.jsonl"]


def test_change_to_the_run_before(archive: Path) -> None:
    """The first one has none."""
    (group,) = groups(archive)
    assert [run["figures"]["tpot"]["change"] for run in group["runs"]] == [None, pytest.approx(0.5), pytest.approx(-0.2)]


def test_change_to_the_median(archive: Path) -> None:
    """Of all runs of the group."""
    (group,) = groups(archive)
    assert [run["figures"]["ttft"]["to_median"] for run in group["runs"]] == pytest.approx([1 / 1.2 - 1, 0.25, 0.0])


def test_energy_is_that_of_a_token(archive: Path) -> None:
    """20 J for 10 tokens."""
    (group,) = groups(archive)
    assert group["runs"][0]["figures"]["joules_per_token"]["value"] == pytest.approx(2.0)


def test_what_was_not_measured_is_absent(archive: Path) -> None:
    """A machine without a GPU has no utilisation."""
    (group,) = groups(archive)
    assert group["runs"][0]["figures"]["utilization"]["value"] is None


def test_runs_of_other_versions_say_so(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A version is what one compares, so it makes no group of its own."""
    (group,) = groups(archive)
    assert group["runs"][2]["new_versions"] == {"torch": ["2.12", "2.13"]}
    assert "versions of b.jsonl differ from those of the run before: torch 2.12 -> 2.13" in capsys.readouterr().out


def test_other_models_and_machines_are_other_groups(archive: Path) -> None:
    """They cannot be compared."""
    recording(archive / "x.jsonl", more={semconv.REQUEST_MODEL: "large"})
    recording(archive / "y.jsonl", host="other")
    assert sorted((group["of"]["models"], group["of"]["machine"]) for group in groups(archive)) == [
        ("large", "node"), ("tiny", "node"), ("tiny", "other"),
    ]  # fmt: skip


def test_a_report_counts_as_its_recording(archive: Path) -> None:
    """The same figures, whether the session file or its JSON report was kept."""
    (before,) = groups(archive)
    assert main(["report", str(archive / "a.jsonl"), "--json", str(archive / "a.json")]) == 0
    (archive / "a.jsonl").unlink()
    (after,) = groups(archive)
    assert [run["figures"] for run in after["runs"]] == [run["figures"] for run in before["runs"]]


def test_files_that_cannot_be_used_are_named(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest is compared."""
    (archive / "z.jsonl").write_text("broken\n")
    assert len(groups(archive)[0]["runs"]) == 3
    assert "z.jsonl was left out" in capsys.readouterr().out


def test_the_table_shows_both_changes(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the run before and to the median, and a bar for each run."""
    groups(archive)
    out = capsys.readouterr().out
    assert "75.0 ms (+50.0 %/+25.0 %)" in out
    assert out.count("####") >= 3


@pytest.mark.parametrize("text", ["[]", '{"schema": 1, "requests": 3}', '{"schema": 1, "requests": []}', "[" * 100_000])
def test_strange_json_is_no_crash(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, with what to give instead."""
    path = tmp_path / "r.json"
    path.write_text(text)
    assert main(["trend", str(path)]) == 2
    assert "Give session files or JSON reports" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1" + "0" * 400, "-1", '"7"'])
def test_a_figure_that_cannot_be_one_is_unknown(tmp_path: Path, value: str) -> None:
    """A report may be damaged, or of anybody; the others are compared."""
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "r.json").write_text(f'{{"schema": 1, "requests": [{{"ttft": {value}, "tpot": 0.5}}]}}')
    (run,) = groups(folder)[0]["runs"]
    assert {name: figure["value"] for name, figure in run["figures"].items() if figure["value"] is not None} == {"tpot": 0.5}


def test_figures_that_overflow_together_are_unknown(tmp_path: Path) -> None:
    """No infinity comes into the JSON, which has none."""
    folder = tmp_path / "reports"
    folder.mkdir()
    metric = {"name": semconv.M_GPU_UTILIZATION, "average": 1e308, "count": 1e308}
    (folder / "r.json").write_text(json.dumps({"schema": 1, "requests": [{"tpot": 1.0}], "statistics": {"metrics": [metric]}}))
    (run,) = groups(folder)[0]["runs"]
    assert run["figures"]["utilization"]["value"] is None


def test_a_report_of_a_later_schema_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its keys may mean something else."""
    path = tmp_path / "r.json"
    path.write_text('{"schema": 99, "requests": [{"tpot": 1.0}]}')
    assert main(["trend", str(path)]) == 2
    assert "has schema 99, of a later version of inferspan" in capsys.readouterr().err


def test_one_run_has_nothing_to_compare_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures stand alone, and a line says why."""
    assert main(["trend", str(recording(tmp_path / "a.jsonl"))]) == 0
    out = capsys.readouterr().out
    assert "one run: there is nothing to compare it with" in out
    assert "%" not in out
