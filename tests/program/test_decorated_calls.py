"""Calls of decorated functions: decorators on each other, threads, tasks, memory, and compiled code."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import inferspan
from inferspan import semconv
from tests.cases.telemetry import Telemetry
from tests.program.kinds import DECORATORS, SPANS, Kind, each, events_on_spans, twice


@pytest.mark.parametrize("order", [*itertools.permutations(("session", "stage", "event", "model"))], ids="-".join)
def test_stacked_in_any_order(order: tuple[str, ...], kind: Kind, telemetry: Telemetry, model: Any) -> None:
    """In any order the event lands on the innermost span, and the facts of the model on the session; spans nest as they are written."""
    plain = kind.make(twice)
    made = plain
    for name in order:
        made = DECORATORS[name]()(made)
    assert kind.call(made, 3) == 6
    assert inspect.unwrap(made) is plain
    inner = next(SPANS[name] for name in order if name in SPANS)
    result = {} if "generator" in kind.name else {"result": 6}
    assert events_on_spans(telemetry)[-1] == (inner, "returned", {**result, "value": 3, "scale": 1})
    assert telemetry.only(telemetry.spans("session job"))[semconv.MODEL_NAME] == "mine"
    (outer_span,) = telemetry.roots()
    assert outer_span.name != inner
    assert len(telemetry.spans()) == 2
    telemetry.check()


def test_a_decorator_of_somebody_else_in_between(telemetry: Telemetry, model: Any) -> None:
    """A foreign decorator runs where it is written: what lies around it does not become part of what is inside."""
    calls = []

    def foreign(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            calls.append(args)
            return function(*args)

        return call

    made = inferspan.event_on_return("returned")(foreign(inferspan.stage("part")(lambda value: value)))
    with inferspan.stage("outer"):
        assert made(1) == 1
    assert calls == [(1,)]
    assert [(where, what) for where, what, _ in events_on_spans(telemetry)] == [("outer", "returned")]


# ----------------------------------------------------------------------------------------------- threads, tasks, memory
def test_threads(telemetry: Telemetry, model: Any) -> None:
    """Calls on several threads at once are each their own, in the stage that started the thread."""
    barrier = threading.Barrier(4)

    @inferspan.stage("work")
    def work(value: int) -> None:
        barrier.wait(30)
        inferspan.event("mark", value=value)

    with inferspan.stage("outer"):
        threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [len(span.events) for span in telemetry.spans("work")] == [1] * 4
    (outer,) = telemetry.spans("outer")
    assert {span.parent.span_id for span in telemetry.spans("work") if span.parent} == {outer.context.span_id if outer.context else None}
    assert sorted(attributes["value"] for _, _, attributes in events_on_spans(telemetry)) == [0, 1, 2, 3]
    telemetry.check()


def test_tasks(telemetry: Telemetry, model: Any) -> None:
    """Tasks that run in turn keep their own stages apart."""

    @inferspan.stage("work")
    async def work(value: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            inferspan.event("mark", value=value)

    async def main() -> None:
        await asyncio.gather(work(1), work(2))

    asyncio.run(main())
    for span in telemetry.spans("work"):
        assert len({(event.attributes or {})["value"] for event in span.events}) == 1
        assert len(span.events) == 3
    telemetry.check()


def test_a_task_that_is_cancelled(telemetry: Telemetry, model: Any) -> None:
    """A cancelled task ends its stage as one that was cancelled, and is cancelled."""

    @inferspan.event_on_return("returned")
    @inferspan.stage("work")
    async def work() -> None:
        await asyncio.sleep(60)

    async def main() -> bool:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert asyncio.run(main())
    (span,) = telemetry.spans("work")
    assert "CancelledError" in str((span.attributes or {})[semconv.ERROR_TYPE])
    assert [event.name for event in span.events] == ["exception"]
    telemetry.check()


def test_variables_of_the_context(telemetry: Telemetry, model: Any, kind: Kind) -> None:
    """Variables of the context are those of the caller, and what a function sets stays set as it would without the decorator."""
    variable = contextvars.ContextVar("variable", default=0)

    def body(value: int) -> int:
        variable.set(variable.get() + value)
        return variable.get()

    made = inferspan.stage("part")(kind.make(body))
    variable.set(1)
    assert kind.call(made, 2) == 3
    assert variable.get() == (1 if "co" in kind.name or "async" in kind.name else 3)


class _Large:
    pass


@each
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_nothing_is_kept_alive(kind: Kind, decorator: Callable[[], Any], fails: bool, telemetry: Telemetry, model: Any) -> None:
    """Arguments, results and exceptions are released when the caller releases them, with no help of the garbage collector."""
    alive: list[weakref.ref[Any]] = []

    def body(value: int) -> Any:
        large = _Large()
        alive.append(weakref.ref(large))
        if fails:
            raise LookupError(large)
        return 2

    made = decorator()(kind.make(body))
    kind.call(made, 1) if not fails else _failing(kind, made)
    gc.collect()
    gc.disable()
    try:
        alive.clear()
        if fails:
            _failing(kind, made)
        else:
            kind.call(made, 1)
        # An event loop has cycles of its own.
        if kind.name == "function" or kind.name == "generator function":
            assert [one() for one in alive] == [None]
    finally:
        gc.enable()
    gc.collect()
    assert [one() for one in alive] == [None]


def _failing(kind: Kind, made: Any) -> None:
    try:
        kind.call(made, 1)
    except LookupError:
        pass
    else:
        raise AssertionError("nothing was raised")


def test_a_decorated_function_is_released() -> None:
    """A decorated function that nobody holds any more is released."""
    made = inferspan.event_on_return("returned")(inferspan.stage("part")(lambda: 1))
    gone = weakref.ref(made)
    del made
    assert gone() is None


def test_compiled(telemetry: Telemetry, model: Any) -> None:
    """A decorated function inside a compiled one is compiled with it, in one graph, and not recorded."""

    @inferspan.stage("part")
    def double(value: torch.Tensor) -> torch.Tensor:
        return value * 2

    compiled = torch.compile(lambda value: double(value) + 1, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]
    assert telemetry.spans("part") == []


def test_suppressed(telemetry: Telemetry, model: Any) -> None:
    """Where the caller has switched telemetry off, nothing is recorded and nothing is asked."""
    from opentelemetry import context as otel_context

    fails: Any = lambda result: 1 / 0  # noqa: E731
    made = inferspan.event_on_return("returned", fails)(inferspan.stage("part", fails)(lambda: 1))
    token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
    try:
        assert made() == 1
    finally:
        otel_context.detach(token)
    assert telemetry.spans() == []


def test_off_calls_nothing_else(kind: Kind) -> None:
    """Where nothing is recorded, a call under five decorators runs one function of ours."""
    made = kind.make(lambda value: 2 * value)
    for decorator in DECORATORS.values():
        if decorator is not DECORATORS["session"]:
            made = decorator()(made)
    ran: set[str] = set()

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and "inferspan" in frame.f_globals.get("__name__", "").split("."):
            ran.add(frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        kind.call(made, 1)
    finally:
        sys.setprofile(None)
    assert {name.rpartition(".")[2] for name in ran} == {"call"}
