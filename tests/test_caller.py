"""Ids of the caller's: nesting, tasks and threads, values."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import inferspan
from inferspan.caller import caller_attributes
from tests.cases.models import llama, prompt


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


NAMED: dict[str, tuple[str, Any]] = {
    "conversation_id": ("gen_ai.conversation.id", "c"),
    "user_id": ("user.id", "u"),
    "output_type": ("gen_ai.output.type", "json"),
    "prompt_name": ("gen_ai.prompt.name", "summarise"),
    "prompt_version": ("gen_ai.prompt.version", "3"),
    "reasoning_level": ("gen_ai.request.reasoning.level", "low"),
    "conversation_compacted": ("gen_ai.conversation.compacted", False),
    "response_id": ("gen_ai.response.id", "r-1"),
}


@pytest.mark.parametrize("argument", NAMED)
def test_named_arguments(argument: str) -> None:
    """What the conventions have for callers is an argument with a name of its own, False as well as True."""
    key, value = NAMED[argument]
    with inferspan.context(**{argument: value}):
        assert dict(caller_attributes()) == {key: value}


@pytest.mark.parametrize("argument", ["output_type", "prompt_name", "prompt_version", "reasoning_level", "conversation_compacted", "response_id"])
def test_named_arguments_have_the_type_of_the_conventions(argument: str) -> None:
    """A value of another type is an error that names the argument."""
    wrong: Any = {argument: 1}
    with pytest.raises(TypeError, match=rf"inferspan\.context\({argument}=\.\.\.\) takes .*, not int"), inferspan.context(**wrong):
        pass


def test_named_arguments_stand_on_the_request() -> None:
    """A request inside the block has what the caller knows from its start; no other request has an id of its answer."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    model = llama()
    given: Any = {argument: value for argument, (_, value) in NAMED.items()}
    with inferspan.instrument(model, tracer_provider=provider, nvml=False, host=False, allocator=False, modules="none", steps="none"):
        with inferspan.context(**given):
            model.generate(prompt(1, 4), max_new_tokens=2, do_sample=False)
        model.generate(prompt(1, 4), max_new_tokens=2, do_sample=False)
    inferspan.flush()
    inside, outside = (dict(span.attributes or {}) for span in exporter.get_finished_spans() if span.parent is None)
    assert {key: inside.get(key) for key, _ in NAMED.values()} == dict(NAMED.values())
    assert {key for key, _ in NAMED.values()} & outside.keys() == set()


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
