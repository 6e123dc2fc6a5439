"""How the cost grows: layers 4 to 128, tokens 10 to 100,000, batch 1 to 256, threads 1 to 8.

Small models, so that the telemetry is as large a part as it gets. For each point: plain time, what is added, and what is added for each unit of
recorded work (a span, or a step where the budget bounds the spans). Growing no faster than the work means: the last column does not rise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.models import Workload, light, llama, prepare
from benchmarks.ratios import exponent
from benchmarks.receiver import count
from benchmarks.rounds import note
from benchmarks.rows import lifted

__all__ = ["COLUMNS", "TOKENS", "scale"]

COLUMNS = (
    ("what", "what grows"),
    ("size", "size"),
    ("plain", "plain, ms"),
    ("added", "added, ms"),
    ("with export", "with export, ms"),
    ("work", "recorded"),
    ("each", "added us for each"),
    ("growth", "exponent"),
)
LAYERS, TOKENS, BATCHES, THREADS = (4, 16, 64, 128), (10, 100, 1000, 10_000), (1, 16, 256), (1, 2, 8)
LEAST, MOST = 5, 30
"""Pairs of a point that is quick."""
SLOW = 2.0
"""Seconds of a request that is measured once if there is no time for more."""
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 1000}


@dataclass(frozen=True)
class Point:
    """One size: how to make its workload, the settings, and the number of units of work that are recorded."""

    size: int
    work: Callable[[], Workload]
    settings: dict[str, Any]
    units: Callable[[Workload], int]
    unit: str
    threads: int = 1


def _series(longest: int) -> Iterator[tuple[str, list[Point]]]:
    every = lifted(modules="all")
    yield "layers, all modules, 16 tokens", [Point(size, partial(_llama, layers=size), every, _spans, "module span") for size in LAYERS]
    lengths = [size for size in (*TOKENS, 100_000) if size <= longest]
    yield "tokens, default", [Point(size, partial(_light, size), {}, _steps, "step") for size in lengths]
    yield (
        "batch, default, 16 tokens",
        [Point(size, partial(_llama, batch=size), {}, partial(_steps, times=size), "row") for size in BATCHES],
    )
    name = "threads on one model, all modules, 16 tokens each"
    yield name, [Point(size, _llama, every, partial(_spans, times=size), "module span", threads=size) for size in THREADS]


def _llama(layers: int = 4, batch: int = 1) -> Workload:
    return prepare("scale", llama(num_hidden_layers=layers, **SMALL).cpu().float(), tokens=16, batch=batch)


def _light(tokens: int) -> Workload:
    return prepare("scale", light(2), tokens=tokens)


def _spans(work: Workload, times: int = 1) -> int:
    return work.modules * work.tokens * times


def _steps(work: Workload, times: int = 1) -> int:
    return work.tokens * times


def scale(address: str, *, seconds: float, longest: int = TOKENS[-1]) -> list[dict[str, Any]]:
    """Measure every series; returns the lines of its table.

    Args:
        address: the receiver's.
        seconds: time for all of it; every point is measured once at least, those that end quickly several times.
        longest: greatest number of tokens.
    """
    lines: list[dict[str, Any]] = []
    series = list(_series(longest))
    share = seconds / sum(len(points) for _, points in series)
    for name, points in series:
        measured = []
        for point in points:
            note(f"scale: {name}, {point.size:,}")
            measured.append(_point(name, point, address, share))
        growth = exponent([line["units"] for line in measured], [line["seconds added"] for line in measured])
        measured[-1]["growth"] = (
            "not resolved" if growth != growth or any(line["seconds added"] <= 0 for line in measured) else f"{growth:.2f}"
        )
        lines += measured
    return lines


def _point(name: str, point: Point, address: str, seconds: float) -> dict[str, Any]:
    import inferspan

    work = point.work()
    plain: list[float] = []
    ours: list[float] = []
    whole: list[float] = []
    deadline = time.monotonic() + seconds
    base = 0.0
    while not plain or (len(plain) < LEAST and base < SLOW) or (len(plain) < MOST and time.monotonic() < deadline):
        base = _timed(work, point.threads)
        with inferspan.instrument(work.model, **point.settings):
            begun = time.monotonic()
            alone = _timed(work, point.threads)
            inferspan.flush(60)
        arrived = count(address)
        # The first pair of a point that is quick warms up.
        if plain or base > SLOW:
            ours.append(alone)
            whole.append(max(alone, (arrived.last or begun) - begun))
        plain.append(base)
    base, alone, exported = min(plain[1:] or plain), min(ours or [alone]), min(whole or [alone])
    units = point.units(work)
    added = alone - base
    return {
        "what": name,
        "size": f"{point.size:,}",
        "plain": f"{base * 1000:,.1f}",
        "added": f"{added * 1000:,.2f}",
        "with export": f"{(exported - base) * 1000:,.2f}",
        "work": f"{units:,} {point.unit}s",
        "each": f"{added / units * 1e6:.2f}",
        "growth": "",
        "units": units,
        "seconds plain": base,
        "seconds added": added,
        "spans": arrived.total,
    }


def _timed(work: Workload, threads: int) -> float:
    """Seconds of one request, or of one on each of several threads at once."""
    begun = time.perf_counter()
    if threads == 1:
        work.request()
    else:
        running = [threading.Thread(target=work.request) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    return time.perf_counter() - begun
