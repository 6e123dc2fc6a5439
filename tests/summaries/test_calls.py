"""Module calls that the C extension has recorded come to the same figures as those that are counted one by one."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from inferspan import semconv
from inferspan.analysis.quantiles import EXACT
from inferspan.records import ModelInfo, ModuleBatch, ModuleCalls, ModuleInfo, PhaseKey, RequestStart
from inferspan.summaries import recording as recording_module
from inferspan.summaries.parts import RequestParts
from inferspan.summaries.recording import Recording
from tests.capture.modules.recorders import C, answer_of, in_c, recorded_in_c

DECODE, BACKWARD = PhaseKey(semconv.SPAN_DECODE, 0), PhaseKey(semconv.SPAN_BACKWARD, 1)
SHAPES: list[Any] = [(), (((1, 7, 64), "torch.float32"),), (((2,), "torch.int64"), ((2, 3), "torch.bfloat16"))]
STATISTICS: dict[int, Any] = {
    number: {semconv.OUTPUT_STAT_ELEMENT_COUNT: 8, semconv.OUTPUT_STAT_MEAN: number / 3, semconv.OUTPUT_STAT_STD: 1.0,
             semconv.OUTPUT_STAT_MIN: -1.0, semconv.OUTPUT_STAT_MAX: 2.0}
    for number in range(4)
}  # fmt: skip


def _infos(count: int) -> list[ModuleInfo]:
    # Two facts of one name are one module, and one without a name is known by that of its span.
    return [ModuleInfo("" if n == 3 else f"model.{n % 7}", "Linear", n, f"layer {n}") for n in range(count)]


def _calls(draw: random.Random, infos: list[ModuleInfo], count: int) -> ModuleCalls:
    """Calls nested at random, some of no duration, and some that a clock that was set back has turned around."""
    rows: list[Any] = []
    stack: list[tuple[int, int]] = []
    number = 0
    while number < count or stack:
        if number < count and (not stack or draw.random() < 0.6):
            stack.append((number, stack[-1][0] if stack else -1))
            number += 1
            continue
        own, parent = stack.pop()
        start = draw.randrange(10**15)
        end = start + draw.choice((0, 1, draw.randrange(10**9), draw.randrange(10**6), -5 if draw.random() < 0.1 else 7))
        slot = draw.choice((0, 1, 9)) if draw.random() < 0.05 else None
        rows.append((own, parent, draw.choice(infos), start, end, draw.choice(SHAPES), draw.choice(SHAPES), None, slot))
    return ModuleCalls(rows)


def _batches(seed: int, passes: int) -> Iterator[ModuleBatch]:
    draw = random.Random(seed)
    infos = _infos(12)
    for step in range(passes):
        calls = _calls(draw, infos, draw.choice((0, 1, 40, 200)))
        timed = draw.choice((0.0, 0.5, 1.0))
        device = {row[0]: draw.choice((0.0, 1e-13, draw.random())) for row in calls.rows() if draw.random() < timed}
        phase = BACKWARD if draw.random() < 0.2 else DECODE
        yield ModuleBatch(None if phase is BACKWARD else step // 2, phase, 10**18, calls, STATISTICS, device)


def _parts(recording: Recording) -> RequestParts:
    return RequestParts([recording], "generate m", RequestStart("generate", None, ModelInfo("m", "huggingface", "M"), 0, False, {}), None)


def _figures(recording: Recording) -> Any:
    """All that a recording says, floating point numbers with twelve digits: they are added up in another order."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.12g}") if math.isfinite(value) else str(value)
        if isinstance(value, dict):
            return {key: rounded(one) for key, one in value.items()}
        return type(value)(map(rounded, value)) if type(value) in (list, tuple) else value

    modules = [(row.as_dict(), len(row.history), row.forgotten) for row in recording.modules()]
    return rounded([recording.operations.as_dict(), modules, recording.events(), recording.counts().spans, recording.times().with_modules])


@in_c
@pytest.mark.parametrize("passes", [6, 150])
@pytest.mark.parametrize("seed", range(4))
def test_figures_are_the_same(seed: int, passes: int) -> None:
    """Durations, own times, percentiles, shapes, statistics and numbers, of few calls and of many, read once or between."""
    one_by_one, in_c_code, read_between = Recording(), Recording(), Recording()
    ways = [(_parts(one_by_one), False), (_parts(in_c_code), True), (_parts(read_between), True)]
    most = 0
    for number, batch in enumerate(_batches(seed, passes)):
        for parts, recorded in ways:
            parts.calls(batch._replace(calls=recorded_in_c(batch.calls)) if recorded else batch, lambda: None)
        if number % 5 == 0:
            most = max([most, *(row.count for row in read_between.operations.rows())])
    assert _figures(in_c_code) == _figures(one_by_one)
    assert _figures(read_between) == _figures(one_by_one)
    assert (most > EXACT) == (passes > 100)


@in_c
def test_both_ways_take_turns() -> None:
    """Passes of the C extension and of Python in one recording; the last shapes are those of the last call."""
    whole, mixed = Recording(), Recording()
    parts, turns = _parts(whole), _parts(mixed)
    for number, batch in enumerate(_batches(9, 60)):
        parts.calls(batch, lambda: None)
        turns.calls(batch._replace(calls=recorded_in_c(batch.calls)) if number % 3 else batch, lambda: None)
    assert _figures(mixed) == _figures(whole)


@in_c
def test_modules_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules over the bound are counted together, and what is kept for them in C stays bounded."""
    monkeypatch.setattr(recording_module, "MOST_MODULES", 50)
    monkeypatch.setattr(recording_module, "MOST_OPERATIONS", 50)
    recording = Recording()
    parts = _parts(recording)
    for step in range(30):
        infos = [ModuleInfo(f"model.{step}.{n}", "Linear", n, "layer") for n in range(20)]
        calls = ModuleCalls((n, -1, infos[n], 5, 9, (), (), None, None) for n in range(20))
        parts.calls(ModuleBatch(step, DECODE, 0, recorded_in_c(calls), {}), lambda: None)
        assert len(recording._sums) <= 70
    assert sum(row.count for row in recording.operations.rows(["module"])) == 600
    assert len(recording.operations) <= 53
    assert len(recording.modules()) == 50


@in_c
def test_the_work_in_python_does_not_grow_with_the_calls() -> None:
    """A pass is added up by as many functions of Python, whatever its size."""

    def functions(count: int) -> int:
        infos, found = _infos(count), 0
        calls = recorded_in_c(ModuleCalls((n, -1, infos[n], 5, 9, (), (), None, None) for n in range(count)))
        parts = _parts(Recording())

        def seen(_: Any, event: str, __: Any) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(seen)
        parts.calls(ModuleBatch(0, DECODE, 0, calls, {}), lambda: None)
        sys.setprofile(None)
        return found

    assert functions(1000) == functions(3) < 20


@in_c
def test_numbers_far_apart_are_counted_one_by_one() -> None:
    """Two calls with a million between them, which were not recorded, take no memory for those."""
    log = C.CallLog()
    (info,) = _infos(1)
    log.enter(info, (), 1)
    log.leave(5)
    log.count = 10**6
    log.enter(info, (), 7)
    log.leave(10)
    recording = Recording()
    _parts(recording).calls(ModuleBatch(0, DECODE, 0, log.cut(), {}), lambda: None)
    (row,) = recording.operations.rows(["module"])
    assert (row.name, row.count, len(recording._sums)) == ("model.0", 2, 0)


@in_c
@pytest.mark.parametrize(
    "call",
    [
        lambda: C.Calls.figures(0, 0.1, 1e-9),
        lambda: C.Calls.figures(9, 0.0, 1e-9),
        lambda: C.Calls.figures(),
        lambda: C.Calls.figures(9, 0.1, 1e-9).add([], None, False),
        lambda: C.Calls.figures(9, 0.1, 1e-9).add(C.CallLog().cut(), 5, False),
        lambda: C.CallLog().cut().template([0], []),
        lambda: C.CallLog().cut().template(None, None),
        lambda: C.CallLog().cut().template([], []).compare(5),
        lambda: C.CallLog().cut().template([], []).renew(0, C.CallLog().cut(), b""),
        lambda: C.CallLog().cut().template([], []).fill(C.CallLog().cut(), 0, 0, b"", 0, 0, b"", None, {}),
        lambda: recorded_in_c(_calls(random.Random(0), _infos(4), 3)).template([4, 0, 0], [b""] * 3),
        lambda: recorded_in_c(_calls(random.Random(0), _infos(4), 3)).template([0, 0, 0], [b"", "", b""]),
    ],
)
def test_bad_values_in_c(call: Any) -> None:
    """What C code is given wrongly raises; it does not end the process."""
    assert answer_of(call) in (TypeError, ValueError, IndexError)
