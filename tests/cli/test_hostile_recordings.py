"""Recordings that mean harm: ``explain``, ``diff`` and ``baseline`` end with their exit codes, in bounded time, and steer no terminal."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.analysis.baseline import SCHEMA
from inferspan.cli import main
from tests.diff.recordings import noise, write

MUTATIONS = 60
SEED = 7
HUGE = {"doubleValue": 1e308}
VALUES: Sequence[Any] = (
    {"stringValue": ""}, {"stringValue": "9" * 5000}, {"stringValue": "\ud800"}, {"stringValue": "\x1b[31m\n|<script>"}, {"stringValue": "[" * 100_000},
    {"stringValue": '[["a", {}, "x"], ["b", 1, 2]]'}, {"intValue": "-9223372036854775808"}, {"intValue": "9223372036854775807"}, HUGE,
    {"doubleValue": -1e308}, {"doubleValue": 5e-324}, {"doubleValue": "NaN"}, {"doubleValue": "Infinity"}, {"boolValue": True},
    {"arrayValue": {"values": [HUGE, HUGE, HUGE]}}, {"arrayValue": {"values": [{"stringValue": "9" * 5000 + "x9"}]}}, {"arrayValue": {"values": []}},
    {"arrayValue": {"values": [{"intValue": "-5"}, {"boolValue": True}]}}, {"arrayValue": {"values": [{"kvlistValue": {"values": []}}]}},
    {"kvlistValue": {"values": [{"key": "__proto__", "value": {"stringValue": "x"}}]}}, {"intValue": "9" * 400},
)  # fmt: skip
KEYS = sorted({value for value in vars(semconv).values() if isinstance(value, str) and "." in value})
TIMES = ("0", "9" * 400, -5, None, "1", "18446744073709551615", 1e300)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A recording of twelve requests."""
    return write(tmp_path / "base.jsonl", noise(12, 1))


def changed(path: Path, change: Callable[[list[dict[str, Any]]], object], *, system: Sequence[tuple[str, Any]] = ()) -> Path:
    """A recording as ``base``, whose spans are changed in place, with a record of the machine that holds ``system``."""
    write(path, noise(12, 2))
    (line,) = map(json.loads, path.read_text().splitlines())
    change(line["resourceSpans"][0]["scopeSpans"][0]["spans"])
    record = {"eventName": semconv.SYSTEM_EVENT, "attributes": [{"key": key, "value": value} for key, value in system]}
    logs = {"resource": line["resourceSpans"][0]["resource"], "scopeLogs": [{"scope": {"name": semconv.SCOPE}, "logRecords": [record]}]}
    path.write_text(json.dumps(line) + "\n" + json.dumps({"resourceLogs": [logs]}) + "\n")
    return path


def setting(key: str, value: Any, name: str = "") -> Callable[[list[dict[str, Any]]], None]:
    """Gives an attribute to all spans whose names begin so."""

    def change(spans: list[dict[str, Any]]) -> None:
        for span in spans:
            if span["name"].startswith(name):
                span["attributes"] = [one for one in span["attributes"] if one["key"] != key] + [{"key": key, "value": value}]

    return change


def mutated(spans: list[dict[str, Any]], chance: random.Random) -> None:
    """Some changes to names, parents, ids, times and attributes."""
    for _ in range(chance.randint(1, 5)):
        some, kind = chance.sample(spans, len(spans) // 3), chance.randrange(8)
        names = sorted({str(span["name"]) for span in spans})
        if kind == 0:
            old, new = chance.choice(names), chance.choice(["\x1b[2J|<b>\n# x", "", "x" * 100_000, "decode", "prefill", "__proto__"])
            for span in spans:
                span["name"] = new if span["name"] == old else span["name"]
        elif kind == 1:
            for span in some:
                span["parentSpanId"] = chance.choice([span["spanId"], chance.choice(spans)["spanId"], 5, ""])
        elif kind == 2:
            for span in some:
                span[chance.choice(["startTimeUnixNano", "endTimeUnixNano"])] = chance.choice(TIMES)
        elif kind == 3:
            for span in some:
                span["spanId"] = chance.choice(spans)["spanId"]
        else:
            setting(chance.choice(KEYS), chance.choice(VALUES), chance.choice(names))(spans)


def commands(path: Path, base: Path, folder: Path) -> Iterator[list[str]]:
    """What is done with each recording."""
    yield ["explain", str(path)]
    yield ["explain", str(path), "--json"]
    outputs = ["--markdown", str(folder / "diff.md"), "--json", str(folder / "diff.json"), "-o", str(folder / "diff.html")]
    yield ["diff", str(base), str(path), "--gate", "3%", *outputs]
    yield ["baseline", str(path), "-o", str(folder / "saved.json")]
    yield ["baseline", str(path), "--against", str(folder / "saved.json"), "--json", str(folder / "shifts.json")]


def steering(text: str) -> list[str]:
    """Characters that a terminal obeys."""
    return [sign for sign in text if not sign.isprintable() and sign != "\n"]


def test_mutations_raise_nothing(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes are those of the documentation, and each ends soon."""
    chance, slowest = random.Random(SEED), 0.0
    for number in range(MUTATIONS):
        key, value = chance.choice(["gpus", "settings", "container", "cpu"]), chance.choice(VALUES)
        path = changed(tmp_path / "new.jsonl", lambda spans: mutated(spans, chance), system=[(key, value)])
        for command in commands(path, base, tmp_path):
            begin = time.thread_time()
            assert main(command) in (0, 1, 2), f"mutation {number}"
            slowest = max(slowest, time.thread_time() - begin)
            captured = capsys.readouterr()
            assert steering(captured.out + captured.err) == [], f"mutation {number}"
    assert slowest < 10


def circle(spans: list[dict[str, Any]]) -> None:
    """Each request is below its own first step."""
    for span in spans:
        if not span["parentSpanId"]:
            span["parentSpanId"] = f"{3:016x}"


def pair_of_circles(spans: list[dict[str, Any]]) -> None:
    """All requests have the same trace, and each is below a step of the next one."""
    tops = [span for span in spans if not span["parentSpanId"]]
    for number, top in enumerate(tops):
        for span in spans[number * 7 : number * 7 + 7]:
            span.update(traceId="1" * 32, spanId=f"{number:08x}{span['spanId'][8:]}")
            if span is not top:
                span["parentSpanId"] = f"{number:08x}{span['parentSpanId'][8:]}"
        top["parentSpanId"] = f"{(number + 1) % len(tops):08x}{3:08x}"


def no_durations(spans: list[dict[str, Any]]) -> None:
    """No span took any time, though prompts are long."""
    for change in (setting(semconv.INPUT_TOKENS, {"intValue": "5000"}, "text"), setting(semconv.BATCH_SIZE, {"intValue": "1"}, "text")):
        change(spans)
    for span in spans:
        span["endTimeUnixNano"] = span["startTimeUnixNano"]


def one_duration(spans: list[dict[str, Any]]) -> None:
    """Of twelve requests a few took time."""
    kept = spans[-14]["traceId"]
    no_durations([span for span in spans if span["traceId"] != kept])


FIRST = [{"stringValue": "9" * 5000 + "x9"}]
CHANGES: dict[str, tuple[Callable[[list[dict[str, Any]]], object], Sequence[tuple[str, Any]]]] = {
    "requests below themselves": (circle, ()),
    "requests below each other": (pair_of_circles, ()),
    "no durations": (no_durations, ()),
    "one duration": (one_duration, ()),
    "a shape of 5,000 digits": (setting(semconv.INPUT_SHAPES, {"arrayValue": {"values": FIRST}}), ()),
    "texts in place of numbers of tokens": (setting(semconv.SEQUENCE_OUTPUT_TOKENS, {"arrayValue": {"values": FIRST}}, "text_completion"), ()),
    "numbers whose sum is too large": (setting(semconv.TOKEN_ENTROPIES, {"arrayValue": {"values": [HUGE, HUGE]}}, "text_completion"), ()),
    "device times whose sum is too large": (setting(semconv.DEVICE_TIME, HUGE), ()),
    "entropies too far apart": (setting(semconv.LOGITS_ENTROPY, {"doubleValue": -1.7e308}, "prefill_step"), ()),
    "messages that are nested too deeply": (setting(semconv.INPUT_MESSAGES, {"stringValue": "[" * 100_000}, "text_completion"), ()),
    "settings that are nested too deeply": (len, [("settings", {"stringValue": "[" * 100_000})]),
    "GPUs that are a text": (len, [("gpus", {"stringValue": "x"})]),
    "GPUs that are a number": (len, [("gpus", {"doubleValue": 1.0})]),
    "a container that is a text": (len, [("container", {"stringValue": "x"})]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_of_these_is_read(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No command fails on what another part of the file is."""
    change, system = CHANGES[name]
    base = changed(tmp_path / "base.jsonl", setting(semconv.LOGITS_ENTROPY, {"doubleValue": 1.7e308}, "prefill_step"))
    path = changed(tmp_path / "new.jsonl", change, system=system)
    for command in commands(path, base, tmp_path):
        assert main(command) in (0, 1, 2)
        assert "Traceback" not in capsys.readouterr().err


def test_many_empty_messages_take_no_long_time(tmp_path: Path) -> None:
    """A list of them is gone through once."""
    messages = {"stringValue": "[" + "[]," * 300_000 + "[]]"}
    slow = [setting(semconv.INPUT_MESSAGES, messages, "text"), setting(semconv.INPUT_TOKENS, {"intValue": "5000"}, "text")]
    path = write(tmp_path / "new.jsonl", noise(2, 2), prefill=0.9)
    (line,) = map(json.loads, path.read_text().splitlines())
    for change in slow:
        change(line["resourceSpans"][0]["scopeSpans"][0]["spans"])
    path.write_text(json.dumps(line) + "\n")
    begin = time.thread_time()
    assert main(["explain", str(path)]) == 0
    assert time.thread_time() - begin < 10


@pytest.mark.parametrize("gate", ["5e-324", "1e-300", "1e-20%", "1e-17"])
def test_a_tiny_gate(gate: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is judged that finely, and nothing fails."""
    assert main(["diff", str(base), str(changed(tmp_path / "new.jsonl", len)), "--gate", gate]) == 2
    assert capsys.readouterr().out.startswith("cannot be judged")


@pytest.mark.parametrize("gate", ["0%", "0", "-3%", "1001%", "nan", "inf", "NaN%", "three", "", "%", "3%%"])
def test_what_is_no_gate(gate: str, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, and the exit code of a comparison that cannot be judged."""
    with pytest.raises(SystemExit) as left:
        main(["diff", str(base), str(base), f"--gate={gate}"])
    assert left.value.code == 2
    assert "is not a share above 0" in capsys.readouterr().err


def test_names_in_messages_steer_no_terminal(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A message that names models is on a terminal, too."""
    other = write(tmp_path / "other.jsonl", noise(12, 2), model="\x1b[2Jevil")
    assert main(["diff", str(base), str(other)]) == 2
    message = capsys.readouterr().err
    assert "?[2Jevil" in message
    assert steering(message) == []


def test_models_and_kinds_in_a_baseline_steer_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They come from files."""
    more = {semconv.ANALYSIS_CONFIDENCE["average"]: 0.5}
    path = write(tmp_path / "a.jsonl", noise(40, 2), model="\x1b[2Jevil", more=more)
    assert main(["baseline", str(path), "-o", str(tmp_path / "saved.json")]) == 0
    saved = json.loads((tmp_path / "saved.json").read_text())
    saved["outputs"][0]["kinds"] = {"\x1b[31mkind": 3}
    (tmp_path / "saved.json").write_text(json.dumps(saved))
    main(["baseline", str(path), "--against", str(tmp_path / "saved.json")])
    out = capsys.readouterr().out
    assert re.search(r"rate of \?\[31mkind", out)
    assert steering(out) == []


OUTPUTS = {"model": "tiny", "version": "", "requests": 40, "figures": {"confidence": [40, 0.5, 1.0]}, "kinds": {}}
BASELINES: dict[str, Any] = {
    "a number of 400 digits": {**OUTPUTS, "figures": {"confidence": [int("9" * 400), 0.5, 1.0]}},
    "a mean of 400 digits": {**OUTPUTS, "figures": {"confidence": [40, int("9" * 400), 1.0]}},
    "an infinite number": {**OUTPUTS, "figures": {"confidence": [float("inf"), 0.5, 1.0]}},
    "means too far apart": {**OUTPUTS, "figures": {"confidence": [40, -1.7e308, 1.7e308]}},
    "requests of 400 digits": {**OUTPUTS, "requests": int("9" * 400), "kinds": {"loop": int("9" * 400)}},
    "more findings than requests": {**OUTPUTS, "kinds": {"loop": 1_000}},
    "findings below none": {**OUTPUTS, "kinds": {"loop": -1_000}},
    "not a number": {**OUTPUTS, "figures": {"confidence": [40, float("nan"), float("nan")]}},
}


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_with_figures_that_are_none(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused with one sentence, or the figures are left out."""
    path = write(tmp_path / "a.jsonl", noise(40, 2), more={semconv.ANALYSIS_CONFIDENCE["average"]: 0.5})
    (tmp_path / "saved.json").write_text(json.dumps({"inferspan_baseline": SCHEMA, "outputs": [BASELINES[name]]}))
    code = main(["baseline", str(path), "--against", str(tmp_path / "saved.json"), "--json", str(tmp_path / "found.json")])
    message = capsys.readouterr().err
    if "is no baseline" not in message:
        assert code == {"fine": 0, "drift": 1, "undecided": 2}[json.loads((tmp_path / "found.json").read_text())["verdict"]]


def test_an_endless_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As much of it is read as a baseline may have."""
    path = write(tmp_path / "a.jsonl", noise(40, 2), more={semconv.ANALYSIS_CONFIDENCE["average"]: 0.5})
    assert main(["baseline", str(path), "--against", "/dev/zero"]) == 2
    assert "is larger than 16 MiB" in capsys.readouterr().err
