"""Ranks of a job side by side, from their session files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferspan import semconv
from inferspan.cli import main
from inferspan.report.session import read_session
from tests.runs.recordings import recording


def figures(folder: Path, *arguments: str) -> dict[str, object]:
    """What ``inferspan aggregate`` writes of the files in a folder."""
    assert main(["aggregate", str(folder), "--json", str(folder / "figures.out"), *arguments]) == 0
    found = json.loads((folder / "figures.out").read_text())
    assert isinstance(found, dict)
    return found


def spread(found: dict[str, object], name: str) -> dict[str, object]:
    """One figure across ranks."""
    spreads = found["spreads"]
    assert isinstance(spreads, list)
    return next(dict(one) for one in spreads if one["name"] == name)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Three ranks of four: one is twice as slow, one has a clock of its own, and of one there is nothing."""
    recording(tmp_path / "0.jsonl", rank=0, size=4, power=100.0)
    recording(tmp_path / "1.jsonl", rank=1, size=4, power=200.0)
    recording(tmp_path / "3.jsonl", rank=3, size=4, host="far", seconds=2.0, ahead=7.0)
    return tmp_path


def test_ranks_that_are_there_and_that_are_missing(job: Path) -> None:
    """The launcher told each how many there are."""
    found = figures(job)
    assert [one["rank"] for one in found["ranks"]] == [0, 1, 3]  # type: ignore[attr-defined]
    assert found["missing"] == [2]


def test_spread_of_the_ranks(job: Path) -> None:
    """Smallest, largest, mean and median of the ranks' medians, and whose they are."""
    found = spread(figures(job), "request, median")
    assert (found["min"], found["max"], found["max_rank"]) == (1.0, 2.0, 3)
    assert found["average"] == pytest.approx(4 / 3)
    assert found["median"] == 1.0


def test_differences_to_the_median(job: Path) -> None:
    """Of each rank."""
    assert spread(figures(job), "request, median")["difference_to_median"] == {"0": 0.0, "1": 0.0, "3": 1.0}


def test_stragglers_are_named(job: Path) -> None:
    """Those that take more than a tenth longer than the median."""
    assert spread(figures(job), "decode step, median")["stragglers"] == [3]


def test_a_straggler_is_what_the_user_says(job: Path) -> None:
    """With a share that nobody is above, there is none."""
    assert spread(figures(job, "--straggler", "150%"), "decode step, median")["stragglers"] == []


def test_readings_are_compared(job: Path) -> None:
    """The mean of each rank's points; of ranks without a reading there is none."""
    assert spread(figures(job), "gpu_power")["ranks"] == {"0": 105.0, "1": 205.0}


def test_clocks_of_one_host_agree(job: Path) -> None:
    """They are the same clock."""
    second = figures(job)["ranks"][1]  # type: ignore[index]
    assert (second["clock_offset"], second["clock_offset_from"]) == (0.0, "same host")


def test_the_offset_of_another_host_is_estimated(job: Path) -> None:
    """From the ends of requests that correspond: its clock is 7 s ahead, and it ends 1 s later."""
    third = figures(job)["ranks"][2]  # type: ignore[index]
    assert third["clock_offset"] == pytest.approx(8.0)
    assert third["clock_offset_from"] == "ends of 3 requests"


def test_an_offset_that_cannot_be_known_is_absent(tmp_path: Path) -> None:
    """Requests that do not correspond say nothing of clocks."""
    recording(tmp_path / "0.jsonl", rank=0)
    recording(tmp_path / "1.jsonl", rank=1, host="far", requests=5)
    found = figures(tmp_path)
    assert found["ranks"][1]["clock_offset"] is None  # type: ignore[index]
    assert any("offset is not known" in note for note in found["notes"])  # type: ignore[attr-defined]


def test_efficiency_is_the_busy_share(tmp_path: Path) -> None:
    """2 ranks with 3 requests of 1 s each, of 21 s from the first start to the last end."""
    recording(tmp_path / "0.jsonl", rank=0)
    recording(tmp_path / "1.jsonl", rank=1)
    assert figures(tmp_path)["efficiency"] == pytest.approx(6 / (2 * 21))


def test_processes_without_a_rank_are_told_apart(tmp_path: Path) -> None:
    """Those that no launcher has numbered are not all rank 0."""
    recording(tmp_path / "a.jsonl")
    recording(tmp_path / "b.jsonl")
    assert [one["rank"] for one in figures(tmp_path)["ranks"]] == [0, 1]  # type: ignore[attr-defined]


def test_damaged_files_are_named_and_the_rest_is_used(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no recording costs itself."""
    (job / "4.jsonl").write_text("not a recording\n")
    found = figures(job)
    assert len(found["ranks"]) == 3  # type: ignore[arg-type]
    assert "note: 4.jsonl: The file was left out" in capsys.readouterr().out


def test_the_merged_file_is_a_session_of_all(job: Path) -> None:
    """Every request of every rank is in it."""
    output = job / "all.merged"
    figures(job, "-o", str(output))
    assert len(read_session(output).requests) == 9


def test_the_merged_file_does_not_replace_one_that_is_read(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing would be left of it."""
    before = (job / "0.jsonl").read_text()
    assert main(["aggregate", str(job), "-o", str(job / "0.jsonl")]) == 2
    assert "give another name with -o" in capsys.readouterr().err
    assert (job / "0.jsonl").read_text() == before


def test_nothing_to_read_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what to do."""
    assert main(["aggregate", str(tmp_path)]) == 2
    assert "holds no session file" in capsys.readouterr().err


@pytest.mark.parametrize("share", ["-1", "x", "nan%"])
def test_a_share_that_is_none_is_told(share: str, job: Path) -> None:
    """By the parser, with exit code 2."""
    with pytest.raises(SystemExit, match="2"):
        main(["aggregate", str(job), f"--straggler={share}"])


def test_time_in_collectives_of_each_rank(tmp_path: Path) -> None:
    """The share of its profiled passes; null where no collective was seen."""
    for rank, collective in enumerate((0.25, 0.75)):
        recording(tmp_path / f"{rank}.jsonl", rank=rank, more={semconv.PROFILER_PASS_TIME: 1.0, semconv.PROFILER_COLLECTIVE_TIME: collective})
    recording(tmp_path / "2.jsonl", rank=2)
    found = figures(tmp_path)
    assert [one["collectives"] for one in found["ranks"]] == [0.25, 0.75, None]  # type: ignore[attr-defined]
    assert spread(found, "in collectives")["min_rank"] == 0


def test_the_table_has_time_in_collectives_where_it_was_seen(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A column that is empty for all ranks is left out."""
    figures(job)
    assert "in collectives" not in capsys.readouterr().out
    recording(job / "1.jsonl", rank=1, more={semconv.PROFILER_PASS_TIME: 1.0, semconv.PROFILER_COLLECTIVE_TIME: 0.25})
    figures(job)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("rank 1"))
    assert "25.0 %" in line
