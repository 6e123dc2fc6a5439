"""What a stage of the program costs on its thread, in microseconds: where nothing is recorded, not sampled, and recorded.

A block of ``with stage(...)`` with one attribute is entered in a loop. The thread's own CPU clock counts, and the fastest of many runs:
noise only adds. The line of a span of the SDK beside it is the same block with ``start_as_current_span``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from benchmarks.receiver import count
from benchmarks.rounds import note

__all__ = ["COLUMNS", "stages"]

COLUMNS = (("what", "for each stage"), ("thread", "us on its thread"))
CALLS = 2_000
Opened = tuple[Callable[[], AbstractContextManager[Any]], ExitStack]


def _stage() -> AbstractContextManager[Any]:
    import inferspan

    return inferspan.stage("part", count=3)


def _off() -> Opened:
    return _stage, ExitStack()


def _in_a_session(sampled: bool) -> Opened:
    """A session whose provider keeps nothing, so that the stage alone is measured."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    import inferspan

    opened = ExitStack()
    provider = TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF, shutdown_on_exit=False)
    opened.enter_context(inferspan.session("benchmark", tracer_provider=provider))
    return _stage, opened


def _sdk_span() -> Opened:
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("benchmark")
    return lambda: tracer.start_as_current_span("part", attributes={"count": 3}), ExitStack()


WAYS: tuple[tuple[str, Callable[[], Opened]], ...] = (
    ("nothing is instrumented, no session is open", _off),
    ("not sampled", lambda: _in_a_session(False)),
    ("recorded", lambda: _in_a_session(True)),
    ("for comparison: a span of the SDK", _sdk_span),
)


def stages(address: str, *, seconds: float) -> list[dict[str, Any]]:
    """Measure every way; what an empty loop takes is taken off."""
    count(address)
    lines = []
    for name, enter in WAYS:
        note(f"stages: {name}")
        made, opened = enter()
        with opened:
            best = _fastest(made, seconds / len(WAYS))
        lines.append({"what": name, "thread": f"{best:.3f}", "us": best})
    return lines


def _fastest(made: Callable[[], AbstractContextManager[Any]], seconds: float) -> float:
    deadline = time.monotonic() + seconds
    best, runs = float("inf"), 0
    while runs < 3 or time.monotonic() < deadline:
        begin = time.thread_time()
        for _ in range(CALLS):
            pass
        empty = time.thread_time() - begin
        begin = time.thread_time()
        for _ in range(CALLS):
            with made():
                pass
        best = min(best, (time.thread_time() - begin - empty) / CALLS * 1e6)
        runs += 1
    return best
