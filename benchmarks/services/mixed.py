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
import http.client
import json
import statistics
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.ratios import ratio_of
from benchmarks.service import LONGEST, SLOW, collector, free_port, running

__all__ = ["burst", "main"]

FOLDER = Path(__file__).parent
COLLECTORS = ("fine", "slow", "dead")
WARMING = 2
"""Tokens of the requests before the first burst."""


def _get(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST)
    connection.request("GET", path)
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


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


def _since(now: Mapping[str, float], before: Mapping[str, float]) -> float:
    return sum(seconds - before.get(name, 0.0) for name, seconds in now.items())


def _by_name(now: Mapping[str, float], before: Mapping[str, float], requests: int) -> list[tuple[str, float]]:
    """Seconds of the threads of each name, a request, most first."""
    found: dict[str, float] = {}
    for thread, seconds in now.items():
        name = thread.rpartition(" ")[0]
        found[name] = found.get(name, 0.0) + seconds - before.get(thread, 0.0)
    return sorted(((name, seconds / requests) for name, seconds in found.items() if seconds), key=lambda one: -one[1])


def _measure(case: str, options: argparse.Namespace) -> None:
    port, receiver = free_port(), free_port()
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver}", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    command = ("-m", "uvicorn", "mixed_app:app", "--port", str(port), "--no-access-log")
    ours: list[float] = []
    plain: list[float] = []
    with collector(receiver, SLOW if case == "slow" else 0.0, alive=case != "dead"), running(command, port, variables, FOLDER):
        burst(port, options.connections, WARMING, 0)
        begun = _get(port, "/spent")
        for number in range(options.mixed):
            before = _get(port, "/spent")
            with_us, without = burst(port, options.connections, options.tokens, number % 2)
            time.sleep(1.0)  # their spans are made by then; what is sent later counts in the next burst
            threads = _since(_get(port, "/spent"), before) / len(with_us)
            ours.append(statistics.mean(with_us) + threads)
            plain.append(statistics.mean(without))
            print(
                f"{case:<6} {statistics.mean(with_us) * 1000:17.2f} {plain[-1] * 1000:9.2f} {threads * 1000:16.2f} {ours[-1] / plain[-1]:7.4f}",
                flush=True,
            )
        shares = _by_name(_get(port, "/spent"), begun, options.mixed * len(with_us))
    print(f"{case}: ms a request by thread: " + ", ".join(f"{name} {1000 * seconds:.2f}" for name, seconds in shares))
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
