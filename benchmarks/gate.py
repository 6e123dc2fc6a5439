"""How often the gate of ``inferspan diff`` is right: false alarms of equal sides, and slow-downs that it finds.

    python -m benchmarks.gate                              record for a minute, then 500 trials without and 100 with a slow-down
    python -m benchmarks.gate --noise noise.json           the same on times that were recorded before; written if it is not there
    python -m benchmarks.gate --clock thread               without the time that requests wait for a processor, on a machine that others use
    python -m benchmarks.gate --synthetic 2%               the same on made-up times with a deviation of 2 %, whatever the machine does
    python -m benchmarks.gate --requests 100 --slow-down 5% --gate 5%

One model is recorded through a session file, and its requests are A and B in turns: two models, though equal, lie elsewhere in memory, which
is no noise. A trial is a window of these times, with its drift and its outliers; a slow-down is planted by a factor on the times of B.
``in turns`` compares what ran side by side, ``one after the other`` B with what ran before it. Windows of a short recording overlap. Ends
with 0; a missed target is a figure, not a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.arguments import positive
from inferspan.diff.compare import FALSE_ALARMS, FINE, REGRESSION, judgement
from inferspan.diff.recording import REQUEST, recording
from inferspan.diff.statistics import change
from inferspan.testing import record

__all__ = ["Outcome", "main", "outcome", "pairs", "synthetic", "windows"]

_FEWEST = 40
_MADE_UP = 50_000
"""Pairs: 500 windows of 100 do not overlap."""
Pairs = Sequence[tuple[float, float]]


class Outcome(NamedTuple):
    """Trials of a kind: how many were an alarm, how many undecided, and the median standard error of a logarithm."""

    trials: int
    alarms: int
    undecided: int
    error: float


def windows(times: Pairs, size: int, number: int, *, apart: bool, seed: int) -> list[tuple[list[float], list[float]]]:
    """Times of A and B in ``number`` windows of ``size`` requests; ``apart``: those of B come after those of A."""
    draw, last = random.Random(seed), len(times) - (2 if apart else 1) * size
    if last < 0:
        raise ValueError(f"{len(times)} pairs are too few for windows of {size} requests")
    even = [place * size for place in range(last // size + 1)]
    starts = even[:number] if len(even) >= number else [draw.randint(0, last) for _ in range(number)]
    shift = size if apart else 0
    return [([a for a, _ in times[s : s + size]], [b for _, b in times[s + shift : s + shift + size]]) for s in starts]


def outcome(trials: Sequence[tuple[list[float], list[float]]], *, slower: float, gate: float, alpha: float, apart: bool) -> Outcome:
    """What the gate says of trials in which B is slower by a factor; ``apart``: B was recorded after A."""
    said, errors = Counter[str](), []
    for a, b in trials:
        found = change([a], [[slower * value for value in b]], turns=not apart)
        said[judgement(found, gate, alpha)] += 1
        errors.append(found.error if found is not None else float("nan"))
    return Outcome(len(trials), said[REGRESSION], len(trials) - said[REGRESSION] - said[FINE], statistics.median(errors))


def pairs(times: Sequence[float]) -> list[tuple[float, float]]:
    """Neighbours as A and B; each is the second one in turn, because that one has warmer caches."""
    halves = zip(times[::2], times[1::2], strict=False)
    return [pair if number % 2 else pair[::-1] for number, pair in enumerate(halves)]


def _record(seconds: float, clock: str) -> list[tuple[float, float]]:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.GELU())))
    rows, until = torch.randn(64, 256), time.monotonic() + seconds
    times: list[float] = []
    with torch.no_grad():
        if clock == "thread":
            while time.monotonic() < until or len(times) < _FEWEST:
                begun = time.thread_time()
                model(rows)
                times.append(time.thread_time() - begun)
            return pairs(times[2:])
        with record(model, modules="none", nvml=False) as found:
            while time.monotonic() < until or len(times) < _FEWEST:
                model(rows)
                times.append(0.0)
    return pairs([sample.seconds[REQUEST] for sample in recording(found.session()).samples])


def synthetic(deviation: float, number: int, seed: int = 0) -> list[tuple[float, float]]:
    """Made-up times of pairs in seconds: noise, one in twenty half as long again or more, and a drift that both share."""
    draw, level, found = random.Random(seed), 0.0, []
    for _ in range(number):
        level = 0.98 * level + draw.gauss(0, deviation / 4)
        pair = [draw.lognormvariate(level, deviation) * (1.5 + draw.expovariate(2.0) if draw.random() < 0.05 else 1.0) for _ in "AB"]
        found.append((0.01 * pair[0], 0.01 * pair[1]))
    return found


def _share(text: str) -> float:
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=positive, default=500, help="without a slow-down; a fifth as many with one (default: %(default)s)")
    parser.add_argument("--requests", metavar="LIST", default="20,50,100,200,400", help="requests of a trial on a side (default: %(default)s)")
    parser.add_argument("--gate", type=_share, default=0.03, help="default: 3%%")
    parser.add_argument("--slow-down", type=_share, default=0.03, help="that is planted (default: 3%%)")
    parser.add_argument("--figures", type=positive, default=3, help="that a comparison judges: generate() has three (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of recording (default: %(default)g)")
    parser.add_argument("--noise", type=Path, metavar="FILE", help="recorded times as JSON: read if it is there, else written")
    parser.add_argument("--clock", choices=["wall", "thread"], default="wall", help="of the recording; thread: processor time, without spans")
    parser.add_argument("--synthetic", type=_share, metavar="SHARE", help="make times up, with this deviation, instead of recording")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Record or read times, run the trials, print the table."""
    arguments = _arguments(argv)
    if arguments.synthetic is not None:
        times = synthetic(arguments.synthetic, _MADE_UP)
    elif arguments.noise is not None and arguments.noise.exists():
        times = [(float(a), float(b)) for a, b in json.loads(arguments.noise.read_text())]
    else:
        print(f"recording for {arguments.seconds:g} s", file=sys.stderr)
        times = _record(arguments.seconds, arguments.clock)
        if arguments.noise is not None:
            arguments.noise.write_text(json.dumps(times))
    alpha, middle = FALSE_ALARMS / arguments.figures, statistics.median(a for a, _ in times)
    slow = sum(a > 1.5 * middle for a, _ in times) / len(times)
    load = ""
    if arguments.synthetic is None and hasattr(os, "getloadavg"):
        load = f"; load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"{len(times)} pairs of requests, median {1e3 * middle:.2f} ms, {100 * slow:.1f} % above 1.5 times that{load}")
    print(f"gate {100 * arguments.gate:g} %, planted {100 * arguments.slow_down:g} %, false alarms {100 * alpha:.3g} % a figure\n")
    print(f"{'recorded':<20}{'requests':>9}{'alarms':>14}{'undecided':>12}{'found':>12}{'standard error':>16}")
    for apart in (False, True):
        for size in map(int, arguments.requests.split(",")):
            if len(times) < (4 if apart else 2) * size:
                continue
            equal = windows(times, size, arguments.trials, apart=apart, seed=1)
            planted = windows(times, size, max(1, arguments.trials // 5), apart=apart, seed=2)
            same = outcome(equal, slower=1.0, gate=arguments.gate, alpha=alpha, apart=apart)
            other = outcome(planted, slower=1 + arguments.slow_down, gate=arguments.gate, alpha=alpha, apart=apart)
            name = "one after the other" if apart else "in turns"
            print(
                f"{name:<20}{size:>9}{f'{same.alarms} of {same.trials}':>14}{same.undecided:>12}"
                f"{f'{other.alarms} of {other.trials}':>12}{100 * same.error:>14.2f} %"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
