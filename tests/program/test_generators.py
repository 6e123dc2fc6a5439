"""Decorated generators: how long they are open, what is current meanwhile, and how they end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

import inferspan
from inferspan import semconv
from tests.cases.telemetry import Telemetry


@inferspan.event_on_return("whole", lambda result: {"result": result})
@inferspan.stage("produce")
def produce(count: int) -> Generator[int, Any, str]:
    """Numbers, each with an event; what is sent becomes one, too."""
    for number in range(count):
        inferspan.event("item", number=number)
        sent = yield number
        if sent is not None:
            inferspan.event("sent", value=sent)
    return "end"


@inferspan.event_on_return("whole")
@inferspan.stage("produce")
async def produce_later(count: int) -> AsyncIterator[int]:
    """The same of a task."""
    for number in range(count):
        await asyncio.sleep(0)
        inferspan.event("item", number=number)
        yield number


def _events(telemetry: Telemetry, name: str) -> list[str]:
    return [event.name for span in telemetry.spans(name) for event in span.events]


def _error(telemetry: Telemetry) -> Any:
    return telemetry.only(telemetry.spans("produce")).get(semconv.ERROR_TYPE)


def test_open_until_exhausted(telemetry: Telemetry, model: Any) -> None:
    """The stage of a generator is open until it is exhausted; its reader is not in it."""
    before = otel_context.get_current()
    reading = produce(2)
    for number in reading:
        assert otel_context.get_current() == before
        assert telemetry.spans("produce") == []
        with inferspan.stage("read"):
            inferspan.event("reader", number=number)
    assert _events(telemetry, "produce") == ["item", "item", "whole"]
    assert _events(telemetry, "read") == ["reader", "reader"]
    assert all(span.parent is None for span in telemetry.spans())
    telemetry.check()


def test_not_begun(telemetry: Telemetry, model: Any) -> None:
    """A generator that is never read has no stage."""
    produce(2).close()
    assert telemetry.spans() == []


def test_closed_early(telemetry: Telemetry, model: Any) -> None:
    """A generator that is closed ends its stage without an error, and has not returned."""
    reading = produce(5)
    next(reading)
    reading.close()
    assert _events(telemetry, "produce") == ["item"]
    assert _error(telemetry) is None
    telemetry.check()


def test_released_early(telemetry: Telemetry, model: Any) -> None:
    """So does one that its reader lets go of."""
    for _ in produce(5):
        break
    gc.collect()
    assert _events(telemetry, "produce") == ["item"]
    assert _error(telemetry) is None
    telemetry.check()


def test_closed_on_another_thread(telemetry: Telemetry, model: Any) -> None:
    """A generator may be closed by another thread, where nothing of it stays current."""
    reading, current = produce(5), []
    next(reading)

    def close() -> None:
        reading.close()
        current.append(trace.get_current_span().get_span_context().is_valid)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert current == [False]
    assert _error(telemetry) is None
    telemetry.check()


def test_an_exception_at_the_close(telemetry: Telemetry, model: Any) -> None:
    """An exception that a generator raises while it is closed passes, and is that of its stage."""

    @inferspan.stage("produce")
    def stubborn() -> Any:
        try:
            yield 1
        finally:
            raise LookupError("theirs")

    reading = stubborn()
    next(reading)
    with pytest.raises(LookupError, match="theirs"):
        reading.close()
    assert _error(telemetry) == "LookupError"


def test_send_and_throw(telemetry: Telemetry, model: Any) -> None:
    """Values that are sent and exceptions that are thrown reach the generator; what it returns reaches ``yield from``."""

    @inferspan.stage("produce")
    def echo() -> Any:
        got = yield "first"
        try:
            yield got
        except KeyError as error:
            yield f"caught {error}"
        return "result"

    def read() -> Any:
        return (yield from echo())

    reading = read()
    assert next(reading) == "first"
    assert reading.send(7) == 7
    assert reading.throw(KeyError("k")) == "caught 'k'"
    with pytest.raises(StopIteration) as stop:
        next(reading)
    assert stop.value.value == "result"
    telemetry.check()


def test_a_thrown_exception_that_is_not_caught(telemetry: Telemetry, model: Any) -> None:
    """An exception that is thrown in and passes is the same object, without a context, and ends the stage."""
    error = LookupError("theirs")
    reading = produce(5)
    next(reading)
    with pytest.raises(LookupError) as caught:
        reading.throw(error)
    assert caught.value is error
    assert error.__context__ is None
    assert _error(telemetry) == "LookupError"
    with pytest.raises(StopIteration):
        next(reading)


def test_another_exception_than_the_thrown_one(telemetry: Telemetry, model: Any) -> None:
    """An exception that a generator raises after it has caught another one has no context that it would not have otherwise."""

    def body() -> Any:
        try:
            yield 1
        except KeyError:
            pass
        raise LookupError("later")

    for function in (body, inferspan.stage("produce")(body)):
        reading = function()
        next(reading)
        with pytest.raises(LookupError) as caught:
            reading.throw(KeyError("first"))
        assert caught.value.__context__ is None


def test_read_in_turn(telemetry: Telemetry, model: Any) -> None:
    """Generators that are read in turn each have their own stage, and requests are in that of the one that runs."""

    @inferspan.stage("produce")
    def running(name: str) -> Any:
        for _ in range(2):
            with inferspan.stage(name):
                yield model(model.weight.new_zeros(1, 2)).shape

    for _ in zip(running("a"), running("b"), strict=True):
        pass
    spans = {span.context.span_id: span for span in telemetry.spans() if span.context}
    above = {span.name: {spans[one.parent.span_id].name for one in telemetry.spans(span.name) if one.parent} for span in spans.values()}
    assert above == {"produce": set(), "a": {"produce"}, "b": {"produce"}, "forward small": {"a", "b"}}
    telemetry.check()


def test_a_session_of_a_generator(telemetry: Telemetry, model: Any) -> None:
    """A session stays open with its generator, and its reader is not in it."""

    @inferspan.session("stream")
    def stream() -> Any:
        for number in range(2):
            inferspan.event("item", number=number)
            yield number

    with inferspan.stage("read"):
        for number in stream():
            inferspan.event("reader", number=number)
    assert _events(telemetry, "session stream") == ["item", "item"]
    assert _events(telemetry, "read") == ["reader", "reader"]
    assert semconv.SESSION_ID not in telemetry.only(telemetry.spans("read"))
    telemetry.check()


def test_asynchronous(telemetry: Telemetry, model: Any) -> None:
    """An asynchronous generator is open until it is exhausted, and its reader is not in it."""

    async def main() -> list[int]:
        found = []
        async for number in produce_later(2):
            inferspan.event("reader")
            with inferspan.stage("read"):
                await asyncio.sleep(0)
            found.append(number)
        return found

    assert asyncio.run(main()) == [0, 1]
    assert _events(telemetry, "produce") == ["item", "item", "whole"]
    assert all(span.parent is None for span in telemetry.spans())
    telemetry.check()


@pytest.mark.parametrize("how", ["closed", "released", "cancelled"])
def test_an_asynchronous_one_that_ends_early(how: str, telemetry: Telemetry, model: Any) -> None:
    """One that is closed or let go of ends without an error; one whose task is cancelled meanwhile ends with that."""

    @inferspan.stage("produce")
    async def slow() -> Any:
        yield 1
        await asyncio.sleep(60)

    async def read() -> None:
        reading = slow()
        async for _ in reading:
            if how != "cancelled":
                break
        if how == "closed":
            await reading.aclose()

    async def main() -> None:
        task = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    gc.collect()
    error = _error(telemetry)
    assert (error is None) == (how != "cancelled")
    assert "CancelledError" in str(error) or error is None
    telemetry.check()


def test_asend_and_athrow(telemetry: Telemetry, model: Any) -> None:
    """Values that are sent and exceptions that are thrown reach an asynchronous generator, recorded or not."""

    async def echo() -> Any:
        got = yield "first"
        try:
            yield got
        except KeyError as error:
            yield f"caught {error}"

    async def main(function: Any) -> list[Any]:
        reading = function()
        return [await reading.asend(None), await reading.asend(7), await reading.athrow(KeyError("k")), [item async for item in reading]]

    want = asyncio.run(main(echo))
    assert asyncio.run(main(inferspan.stage("produce")(echo))) == want == ["first", 7, "caught 'k'", []]
    telemetry.check()


def test_off() -> None:
    """Where nothing is recorded, a decorated generator works as the plain one."""
    reading = produce(3)
    assert next(reading) == 0
    assert reading.send("x") == 1
    reading.close()

    async def read() -> list[int]:
        return [number async for number in produce_later(3)]

    assert asyncio.run(read()) == [0, 1, 2]
