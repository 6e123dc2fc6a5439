"""``inferspan diff``: what it finds, its exit code, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.cli import main
from tests.diff.recordings import noise, write

COUNT = 60


def times(seed: int, factor: float = 1.0, count: int = COUNT) -> list[float]:
    """Seconds of requests."""
    return [0.1 * factor * value for value in noise(count, seed)]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Requests of 0.1 s."""
    return write(tmp_path / "base.jsonl", times(1))


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    """The same, slower by 5 %."""
    return write(tmp_path / "new.jsonl", times(2, 1.05))


@pytest.fixture
def same(tmp_path: Path) -> Path:
    """The same with other noise."""
    return write(tmp_path / "new.jsonl", times(2))


def found(*arguments: str | Path) -> dict[str, Any]:
    """The JSON form of a comparison."""
    output = Path(arguments[0]).parent / "diff.out"
    main(["diff", *map(str, arguments), "--json", str(output)])
    document = json.loads(output.read_text())
    assert isinstance(document, dict)
    return document


def figures(document: dict[str, Any], group: int = 0) -> dict[str, dict[str, Any]]:
    """Figures of a group by name."""
    return {row["name"]: row for row in document["groups"][group]["figures"]}


def test_a_slow_down_is_a_regression(base: Path, slower: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code says so, and the first line."""
    assert main(["diff", str(base), str(slower), "--gate", "3%"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "REGRESSION (gate 3 %)"
    assert out[1].startswith("  request of text_completion tiny, batch 1, 24 input tokens: +")


def test_noise_is_no_regression(base: Path, same: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the first line says what is excluded."""
    assert main(["diff", str(base), str(same), "--gate", "3%"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "no regression: a slow-down of 3 % or more is excluded"


def test_a_speed_up_is_no_regression(base: Path, slower: Path) -> None:
    """The sides are not alike."""
    assert main(["diff", str(slower), str(base), "--gate", "3%"]) == 0


def test_without_a_gate_the_exit_code_is_0(base: Path, slower: Path) -> None:
    """The figures are the answer."""
    assert main(["diff", str(base), str(slower)]) == 0
    assert found(base, slower)["verdict"] is None


def test_figures_of_both_sides_and_their_ratio(base: Path, slower: Path) -> None:
    """Medians, and an interval that holds the planted factor."""
    request = figures(found(base, slower))["request"]
    assert request["a"] == pytest.approx(0.1, rel=0.01)
    assert request["b"] == pytest.approx(0.105, rel=0.01)
    assert request["low"] < 1.05 < request["high"]
    assert request["direction"] == 1


def test_phases_and_times_per_token_are_compared(base: Path, slower: Path) -> None:
    """In the order in which they are shown."""
    assert list(figures(found(base, slower))) == ["request", "time to first token", "prefill", "decode", "time per token"]


def test_requests_are_paired_within_their_size(tmp_path: Path) -> None:
    """Each size is a group, where there are enough of each."""
    inputs = [24, 48] * 30
    a = write(tmp_path / "a.jsonl", times(1), inputs=inputs)
    b = write(tmp_path / "b.jsonl", times(2), inputs=inputs)
    groups = found(a, b)["groups"]
    assert sorted((group["size"], group["requests"]) for group in groups) == [
        ("batch 1, 24 input tokens", [30, 30]), ("batch 1, 48 input tokens", [30, 30]),
    ]  # fmt: skip


def test_rare_sizes_are_compared_one_by_one(tmp_path: Path) -> None:
    """Twenty prompts of their own length each are twenty pairs, in whatever order B has them."""
    lengths = list(range(10, 30))
    a = write(tmp_path / "a.jsonl", [0.01 * length for length in lengths], inputs=lengths)
    b = write(tmp_path / "b.jsonl", [0.0104 * length for length in reversed(lengths)], inputs=lengths[::-1])
    (group,) = found(a, b)["groups"]
    assert (group["size"], group["paired"], group["requests"]) == ("several sizes", True, [20, 20])
    assert group["figures"][0]["ratio"] == pytest.approx(1.04)


def test_other_numbers_of_requests_are_not_paired(base: Path, tmp_path: Path) -> None:
    """They are compared all the same."""
    other = write(tmp_path / "new.jsonl", times(2, 1.05, 50))
    (group,) = found(base, other)["groups"]
    assert group["paired"] is False
    assert group["figures"][0]["direction"] == 1


def test_warm_up_failed_and_nested_requests_do_not_count(tmp_path: Path, base: Path) -> None:
    """They are counted by reason."""
    every = [{semconv.WARMUP: True}, {semconv.NESTED: True}, *[{}] * (COUNT - 2)]
    other = write(tmp_path / "new.jsonl", [9.0, 9.0, 9.0, *times(2)[3:]], every=every, failed=[2])
    document = found(base, other)
    assert document["b"]["left_out"] == {"warm-up": 1, "inside another request": 1, "failed": 1}
    assert document["b"]["requests"] == COUNT - 3


def test_the_slow_module_stands_first(base: Path, tmp_path: Path) -> None:
    """By its difference in seconds, with its phase."""
    other = write(tmp_path / "new.jsonl", times(2), slow_module=1.3)
    first = found(base, other)["groups"][0]["modules"][0]
    assert (first["name"], first["phase"], first["direction"]) == ("layers.1", "decode", 1)
    assert first["ratio"] == pytest.approx(1.3, rel=0.02)


def test_outputs_of_other_lengths_are_judged_by_the_token(base: Path, tmp_path: Path) -> None:
    """Longer answers take longer, which is no slow-down of the model."""
    tokens = [10, 13] * 30
    seconds = [value * (0.25 + 0.75 * (number - 1) / 9) for value, number in zip(times(2), tokens, strict=True)]
    # Prefill takes as long as before.
    other = write(tmp_path / "new.jsonl", seconds, tokens=tokens, prefill=0.25)
    rows = figures(found(base, other, "--gate", "50%"))
    assert (rows["time per token"]["role"], rows["request"]["role"], rows["decode"]["role"]) == ("blocks", "shown", "shown")


def test_memory_of_the_allocator_is_watched(tmp_path: Path) -> None:
    """Its peak has no noise: 5 % more is a regression though the times are alike."""
    exact = {semconv.MEMORY_PEAK_EXACT: True}
    a = write(tmp_path / "a.jsonl", times(1), more={semconv.MEMORY_PEAK: 1_000_000, **exact})
    b = write(tmp_path / "b.jsonl", times(2), more={semconv.MEMORY_PEAK: 1_050_000, **exact})
    document = found(a, b, "--gate", "3%")
    assert (document["verdict"], len(document["reasons"])) == ("regression", 1)
    assert document["reasons"][0].startswith("peak memory of ")


def test_memory_of_the_process_is_only_shown(tmp_path: Path) -> None:
    """It depends on what else the process did."""
    a = write(tmp_path / "a.jsonl", times(1), more={semconv.MEMORY_PEAK: 1_000_000})
    b = write(tmp_path / "b.jsonl", times(2), more={semconv.MEMORY_PEAK: 1_050_000})
    assert main(["diff", str(a), str(b), "--gate", "3%"]) == 0


def test_more_energy_for_a_token_is_a_regression(tmp_path: Path) -> None:
    """As more time is."""
    a = write(tmp_path / "a.jsonl", times(1), every=[{semconv.ENERGY_PER_OUTPUT_TOKEN: 0.2 * value} for value in noise(COUNT, 3)])
    b = write(tmp_path / "b.jsonl", times(2), every=[{semconv.ENERGY_PER_OUTPUT_TOKEN: 0.22 * value} for value in noise(COUNT, 4)])
    (reason,) = found(a, b, "--gate", "3%")["reasons"]
    assert reason.startswith("energy per token of ")


def test_logits_that_differ_are_named(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In deviations of A."""
    other = write(tmp_path / "new.jsonl", times(2), logits_mean=0.7)
    assert main(["diff", str(base), str(other)]) == 0
    assert "logits of the first step: differ in 60 of 60 pairs, by at most 0.100 deviations of A" in capsys.readouterr().out


def test_equal_logits_say_so(base: Path, same: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A change that keeps the outputs is known to keep them."""
    main(["diff", str(base), str(same)])
    assert "logits of the first step: equal in 60 pairs" in capsys.readouterr().out


def test_facts_that_differ_are_listed(tmp_path: Path) -> None:
    """Versions, attention and dtype; what is alike is not."""
    a = write(
        tmp_path / "a.jsonl", times(1), resource={semconv.TORCH_VERSION: "2.12", semconv.TRANSFORMERS_VERSION: "5.0"},
        more={semconv.MODEL_ATTENTION: "eager", semconv.MODEL_DTYPE: "float32"},
    )  # fmt: skip
    b = write(
        tmp_path / "b.jsonl", times(2), resource={semconv.TORCH_VERSION: "2.13", semconv.TRANSFORMERS_VERSION: "5.0"},
        more={semconv.MODEL_ATTENTION: "sdpa", semconv.MODEL_DTYPE: "float32"},
    )  # fmt: skip
    assert found(a, b)["environment"] == [
        {"name": "torch", "a": "2.12", "b": "2.13"}, {"name": "attention implementation", "a": "eager", "b": "sdpa"},
    ]  # fmt: skip


def test_other_hardware_cannot_be_judged(tmp_path: Path) -> None:
    """Times then tell the machines apart."""
    a = write(tmp_path / "a.jsonl", times(1), more={semconv.DEVICE: "cpu"})
    b = write(tmp_path / "b.jsonl", times(2, 1.5), more={semconv.DEVICE: "cuda:0"})
    document = found(a, b, "--gate", "3%")
    assert (document["verdict"], document["reasons"]) == ("undecided", ["recorded on different hardware: device cpu and cuda:0"])


def test_too_much_noise_says_how_many_requests_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2: neither fine nor slower."""
    a = write(tmp_path / "a.jsonl", noise(20, 1, deviation=0.1))
    b = write(tmp_path / "b.jsonl", noise(20, 2, deviation=0.1))
    assert main(["diff", str(a), str(b), "--gate", "3%"]) == 2
    out = capsys.readouterr().out
    assert out.startswith("cannot be judged (gate 3 %)\n  request of text_completion tiny, batch 1, 24 input tokens: ")
    assert "requests a side would tell" in out


def test_one_request_is_too_few(tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence says how many are needed."""
    other = write(tmp_path / "new.jsonl", [0.1])
    assert main(["diff", str(base), str(other), "--gate", "3%"]) == 2
    assert "  too few requests of text_completion tiny, batch 1, 24 input tokens: at least 8 on each side are needed\n" in capsys.readouterr().out


def test_one_request_without_a_gate_shows_its_figures(tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are marked as too few."""
    other = write(tmp_path / "new.jsonl", [0.1])
    assert main(["diff", str(base), str(other)]) == 0
    assert capsys.readouterr().out.startswith("too few requests to tell a change from noise\n")


def test_runs_of_the_program_are_told_apart(tmp_path: Path) -> None:
    """Five on each side: their level differs by chance, so a small change of the mean is no regression."""
    for side, seed in (("a", 0), ("b", 50)):
        for run in range(5):
            level = noise(1, seed + run, deviation=0.1, outliers=0)[0]
            write(tmp_path / f"{side}.jsonl", times(seed + 100 + run, level, 20), run=str(run + 1), append=True)
    document = found(tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--gate", "3%")
    assert document["verdict"] == "undecided"
    assert not [note for note in document["notes"] if note.startswith("recorded in")]


def test_few_runs_are_noted(base: Path, same: Path) -> None:
    """What differs from run to run is not in the interval then."""
    assert found(base, same)["notes"][0].startswith("recorded in one run of the program each: ")


def test_medians_that_seem_to_contradict_the_change_are_noted(base: Path, tmp_path: Path) -> None:
    """Half of the requests take far longer, so the median and the typical ratio are far apart."""
    noisy = write(tmp_path / "new.jsonl", [seconds * (1 + 0.6 * (number % 2)) for number, seconds in enumerate(times(2))])
    assert any(note.startswith("A and B are medians, ") for note in found(base, noisy)["notes"])


def test_equal_recordings_have_no_note_on_medians(base: Path, same: Path) -> None:
    """Medians and changes agree where there is little noise."""
    assert not any("medians" in note for note in found(base, same)["notes"])


def test_files_of_the_same_name_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders of both sides stand before the name."""
    for run, side in enumerate(("base", "new"), 1):
        (tmp_path / side).mkdir()
        write(tmp_path / side / "session.jsonl", times(run), run=str(run))
    main(["diff", str(tmp_path / "base" / "session.jsonl"), str(tmp_path / "new"), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["a"]["name"] == "base/session.jsonl"
    assert document["b"]["name"] == "new/session.jsonl"


def test_a_change_of_nothing_has_no_minus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-0.01 % is 0.0 %."""
    more = {semconv.MEMORY_PEAK: 10_000_000, semconv.DEVICE_TYPE: "cuda"}
    a = write(tmp_path / "a.jsonl", times(1), more=more)
    b = write(tmp_path / "b.jsonl", times(2), more={**more, semconv.MEMORY_PEAK: 9_999_000})
    main(["diff", str(a), str(b)])
    shown = capsys.readouterr().out
    assert "+0.0 %" in shown
    assert "-0.0 %" not in shown


def test_one_after_the_other_cannot_be_judged(base: Path, tmp_path: Path) -> None:
    """A machine that drifts looks like a change, unless there are runs enough to see how they differ."""
    later = write(tmp_path / "new.jsonl", times(2, 1.05), begin=5_000)
    document = found(base, later, "--gate", "3%")
    assert document["verdict"] == "undecided"
    assert document["reasons"][0].startswith("A and B were not recorded in turns, request by request: ")


def test_intervals_of_what_ran_later_are_wider(base: Path, slower: Path, tmp_path: Path) -> None:
    """Drift of one side counts as noise."""
    drifting = [value * (1.1 if place < COUNT // 2 else 1.0) for place, value in enumerate(times(2))]
    widths = []
    for name, begin in (("turns.jsonl", 0), ("later.jsonl", 5_000)):
        row = figures(found(base, write(tmp_path / name, drifting, begin=begin)))["request"]
        widths.append(row["high"] - row["low"])
    assert widths[1] > 1.2 * widths[0]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The sentence with which bad input ends."""
    assert main(["diff", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_other_models_are_refused(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both names stand in the sentence."""
    other = write(tmp_path / "new.jsonl", times(2), model="large")
    assert "no model in common: base.jsonl has tiny, new.jsonl has large" in refused(capsys, base, other)


def test_other_sizes_are_refused(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what each side has."""
    other = write(tmp_path / "new.jsonl", times(2), inputs=25)
    assert "no operation with inputs of one size in common: base.jsonl has text_completion of batch 1, 24" in refused(capsys, base, other)


def test_the_same_file_twice_is_refused(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under one name, or as a copy."""
    assert "is given on both sides" in refused(capsys, base, base)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(base.read_bytes())
    assert "base.jsonl and copy.jsonl hold the same requests" in refused(capsys, base, copy)


def test_files_that_were_open_together_are_told_apart_from_two_recordings(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two models with a file each in one program: the sentence says why both are the same, and what to do."""
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(base.read_bytes())
    assert "each get all of its requests: record the sides in a run each" in refused(capsys, base, copy)


def test_a_session_with_nothing_but_warm_up_is_refused(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the reason."""
    other = write(tmp_path / "new.jsonl", times(2), more={semconv.WARMUP: True})
    assert "new.jsonl holds no request that can be compared (60 warm-up)" in refused(capsys, base, other)


@pytest.mark.parametrize("text", ["", "broken\n", '{"resourceSpans": []}\n', "[" * 10_000])
def test_files_without_a_recording_are_refused(base: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty and damaged ones, on either side, in one line."""
    other = tmp_path / "new.jsonl"
    other.write_text(text)
    for pair in ((base, other), (other, base)):
        assert refused(capsys, *pair).count("\n") == 1


def test_a_torn_file_is_compared_with_a_note(base: Path, same: Path) -> None:
    """As far as it goes."""
    with same.open("a") as file:
        file.write('{"resourceSpans": [')
    assert [note for note in found(base, same)["notes"] if "truncated" in note] != []


@pytest.mark.parametrize("gate", ["0", "-3%", "x", "nan", "3000%"])
def test_a_gate_that_is_none_is_refused(base: Path, same: Path, gate: str) -> None:
    """With the usage."""
    with pytest.raises(SystemExit) as ended:
        main(["diff", str(base), str(same), f"--gate={gate}"])
    assert ended.value.code == 2


def test_outputs_never_overwrite_a_recording(base: Path, same: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever option names it."""
    for option in ("-o", "--json", "--markdown"):
        assert f"{option} would overwrite the recording" in refused(capsys, base, same, option, str(same))


@pytest.mark.parametrize("value", [1e308, 5e-324, float("inf"), float("-inf"), float("nan"), 2**63 - 1, -1, 0, True, "x"])
def test_figures_of_any_kind_are_no_crash(base: Path, tmp_path: Path, value: Any) -> None:
    """Files may be damaged, or of anybody: what is no figure does not count, and the JSON form has no infinity."""
    keys = (
        semconv.TTFT, semconv.TPOT, semconv.OUTPUT_TOKENS, semconv.MEMORY_PEAK, semconv.ENERGY, semconv.ENERGY_PER_OUTPUT_TOKEN,
        semconv.DEVICE_TIME, semconv.MODEL_DTYPE, semconv.DEVICE,
    )  # fmt: skip
    other = write(tmp_path / "new.jsonl", times(2), every=[dict.fromkeys(keys, value)] * COUNT)
    document = found(base, other, "-o", str(tmp_path / "diff.html"), "--markdown", str(tmp_path / "diff.md"))
    assert figures(document)["request"]["b"] == pytest.approx(0.1, rel=0.01)
    assert main(["diff", str(other), str(base), "--gate", "3%"]) in (0, 1, 2)


def test_workers_of_one_run_are_no_runs(tmp_path: Path) -> None:
    """They ran at the same time, so six of them say nothing of how runs differ."""
    for side, seed in (("a", 0), ("b", 50)):
        for worker in range(6):
            write(tmp_path / f"{side}.jsonl", times(seed + worker, 1.0, 20), run=str(worker), begin=-100_000 * worker + worker, append=True)
    document = found(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert document["notes"][0].startswith("recorded in one run of the program each: ")
    assert document["groups"][0]["requests"] == [120, 120]


def test_requests_of_a_size_that_one_side_has_are_counted(base: Path, tmp_path: Path) -> None:
    """They are in no group."""
    other = write(tmp_path / "new.jsonl", times(2, 1.0, COUNT + 3), inputs=[24] * COUNT + [99] * 3)
    assert "new.jsonl: 3 requests left out, of sizes that the other side does not have, or not as often" in found(base, other)["notes"]
