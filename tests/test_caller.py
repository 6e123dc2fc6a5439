"""Ids of the caller's: nesting, tasks and threads, values."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

import inferspan
from inferspan.caller import caller_attributes


def test_nesting() -> None:
    """Inner blocks add to, override and take away from outer ones, and leave everything as it was."""
    outer: Any = {"app.tenant": "blue", "n": 1}
    inner: Any = {"app.tenant": None, "n": 2}
    with inferspan.context(conversation_id="c", **outer):
        with inferspan.context(user_id="u", **inner):
            inside = dict(caller_attributes())
        outside = dict(caller_attributes())
    assert inside == {"gen_ai.conversation.id": "c", "user.id": "u", "n": 2}
    assert outside == {"gen_ai.conversation.id": "c", "app.tenant": "blue", "n": 1}
    assert dict(caller_attributes()) == {}


def test_left_by_an_exception() -> None:
    """A block that an exception leaves takes its ids with it."""
    with pytest.raises(KeyError), inferspan.context(user_id="u"):
        raise KeyError
    assert dict(caller_attributes()) == {}


def test_tasks_and_threads() -> None:
    """Ids follow ``await``, ``to_thread`` and copied contexts, never mix between tasks, and do not reach a bare thread."""

    async def one(name: str) -> Any:
        with inferspan.context(user_id=name):
            await asyncio.sleep(0)
            return await asyncio.to_thread(lambda: dict(caller_attributes()))

    async def both() -> Any:
        return await asyncio.gather(one("a"), one("b"))

    assert asyncio.run(both()) == [{"user.id": "a"}, {"user.id": "b"}]
    seen: list[dict[str, Any]] = []
    with inferspan.context(user_id="x"):
        copied = contextvars.copy_context()
        for target in (lambda: seen.append(dict(caller_attributes())), lambda: copied.run(lambda: seen.append(dict(caller_attributes())))):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert seen[-1] == {"user.id": "x"}


@pytest.mark.parametrize("value", [object(), {"a": 1}, [1, "a"], b"x", [object()]])
def test_wrong_types(value: Any) -> None:
    """A value that is no text, number, boolean or list of one of them is an error that names it."""
    with pytest.raises(TypeError, match=r"inferspan\.context\(thing="), inferspan.context(thing=value):
        pass


def test_values_that_cannot_be_sent() -> None:
    """Numbers that no exporter can send are left out, odd texts are made encodable, subclasses plain."""
    odd: Any = {"a": 2**70, "b": float("nan"), "c": [1.0, float("inf")], "d": "\ud800"}
    with inferspan.context(**odd):
        assert dict(caller_attributes()) == {"d": "?"}
