"""Measures loads in turns of a few requests: some on an instrumented model, some on a twin of it, and again.

In: a load, which can make its twin, and settings. Out: as ``blocks``, a turn in place of a block. What disturbs the machine for longer than a
turn disturbs both of a pair, so that a twentieth of a millisecond can be told; and nothing is attached between two turns. The twin is of the
same class, whose ``generate()`` has our wrapper: a few microseconds that are not seen.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks.models import Workload
from benchmarks.requests.blocks import Measured, guarded, requests_in, timed
from benchmarks.requests.loads import SETTINGS, Load
from benchmarks.rounds import settle

__all__ = ["MOST_PAIRS", "measure"]

MOST_PAIRS = 200
"""Of a setting."""
TURN, MOST_REQUESTS = 0.03, 20
"""Seconds of requests in a turn; requests."""
WARMING = 20


def _pairs(one: Measured, twin: Workload, flush: Callable[[], Any], seconds: float, most: int, order: random.Random) -> None:
    undo = SETTINGS[one.setting].attach(one.load.work)
    try:
        settle(one.load.work)
        begun = time.perf_counter()
        for _ in range(WARMING):
            twin.request()
            one.load.work.request()
            if time.perf_counter() - begun > 2 and one.load.steps > 1:
                break
        count = requests_in(TURN, twin.request, 1, MOST_REQUESTS)
        deadline = time.monotonic() + seconds
        while len(one.plain) < most and (len(one.plain) < 2 or time.monotonic() < deadline):
            # Metrics are collected and sent after a turn of the twin as well, so that the difference is what the other one has made.
            found = {work is twin: timed(work.request, count, flush) for work in order.sample((one.load.work, twin), 2)}
            one.with_it.append(found[False])
            one.plain.append(found[True])
    finally:
        undo()


def measure(load: Load, flush: Callable[[], Any], *, seconds: float, rounds: int, say: Callable[[str], None]) -> list[Measured]:
    """Measure the settings of a load.

    Args:
        load: what runs under a setting.
        flush: has everything sent that was recorded.
        seconds: for all settings.
        rounds: most pairs of each setting.
        say: gets a line after each setting.
    """
    found, twin = [Measured(load, name) for name in load.settings], load.twin()
    order = random.Random(0)
    for one in found:
        guarded(one, lambda one: _pairs(one, twin, flush, seconds / len(found), rounds, order))
        say(f"{load.work.name}, {load.size}: {one.setting}, {len(one.plain)} pairs")
    return found
