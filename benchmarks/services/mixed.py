"""Requests with and without inferspan in one service at the same time: what a request costs under load, as a share of its CPU time.

In: cases of a collector and a number of bursts of each. Out: for each burst the CPU time of a request on its own thread, with and without, and that of the threads of inferspan
and of the SDK, shared among the requests with; then the median ratio with its 95 % interval. Neighbours on the machine, caches and the
frequency of the core are the same for both, so the ratio is sharper than that of two services. A service whose cores are busy serves as many
requests as its CPU time allows, so its inverse estimates the throughput.

Against inferspan: samplers and the reader of metrics cost by the second, and all of it is laid on half of the requests. For it: collections
of garbage that its objects cause may run in a plain request, whose class has our ``generate()`` as well (a few microseconds), and work of
the event loop is in neither.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.ratios import ratio_of
from benchmarks.service import LONGEST, serving

__all__ = ["burst", "main"]

FOLDER = Path(__file__).parent
COLLECTORS = ("fine", "slow", "dead")
WARMING = 2
"""Tokens of the requests before the first burst."""


def _get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONGEST) as answer:
        return json.load(answer)


def burst(port: int, connections: int, tokens: int, first: int) -> tuple[list[float], list[float]]:
    """A request from each connection at once, every other one observed, beginning with the first if ``first`` is 0.

    Returns:
        Seconds of CPU of those with inferspan, and of those without.
    """
    with_us: list[float] = []
    without: list[float] = []

    def ask(observed: int) -> None:
        seconds = _get(port, f"/chat?prompt=hello&tokens={tokens}&observed={observed}")["seconds"]
        (with_us if observed else without).append(seconds)

    threads = [threading.Thread(target=ask, args=((number + first + 1) % 2,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(with_us) + len(without) < connections:
        raise RuntimeError("the service has not answered each request")
    return with_us, without


def _since(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Seconds by the name of the threads."""
    found: dict[str, float] = {}
    for thread, seconds in now.items():
        name = thread.rpartition(" ")[0]
        found[name] = found.get(name, 0.0) + seconds - before.get(thread, 0.0)
    return found


def _measure(case: str, options: argparse.Namespace) -> None:
    ours: list[float] = []
    plain: list[float] = []
    with serving(case, "mixed_app:app", FOLDER) as (port, _):
        burst(port, options.connections, WARMING, 0)
        begun = spent = _get(port, "/spent")
        for number in range(options.mixed):
            with_us, without = burst(port, options.connections, options.tokens, number % 2)
            time.sleep(1.0)  # their spans are made by then; what is sent later counts in the next burst
            before, spent = spent, _get(port, "/spent")
            threads = sum(_since(spent, before).values()) / len(with_us)
            ours.append(statistics.mean(with_us) + threads)
            plain.append(statistics.mean(without))
            print(
                f"{case:<6} {statistics.mean(with_us) * 1000:17.2f} {plain[-1] * 1000:9.2f} {threads * 1000:16.2f} {ours[-1] / plain[-1]:7.4f}",
                flush=True,
            )
    shares = sorted(_since(spent, begun).items(), key=lambda one: -one[1])
    requests = options.mixed * len(with_us)
    print(f"{case}: ms a request by thread: " + ", ".join(f"{name} {1000 * seconds / requests:.2f}" for name, seconds in shares if seconds))
    found = ratio_of(ours, plain)
    print(
        f"{case}: CPU a request {found.median:.4f} ({found.sure_low:.4f} to {found.sure_high:.4f}) of plain, an estimated throughput of "
        f"{1 / found.median:.4f} ({1 / found.sure_high:.4f} to {1 / found.sure_low:.4f}), {len(ours)} bursts",
        flush=True,
    )


def main(options: argparse.Namespace) -> int:
    """Run all bursts of each case of a collector and print them."""
    print(f"{'case':<6} {'CPU ms a request':>17} {'plain':>9} {'threads of ours':>16} {'ratio':>7}", flush=True)
    for case in COLLECTORS:
        if case in options.cases:
            _measure(case, options)
    return 0
