"""The recording of what is emitted: what a comparison finds, which scenarios there are, and that a recording repeats itself."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scenarios import __main__ as program
from benchmarks.scenarios.cases import SCENARIOS
from benchmarks.scenarios.compare import differences, lines
from benchmarks.scenarios.record import play, read

SOME = ("end_at_the_first_token", "forward_error", "keep_slow_left_out")


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """What three scenarios leave."""
    play(SOME[:1])  # takes off what other tests have counted in this process
    return play(SOME)


def _changed(recorded: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(recorded)


def _told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    return [(one.scenario, one.place, one.what, one.before, one.after) for one in differences(before, after)]


def test_the_number_of_scenarios() -> None:
    """There are more than 80 scenarios of generate() and more than 15 of plain forwards, each with a name of its own."""
    forwards = [name for name in SCENARIOS if name.startswith("forward_")]
    assert len(forwards) >= 15
    assert len(SCENARIOS) - len(forwards) >= 80


def test_a_recording_repeats_itself(recorded: dict[str, Any]) -> None:
    """Three scenarios recorded again are the same, times and ids aside."""
    assert _told(recorded, play(SOME)) == []


def test_what_is_recorded(recorded: dict[str, Any]) -> None:
    """A request is a tree of spans with their attributes; times keep their type only."""
    (request,) = recorded["end_at_the_first_token"]["spans"]
    assert request["attributes"]["gen_ai.usage.output_tokens"] == 1
    assert request["attributes"]["inferspan.time_to_first_token"] == "<float>"
    (prefill,) = request["children"]
    assert [step["name"] for step in prefill["children"]] == ["prefill_step"]
    duration = recorded["end_at_the_first_token"]["metrics"]["inferspan: gen_ai.server.request.duration"]
    ((_, point),) = duration["points"].items()
    assert (duration["unit"], point["count"], point["sum"]) == ("s", 1, "<float>")


def test_a_changed_attribute_is_found(recorded: dict[str, Any]) -> None:
    """Another value of an attribute is told with the path of its span and both values."""
    after = _changed(recorded)
    after["end_at_the_first_token"]["spans"][0]["children"][0]["children"][0]["attributes"]["inferspan.step.tokens"] = 7
    ((scenario, place, what, *values),) = _told(recorded, after)
    assert (scenario, what, values) == ("end_at_the_first_token", "inferspan.step.tokens", ["6", "7"])
    assert place.endswith(" / prefill / prefill_step")


def test_an_attribute_of_another_type_is_found(recorded: dict[str, Any]) -> None:
    """1 and 1.0 are not the same on the wire."""
    after = _changed(recorded)
    after["end_at_the_first_token"]["spans"][0]["attributes"]["gen_ai.usage.output_tokens"] = 1.0
    assert [one[2:] for one in _told(recorded, after)] == [("gen_ai.usage.output_tokens", "1", "1.0")]


def test_a_missing_attribute_is_found(recorded: dict[str, Any]) -> None:
    """A masked attribute that is gone is a difference, too."""
    after = _changed(recorded)
    del after["end_at_the_first_token"]["spans"][0]["attributes"]["inferspan.time_to_first_token"]
    assert [one[2:] for one in _told(recorded, after)] == [("inferspan.time_to_first_token", "'<float>'", "-")]


def test_a_missing_span_is_found(recorded: dict[str, Any]) -> None:
    """A span that is gone is one difference, however much was below it."""
    after = _changed(recorded)
    after["end_at_the_first_token"]["spans"][0]["children"] = []
    ((scenario, place, what, before, now),) = _told(recorded, after)
    assert (scenario, what, now) == ("end_at_the_first_token", "span", "-")
    assert place.endswith(" / prefill")
    assert before.startswith("there, with ")


def test_an_added_span_is_found(recorded: dict[str, Any]) -> None:
    """A span that is new is told with its number among those of its name."""
    after = _changed(recorded)
    phase = after["end_at_the_first_token"]["spans"][0]["children"][0]
    phase["children"].append(copy.deepcopy(phase["children"][0]))
    ((_, place, what, before, _),) = _told(recorded, after)
    assert place.endswith(" / prefill_step[1]")
    assert (what, before) == ("span", "-")


def test_another_order_of_spans_is_found(recorded: dict[str, Any]) -> None:
    """Siblings that have changed places are one difference."""
    after = _changed(recorded)
    after["forward_error"]["spans"][0]["children"].reverse()
    assert [one[2] for one in _told(recorded, after)] == ["order"]


def test_a_changed_count_of_a_metric_is_found(recorded: dict[str, Any]) -> None:
    """A histogram with another count is told with the attributes of its data point."""
    after = _changed(recorded)
    name = "inferspan: gen_ai.server.request.duration"
    ((attributes, point),) = after["end_at_the_first_token"]["metrics"][name]["points"].items()
    point["count"] = 2
    assert _told(recorded, after) == [("end_at_the_first_token", f"{name} {attributes}", "count", "1", "2")]


def test_a_missing_metric_is_found(recorded: dict[str, Any]) -> None:
    """A metric that is gone is one difference."""
    after = _changed(recorded)
    del after["forward_error"]["metrics"]["inferspan: inferspan.forward.duration"]
    assert _told(recorded, after) == [("forward_error", "inferspan: inferspan.forward.duration", "metric", "there", "-")]


def test_a_missing_event_is_found(recorded: dict[str, Any]) -> None:
    """An exception that is no longer noted on its span is a difference."""
    after = _changed(recorded)
    (root,) = [one for one in after["forward_error"]["spans"] if one["status"] == "ERROR"]
    del root["events"]
    assert [one[2:] for one in _told(recorded, after)] == [("event", "there", "-")]


def test_a_missing_scenario_is_found(recorded: dict[str, Any]) -> None:
    """A scenario that only one side has is one difference."""
    assert _told(recorded, {name: recorded[name] for name in SOME[1:]}) == [(SOME[0], "", "scenario", "recorded", "-")]


def test_floats_within_rounding_are_equal(recorded: dict[str, Any]) -> None:
    """The last digits of a statistic depend on the kernel and are no difference."""
    after = _changed(recorded)
    statistics = after["end_at_the_first_token"]["spans"][0]["children"][0]["children"][0]["attributes"]
    statistics["inferspan.logits.std"] *= 1 + 1e-7
    assert _told(recorded, after) == []
    statistics["inferspan.logits.std"] *= 1.01
    assert [one[2] for one in _told(recorded, after)] == ["inferspan.logits.std"]


def test_differences_that_are_alike_are_one_line(recorded: dict[str, Any]) -> None:
    """The same change of many data points is told once, with their number."""
    after = _changed(recorded)
    for one in after.values():
        for metric in one["metrics"].values():
            metric["unit"] = "?" if metric["unit"] == "s" else metric["unit"]
    told = lines(differences(recorded, after))
    assert any("unit: 's' -> '?'   (and " in line for line in told)
    assert lines(differences(recorded, after), most=1)[1:] == [f"... and {len(told) - 1} more lines"]


@pytest.mark.parametrize(("change", "status"), [(0, 0), (1, 1)])
def test_the_command(recorded: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: int, status: int) -> None:
    """``compare`` ends with 1 where something differs, and says what."""
    after = _changed(recorded)
    after["end_at_the_first_token"]["spans"][0]["attributes"]["gen_ai.usage.output_tokens"] += change
    for name, scenarios in (("a.json", recorded), ("b.json", after)):
        (tmp_path / name).write_text(json.dumps({"versions": {}, "scenarios": scenarios}))
    assert read(tmp_path / "a.json")["scenarios"] == recorded
    assert program.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == status
    assert ("gen_ai.usage.output_tokens: 1 -> 2" in capsys.readouterr().out) is bool(change)


def test_a_file_that_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``compare`` ends with 2 where a file cannot be read."""
    (tmp_path / "a.json").write_text("[]")
    assert program.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 2
    assert "holds no scenarios" in capsys.readouterr().err


def test_a_scenario_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario that raises leaves its traceback and does not stop the others."""

    def broken(run: Any) -> None:
        raise LookupError("no such model")

    monkeypatch.setitem(SCENARIOS, "broken", type(SCENARIOS[SOME[0]])("broken", broken, "none"))
    found = play(["broken", SOME[1]])
    assert "LookupError: no such model" in found["broken"]["failed"]
    assert "spans" in found[SOME[1]]
