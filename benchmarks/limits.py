"""Two rows that are no ratio of one request: the rate of export while a model runs, and the memory of a very long request.

The rate is that of spans which arrive at the receiver from the first request to the last arrival, over requests back to back; beside it
stands what the same requests take without. The memory is the peak of the process over that of the same request without.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from benchmarks import machine
from benchmarks.models import Workload, light, prepare
from benchmarks.ratios import ratio_of
from benchmarks.receiver import count
from benchmarks.rounds import note
from benchmarks.rows import lifted

__all__ = ["EXPORT_COLUMNS", "MEMORY_COLUMNS", "export_rate", "long_request"]

EXPORT_COLUMNS = (
    ("model", "model"),
    ("spans", "spans"),
    ("rate", "spans a second"),
    ("ratio", "ratio"),
    ("sure", "95 % of the median"),
    ("exported", "with export"),
    ("bytes", "bytes a span"),
    ("verdict", "verdict"),
)
MEMORY_COLUMNS = (
    ("what", "request"),
    ("plain", "plain, us a token"),
    ("ours", "instrumented, us a token"),
    ("ratio", "ratio"),
    ("spans", "spans"),
    ("memory", "peak memory, MiB"),
    ("verdict", "target < 64 MiB"),
)
LONG: tuple[tuple[str, dict[str, Any]], ...] = (("default", {}), ("every_step=True, all modules", {"every_step": True, "modules": "all"}))
RATE = 100_000
MEMORY = 64


def export_rate(work: Workload | None, address: str, *, seconds: float) -> list[dict[str, Any]]:
    """Rates with every module of every step: of ``work``, and of a model that does nothing else but call 500 modules."""
    quick = prepare("500 modules that do nothing", light(500), tokens=40)
    share = seconds / 2
    lines = [_rate(work, address, share, lambda rate: "all that the model makes")] if work is not None else []
    with machine.one_thread():
        return [*lines, _rate(quick, address, share, lambda rate: f">= {RATE:,}: {'met' if rate >= RATE else 'missed'}")]


def _rate(work: Workload, address: str, seconds: float, judged: Callable[[float], str]) -> dict[str, Any]:
    import inferspan

    note(f"export rate: {work.name}")
    plain: list[float] = []
    ours: list[float] = []
    whole: list[float] = []
    spans = sent = 0
    expected = 1 + (2 if work.tokens > 1 else 1) + work.tokens * (1 + work.modules)
    problem = ""
    deadline = time.monotonic() + seconds
    work.request()
    while len(plain) < 6 or time.monotonic() < deadline:
        begun = time.perf_counter()
        work.request()
        work.request()
        base = time.perf_counter() - begun
        with inferspan.instrument(work.model, **lifted(modules="all")):
            wall, begun = time.monotonic(), time.perf_counter()
            work.request()
            work.request()
            alone = time.perf_counter() - begun
            inferspan.flush(120)
        arrived = count(address)
        if arrived.total != 2 * expected:
            problem = f"FAILED: {arrived.total:,} spans arrived, not {2 * expected:,}"
            note(problem)
        plain.append(base)
        ours.append(alone)
        whole.append(max(alone, (arrived.last or wall) - wall))
        spans += arrived.total
        sent += arrived.bytes
    # The first pair warms up.
    figures, exported = ratio_of(ours[1:], plain[1:]), ratio_of(whole[1:], plain[1:])
    rate = spans / sum(whole)
    return {
        "model": work.name,
        "spans": f"{spans:,}",
        "rate": f"{rate:,.0f}",
        "ratio": f"{figures.median:.3f}",
        "sure": f"{figures.sure_low:.3f} to {figures.sure_high:.3f}",
        "exported": f"{exported.median:.3f}",
        "bytes": f"{sent / max(1, spans):.0f}",
        "verdict": problem or judged(rate),
        "failed": bool(problem),
        "spans a second": rate,
    }


def long_request(address: str, *, tokens: int = 100_000) -> list[dict[str, Any]]:
    """One request of ``tokens`` tokens, with the default settings and with all modules up to the budget's hard cap."""
    import inferspan

    work = prepare("long", light(2), tokens=tokens)
    # Warms up, so that what Python and torch keep for themselves is not taken for ours.
    short = prepare("short", work.model, tokens=200)
    for _, settings in LONG:
        with inferspan.instrument(work.model, **settings):
            short.request()
    lines = []
    note(f"memory: {tokens:,} tokens, plain")
    base, before = _peak(work)
    for name, settings in LONG:
        note(f"memory: {tokens:,} tokens, {name}")
        count(address)
        with inferspan.instrument(work.model, **settings):
            seconds, after = _peak(work)
            inferspan.flush(60)
        arrived = count(address)
        grown = None if before is None or after is None else (after - before) / 2**20
        lines.append(
            {
                "what": f"{tokens:,} tokens, {name}",
                "plain": f"{base / tokens * 1e6:.1f}",
                "ours": f"{seconds / tokens * 1e6:.1f}",
                "ratio": f"{seconds / base:.3f}",
                "spans": f"{arrived.total:,}",
                "memory": "cannot be read here" if grown is None else f"{grown:+.1f}",
                "verdict": "" if grown is None else "met" if grown < MEMORY else "missed",
                "mebibytes": grown,
            }
        )
    return lines


def _peak(work: Workload) -> tuple[float, int | None]:
    """Seconds of a request, and the growth of the process from its beginning to its peak."""
    gc.collect()
    machine.reset_peak()
    start, _ = machine.peak()
    begun = time.perf_counter()
    work.request()
    seconds = time.perf_counter() - begun
    end, _ = machine.peak()
    return seconds, None if start is None or end is None else end - start
