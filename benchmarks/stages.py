"""What stages, events and decorators of the program cost on its thread, in microseconds: nothing recorded, not sampled, and recorded.

A block of ``with stage(...)`` with one attribute is entered in a loop. The thread's own CPU clock counts, and the fastest of many runs:
noise only adds. The line of a span of the SDK beside it is the same block with ``start_as_current_span``. Of a decorated function the time
of the plain one is taken off.
"""

from __future__ import annotations

import asyncio
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


def _plain(value: int) -> int:
    return value


async def _coroutine(value: int) -> int:
    return value


def _generator(value: int) -> Any:
    yield value


def _call(function: Any) -> None:
    for _ in range(CALLS):
        function(1)


def _await(function: Any) -> None:
    async def main() -> None:
        for _ in range(CALLS):
            await function(1)

    asyncio.run(main())


def _read(function: Any) -> None:
    for _ in range(CALLS):
        for _item in function(1):
            pass


def _event(_: Any) -> None:
    import inferspan

    event = inferspan.event
    for _number in range(CALLS):
        event("mark", count=3)


def _session() -> ExitStack:
    return _in_a_session(True)[1]


def _decorated(function: Any) -> Any:
    import inferspan

    return inferspan.event_on_return("done", lambda result: {"result": result})(inferspan.stage("part", count=3)(function))


FUNCTIONS: tuple[tuple[str, Callable[[Any], None], Any, Callable[[], ExitStack]], ...] = (
    ("a function under two decorators; nothing is recorded", _call, _plain, ExitStack),
    ("a coroutine function, the same", _await, _coroutine, ExitStack),
    ("a generator function of one value, the same", _read, _generator, ExitStack),
    ("a function under two decorators; recorded", _call, _plain, _session),
    ("an event; nothing is recorded", _event, None, ExitStack),
    ("an event; recorded", _event, None, _session),
)


def stages(address: str, *, seconds: float) -> list[dict[str, Any]]:
    """Measure every way; what an empty loop, or the plain function, takes is taken off."""
    count(address)
    lines, share = [], seconds / (len(WAYS) + len(FUNCTIONS))
    for name, enter in WAYS:
        note(f"stages: {name}")
        made, opened = enter()
        with opened:
            best = _fastest(made, share)
        lines.append({"what": name, "thread": f"{best:.3f}", "us": best})
    for name, run, function, enter_session in FUNCTIONS:
        note(f"stages: {name}")
        with enter_session():
            best = _difference(run, function, share)
        lines.append({"what": name, "thread": f"{best:.3f}", "us": best})
    return lines


def _difference(run: Callable[[Any], None], function: Any, seconds: float) -> float:
    """Microseconds that one call takes longer because it is decorated; of ``None`` the whole time of the loop."""
    decorated = None if function is None else _decorated(function)
    deadline = time.monotonic() + seconds
    plain, ours, runs = 0.0 if function is None else float("inf"), float("inf"), 0
    while runs < 3 or time.monotonic() < deadline:
        if function is not None:
            plain = min(plain, _timed(run, function))
        ours = min(ours, _timed(run, decorated))
        runs += 1
    return (ours - plain) / CALLS * 1e6


def _timed(run: Callable[[Any], None], function: Any) -> float:
    begin = time.thread_time()
    run(function)
    return time.thread_time() - begin


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
