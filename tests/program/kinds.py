"""Functions of every kind, how they are called, and the decorators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import inferspan
from tests.cases.telemetry import Telemetry

__all__ = ["DECORATORS", "KINDS", "SPANS", "Kind", "each", "events_on_spans", "twice"]


class Kind(NamedTuple):
    """A kind of function: how one is made that gives ``value`` for its argument, and how it is called."""

    name: str
    make: Callable[[Callable[[int], int]], Any]
    call: Callable[..., Any]


def _plain(body: Callable[[int], int]) -> Any:
    def work(value: int, scale: int = 1) -> int:
        """Work on a value."""
        return body(value * scale)

    return work


def _coroutine(body: Callable[[int], int]) -> Any:
    async def work(value: int, scale: int = 1) -> int:
        """Work on a value."""
        await asyncio.sleep(0)
        return body(value * scale)

    return work


def _generator(body: Callable[[int], int]) -> Any:
    def work(value: int, scale: int = 1) -> Iterator[int]:
        """Work on a value."""
        yield value
        yield body(value * scale)
        return

    return work


def _async_generator(body: Callable[[int], int]) -> Any:
    async def work(value: int, scale: int = 1) -> Any:
        """Work on a value."""
        yield value
        await asyncio.sleep(0)
        yield body(value * scale)

    return work


async def _collect(reading: Any) -> Any:
    return [item async for item in reading][-1]


KINDS = (
    Kind("function", _plain, lambda function, *args, **kwargs: function(*args, **kwargs)),
    Kind("coroutine function", _coroutine, lambda function, *args, **kwargs: asyncio.run(function(*args, **kwargs))),
    Kind("generator function", _generator, lambda function, *args, **kwargs: [*function(*args, **kwargs)][-1]),
    Kind("async generator function", _async_generator, lambda function, *args, **kwargs: asyncio.run(_collect(function(*args, **kwargs)))),
)


def twice(value: int) -> int:
    """The body of a function under test."""
    inferspan.event("inside", value=value)
    return 2 * value


DECORATORS: dict[str, Callable[[], Any]] = {
    "stage": lambda: inferspan.stage("part"),
    "session": lambda: inferspan.session("job"),
    "event": lambda: inferspan.event_on_return("returned", lambda result, value, scale: {"result": result, "value": value, "scale": scale}),
    "step": lambda: inferspan.diffusion_step(lambda args, kwargs: {"step": args[0]}),
    "block": lambda: inferspan.block_computation(lambda args, kwargs: {"block_index": args[0]}),
    "model": lambda: inferspan.model_parameters(lambda args, kwargs: {"model_name": "mine"}),
}
each = pytest.mark.parametrize("decorator", DECORATORS.values(), ids=DECORATORS)
"""Runs a test with each decorator."""
SPANS = {"stage": "part", "session": "session job", "step": "denoise_step", "block": "block_computation"}


def events_on_spans(telemetry: Telemetry) -> list[tuple[str, str, dict[str, Any]]]:
    """Each event on a span, with the name of the span."""
    found = [(span.name, event) for span in telemetry.spans() for event in span.events]
    return [
        (name, event.name, {key: value for key, value in (event.attributes or {}).items() if not key.startswith("inferspan.")})
        for name, event in sorted(found, key=lambda item: item[1].timestamp)
    ]
