"""The wall clock of all spans: the same difference until the clock is set, whatever pauses there are between two readings."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import inferspan
from inferspan import clock
from tests.cases import models
from tests.cases.telemetry import Telemetry

SECOND = 1_000_000_000


class Clocks:
    """A monotonic clock, and a wall clock that is ``ahead`` of it; each reading takes 100 ns, and ``pauses`` come between two readings."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.now = 0
        self.pauses: list[int] = []
        self.read = 0

    def _pass(self) -> int:
        self.read += 1
        self.now += 100 + (self.pauses.pop(0) if self.pauses else 0)
        return self.now

    def monotonic(self) -> int:
        return self._pass()

    def epoch(self) -> int:
        return self._pass() + self.ahead


def _made(clocks: Clocks) -> Callable[[], int]:
    return clock.Clock(clocks.monotonic, clocks.epoch).offset


def test_it_is_the_difference_of_the_two_clocks() -> None:
    """To the time that a reading takes."""
    assert _made(Clocks(5 * SECOND))() == pytest.approx(5 * SECOND, abs=100)


@pytest.mark.parametrize("position", range(6))
def test_a_pause_between_two_readings_moves_nothing(position: int) -> None:
    """Neither the first time, nor later."""
    clocks = Clocks(5 * SECOND)
    clocks.pauses = [0] * position + [30_000_000]
    read = _made(clocks)
    first = read()
    assert first == pytest.approx(5 * SECOND, abs=100)
    clocks.pauses = [0] * position + [30_000_000]
    assert {read() for _ in range(10)} == {first}


def test_a_clock_that_is_set_is_followed() -> None:
    """From the next span on; a step of less than a tenth of a millisecond is none."""
    clocks = Clocks(5 * SECOND)
    read = _made(clocks)
    first = read()
    clocks.ahead += 20_000
    assert read() == first
    clocks.ahead = 3 * SECOND
    assert read() == pytest.approx(3 * SECOND, abs=100)


def test_readings_are_bounded_where_every_one_is_slow() -> None:
    """The best of eight pairs is taken."""
    clocks = Clocks(0)
    clocks.pauses = [50_000] * 1_000
    _made(clocks)()
    assert clocks.read == 24


def test_spans_inside_others_never_stick_out(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand pauses between any two readings: stages, requests and threads lie inside of what is around them."""
    model = models.llama()
    telemetry.instrument(model)
    real = time.perf_counter_ns
    number = 0

    def slow() -> Any:
        nonlocal number
        number += 1
        if number % 7 == 0:
            time.sleep(0.0005)
        return real()

    for module in ("stages", "program_events"):
        monkeypatch.setattr(f"inferspan.spans.{module}.perf_counter_ns", slow)

    def work(_: int) -> None:
        with inferspan.session("job"), inferspan.stage("outer"), inferspan.stage("inner"):
            model.generate(models.prompt(), max_new_tokens=2, min_new_tokens=2)
            with inferspan.stage("after"):
                inferspan.event("mark")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    assert len(telemetry.spans("after")) == 40
    telemetry.check()


def test_a_stage_of_a_stage_has_its_clock(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the wall clock is set back by an hour in between, what is inside still lies inside."""
    telemetry.instrument(models.llama())
    with inferspan.stage("outer"):
        monkeypatch.setattr(clock, "offset", lambda: -3_600 * SECOND)
        with inferspan.stage("inner"):
            pass
    telemetry.check()
