"""A service with and without inferspan at the same time, each on a core of its own: what disturbs the machine disturbs both.

In: cases and a number of pairs. Out: a line for each run, then for each case the median ratio to plain with its 95 % interval, beside ``again``,
plain against plain. All processes of a service share its core: model, export, the receiver of the telemetry and the clients, so nothing that
inferspan adds goes to an idle core. One core may be faster than the other, so a pair is two runs, the second with the cores exchanged, and its ratio
their geometric mean. The slower service ends alone, in less disturbance.
"""

from __future__ import annotations

import argparse
import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.ratios import Ratio, ratio_of
from benchmarks.service import Load, run

__all__ = ["main", "side_by_side"]

READY = 600.0
"""Seconds that one service waits for the other before both are measured."""


def _on(core: int, case: str, options: argparse.Namespace, together: threading.Barrier) -> Load:
    # Processes and threads that this thread starts inherit its core.
    os.sched_setaffinity(0, {core})
    try:
        return run(case, options, partial(together.wait, READY))
    except BaseException:
        together.abort()
        raise


def side_by_side(case: str, options: argparse.Namespace, cores: Sequence[int]) -> tuple[Load, Load]:
    """Run a case on the first core and plain on the second, with the load at the same time."""
    together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(_on, core, name, options, together) for core, name in zip(cores, (case, "plain"), strict=True)]
        return runs[0].result(), runs[1].result()


def _ratio(pairs: Sequence[Sequence[tuple[float, float]]]) -> Ratio:
    """Of a figure in pairs of two runs, each with the figures of the case and of plain."""
    ours, plain = ([math.sqrt(first[place] * second[place]) for first, second in pairs] for place in (0, 1))
    return ratio_of(ours, plain)


def _say(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} ({ratio.sure_low:.3f} to {ratio.sure_high:.3f})"


def main(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run all pairs and print them."""
    if not hasattr(os, "sched_setaffinity"):
        parser.error("--pairs needs Linux, where a process can be kept on one core")
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        parser.error("--pairs needs two cores")
    found: dict[str, list[list[tuple[Load, Load]]]] = {case: [] for case in options.cases}
    print(
        f"{'case':<12} {'req/s':>8} {'plain':>8} {'p99 ms':>10} {'plain':>10} {'growth MiB':>11} {'plain':>8} "
        f"{'threads':>8} {'plain':>6} {'CPU ms':>8} {'plain':>8}",
        flush=True,
    )
    for _ in range(options.pairs):
        for case in options.cases:
            found[case].append([])
            for order in (cores, cores[::-1]):
                one, plain = side_by_side(case, options, order)
                found[case][-1].append((one, plain))
                print(
                    f"{case:<12} {one.rate:8.3f} {plain.rate:8.3f} {one.p99 * 1000:10.1f} {plain.p99 * 1000:10.1f} "
                    f"{one.growth / 2**20:11.1f} {plain.growth / 2**20:8.1f} {one.threads:8d} {plain.threads:6d} "
                    f"{one.busy * 1000:8.2f} {plain.busy * 1000:8.2f}",
                    flush=True,
                )
    for case, pairs in found.items():
        rate, p99, busy = (
            _ratio([[(getattr(one, name), getattr(plain, name)) for one, plain in pair] for pair in pairs]) for name in ("rate", "p99", "busy")
        )
        print(f"{case}: throughput {_say(rate)}, p99 {_say(p99)}, CPU a request {_say(busy)}, {len(pairs)} pairs", flush=True)
    return 0
