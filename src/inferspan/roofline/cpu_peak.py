"""The ceilings of this machine's CPU, measured by a short benchmark when it is asked for: products of matrices and copies of memory.

In: seconds that a measurement may take. Out: FLOP/s by dtype and bytes a second, kept in a file in the user's cache folder. torch
is imported when something is measured.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .peaks import cache_file, cpu_name, read_measured

__all__ = ["keep", "measure"]

SIDE = 2048
"""Rows and columns of the matrices: large enough that reading them takes little of the time."""
SMALLEST = 256
"""Rows of those with which it begins."""
COPIED = 256 * 2**20
"""Bytes that are copied: more than caches hold."""
DTYPES = ("float32", "bfloat16", "float16", "float64")


def measure(
    seconds: float = 0.5, *, side: int = SIDE, copied: int = COPIED, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Measure the CPU with the threads that torch uses.

    Args:
        seconds: for each dtype and for the memory; the best of the repetitions in that time counts.
        side: rows and columns of the matrices.
        copied: bytes of the array that is copied.
        clock: seconds of a monotonic clock.

    Returns:
        FLOP/s by dtype, and ``bandwidth`` in bytes a second, reading and writing together.
    """
    import torch

    found: dict[str, float] = {}
    with torch.no_grad():
        for dtype in DTYPES:
            found[dtype] = _products(getattr(torch, dtype), side, seconds, clock)
        source = torch.ones(copied, dtype=torch.uint8)
        target = torch.empty_like(source)
        found["bandwidth"] = 2 * copied / _fastest(lambda: target.copy_(source), seconds, clock)
    return found


def _products(dtype: Any, side: int, seconds: float, clock: Callable[[], float]) -> float:
    """FLOP/s of products; smaller matrices where one product would take longer than the measurement, as float16 does on many CPUs."""
    import torch

    rows = min(side, SMALLEST)
    while True:
        one = torch.ones(rows, rows, dtype=dtype)
        other, result = one.clone(), torch.empty_like(one)
        run = functools.partial(torch.mm, one, other, out=result)
        if rows >= side or _once(run, clock) * 8 > seconds:
            return 2 * rows**3 / _fastest(run, seconds, clock)
        rows = min(side, 2 * rows)


def _once(run: Callable[[], object], clock: Callable[[], float]) -> float:
    run()
    begun = clock()
    run()
    return clock() - begun


def _fastest(run: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    run()
    best, end = float("inf"), clock() + seconds
    while True:
        begun = clock()
        run()
        now = clock()
        best = min(best, max(now - begun, 1e-9))
        if now >= end:
            return best


def keep(found: Mapping[str, float], environ: Mapping[str, str] | None = None) -> Path:
    """Write measured figures beside those of other machines and numbers of threads, for the models that are instrumented from now on.

    Args:
        found: from ``measure``.
        environ: names the cache, default ``os.environ``.

    Raises:
        OSError: the file cannot be written.
    """
    import torch

    path = cache_file(environ)
    known = {**read_measured(environ), f"{cpu_name()}, {torch.get_num_threads()} threads": dict(found)}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(known, indent=2) + "\n")
    part.replace(path)
    return path
