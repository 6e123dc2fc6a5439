"""Functions of every kind, and how they are called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import inferspan

__all__ = ["KINDS", "Kind", "twice"]


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
