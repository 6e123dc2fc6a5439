"""Measures loads in blocks: plain requests, requests under one setting, plain requests, under the next one, and so on.

In: a load and its settings. Out: for each setting what a request takes more than those of the plain blocks before and behind it: CPU time of the thread
that runs the model, CPU time of the process until everything has been sent, and time on the wall clock.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from benchmarks.requests.loads import SETTINGS, Load
from benchmarks.rounds import settle

__all__ = ["CLOCKS", "Measured", "guarded", "measure", "requests_in", "timed"]

CLOCKS = ("thread", "process", "wall")
MINIMUM = 2
"""Rounds that are made even if the time is over."""
BLOCK = 0.4
"""Seconds of requests in a block."""
MOST, LEAST = 200, 2
"""Requests in a block."""

T = TypeVar("T")
Times = tuple[float, float, float]
"""Milliseconds a request on each clock."""


@dataclass
class Measured:
    """One setting under one load: times of its blocks, and of the plain blocks around each."""

    load: Load
    setting: str
    with_it: list[Times] = field(default_factory=list)
    plain: list[Times] = field(default_factory=list)
    problem: str | None = None

    def added(self, clock: int) -> list[float]:
        """Milliseconds added to a request, one value for each block."""
        return [one[clock] - base[clock] for one, base in zip(self.with_it, self.plain, strict=True)]

    def ratios(self, clock: int) -> tuple[list[float], list[float]]:
        """Times with and without, in pairs."""
        return [one[clock] for one in self.with_it], [base[clock] for base in self.plain]


def _block(load: Load, setting: str | None, count: int, flush: Callable[[], Any]) -> Times:
    request = load.work.request
    # What the last block left behind is not this one's to collect.
    gc.collect()
    undo = None if setting is None else SETTINGS[setting].attach(load.work)
    try:
        if undo is not None:
            settle(load.work)
        request()
        flush()
        return timed(request, count, flush)
    finally:
        if undo is not None:
            undo()


def timed(request: Callable[[], Any], count: int, flush: Callable[[], Any]) -> Times:
    """What a request takes if some run one after the other and all of it is sent then."""
    used, wall, thread = time.process_time(), time.perf_counter(), time.thread_time()
    for _ in range(count):
        request()
    thread, wall = time.thread_time() - thread, time.perf_counter() - wall
    flush()
    used = time.process_time() - used
    return 1000 * thread / count, 1000 * used / count, 1000 * wall / count


def requests_in(seconds: float, request: Callable[[], Any], least: int, most: int) -> int:
    """How many requests take so long, by the median of three."""
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        request()
        took.append(time.perf_counter() - begun)
    return max(least, min(most, round(seconds / statistics.median(took))))


def measure(load: Load, flush: Callable[[], Any], *, seconds: float, rounds: int, say: Callable[[str], None]) -> list[Measured]:
    """Measure the settings of a load.

    Args:
        load: what runs.
        flush: has everything sent that was recorded.
        seconds: after which no round begins any more.
        rounds: blocks of each setting.
        say: gets a line after each round.
    """
    deadline = time.monotonic() + seconds
    for _ in range(3 if load.work.compiled else 1):
        load.work.request()
    count = requests_in(BLOCK, load.work.request, LEAST, MOST)
    found = {name: Measured(load, name) for name in load.settings}
    for name in load.settings:
        guarded(found[name], lambda one: _block(load, one.setting, 1, flush))
    for turn in range(rounds):
        if turn >= MINIMUM and time.monotonic() > deadline:
            break
        _round(load, found, turn, count, flush)
        say(f"{load.work.name}, {load.size}: round {turn + 1} of {rounds}, {count} requests a block, {max(0, deadline - time.monotonic()):.0f} s left")
    return list(found.values())


def _round(load: Load, found: dict[str, Measured], turn: int, count: int, flush: Callable[[], Any]) -> None:
    """A block of each setting, in an order that rotates, with a plain block between each two."""
    names: Sequence[str] = [name for name in load.settings if found[name].problem is None]
    if not names:
        return
    turned = turn % len(names)
    before = _block(load, None, count, flush)
    for name in [*names[turned:], *names[:turned]]:
        one = found[name]
        times = guarded(one, lambda one: _block(load, one.setting, count, flush))
        after = _block(load, None, count, flush)
        if times is not None:
            one.with_it.append(times)
            one.plain.append(tuple((a + b) / 2 for a, b in zip(before, after, strict=True)))  # type: ignore[arg-type]  # of three each
        before = after


def guarded(one: Measured, block: Callable[[Measured], T]) -> T | None:
    """Run a block; what it raises ends this setting, not the others."""
    try:
        return block(one)
    except Exception as error:
        one.problem = f"{type(error).__name__}: {error}"[:160]
        return None
