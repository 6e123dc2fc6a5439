"""Decorators on functions of every kind: what stays, what is recorded, and what happens with exceptions."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import traceback
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import inferspan
from inferspan import semconv
from tests.cases.telemetry import Telemetry
from tests.program.kinds import DECORATORS, SPANS, Kind, each, events_on_spans, twice


def _names(telemetry: Telemetry) -> list[str]:
    return sorted(span.name for span in telemetry.spans())


# ---------------------------------------------------------------------------------------------------------- what stays
@each
def test_a_function_stays_what_it_is(kind: Kind, decorator: Callable[[], Any]) -> None:
    """Name, documentation, signature, annotations and kind of a function are those of the undecorated one, which is ``__wrapped__``."""
    plain = kind.make(twice)
    made = decorator()(plain)
    assert made is not plain
    assert made.__wrapped__ is plain
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        assert getattr(made, name) == getattr(plain, name)
    assert inspect.signature(made) == inspect.signature(plain)
    for test in (inspect.isfunction, inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        assert test(made) == test(plain)


@each
@pytest.mark.parametrize("on", [False, True], ids=["off", "on"])
def test_results_are_the_same(kind: Kind, decorator: Callable[[], Any], on: bool, request: pytest.FixtureRequest) -> None:
    """A decorated function gives what the plain one gives, recorded or not."""
    if on:
        request.getfixturevalue("model")
    made = decorator()(kind.make(twice))
    assert kind.call(made, 3) == 6
    assert kind.call(made, 3, scale=2) == 12


@each
def test_exceptions_pass(kind: Kind, decorator: Callable[[], Any], telemetry: Telemetry, model: Any) -> None:
    """An exception passes as the same object with its traceback, without a context of ours; what was begun has ended with it."""
    error = LookupError("theirs")

    def fails(value: int) -> int:
        raise error

    with pytest.raises(LookupError) as caught:
        kind.call(decorator()(kind.make(fails)), 1)
    assert caught.value is error
    assert error.__context__ is None
    assert error.__cause__ is None
    assert "fails" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    for span in telemetry.spans():
        assert (span.attributes or {})[semconv.ERROR_TYPE] == "LookupError"
        assert not span.status.is_ok
    telemetry.check()


@each
def test_wrong_arguments_raise_as_before(kind: Kind, decorator: Callable[[], Any], telemetry: Telemetry, model: Any, contained: list[Any]) -> None:
    """A call with arguments that do not fit raises the same error."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'value'"):
        kind.call(decorator()(kind.make(twice)))
    contained.clear()  # the user's function has no argument to look at
    telemetry.check(complaints=True)


@each
def test_methods(kind: Kind, decorator: Callable[[], Any], telemetry: Telemetry, model: Any) -> None:
    """Methods, static methods and class methods work, whichever decorator comes first."""
    plain = kind.make(twice)

    def method(self: Any, value: int, scale: int = 1) -> Any:
        return plain(value, scale)

    def class_method(cls: Any, value: int, scale: int = 1) -> Any:
        assert cls is Owner
        return plain(value, scale)

    class Owner:
        normal = decorator()(method)
        static = staticmethod(decorator()(plain))
        static_inside = decorator()(staticmethod(plain))
        of_class = decorator()(classmethod(class_method))

    assert isinstance(Owner.__dict__["static_inside"], staticmethod)
    assert isinstance(Owner.__dict__["of_class"], classmethod)
    for function in (Owner().normal, Owner.static, Owner().static_inside, Owner.of_class):
        assert kind.call(function, 2) == 4
    telemetry.check()


@each
def test_partials(kind: Kind, decorator: Callable[[], Any], telemetry: Telemetry, model: Any) -> None:
    """A decorated function can be given arguments in advance, and what has been given some can be decorated."""
    outside = functools.partial(decorator()(kind.make(twice)), scale=3)
    inside = decorator()(functools.partial(kind.make(twice), scale=3))
    assert kind.call(outside, 2) == 12
    assert kind.call(inside, 2) == 12
    telemetry.check()


class _Callable:
    async def __call__(self, value: int, scale: int = 1) -> int:
        return 2 * value * scale


def test_objects_that_can_be_called(telemetry: Telemetry, model: Any) -> None:
    """An object whose call is asynchronous becomes a coroutine function."""
    made = inferspan.stage("part")(_Callable())
    assert inspect.iscoroutinefunction(made)
    assert asyncio.run(made(2)) == 4
    assert _names(telemetry) == ["part"]


def test_a_generator_that_can_be_awaited(telemetry: Telemetry, model: Any) -> None:
    """What ``types.coroutine`` has made of a generator can be awaited when it is decorated, recorded or not."""

    async def main(function: Any) -> Any:
        return await function(3)

    @types.coroutine
    def work(value: int) -> Any:
        yield from asyncio.sleep(0).__await__()
        return value

    assert asyncio.run(main(inferspan.stage("part")(work))) == asyncio.run(main(work)) == 3
    assert _names(telemetry) == ["part"]


@each
@pytest.mark.parametrize("wrong", [int, 3, None, property(lambda self: 1)], ids=["class", "number", "nothing", "property"])
def test_what_cannot_be_decorated(decorator: Callable[[], Any], wrong: Any) -> None:
    """A class, or what cannot be called, is refused where it is decorated."""
    with pytest.raises(TypeError, match=r"decorates functions and methods, not "):
        decorator()(wrong)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: inferspan.stage("x", 3), TypeError),  # type: ignore[arg-type]
        (lambda: inferspan.session("x", of_result=3), TypeError),  # type: ignore[arg-type]
        (lambda: inferspan.event_on_return(3), TypeError),  # type: ignore[arg-type]
        (lambda: inferspan.event_on_return(" "), ValueError),
        (lambda: inferspan.event_on_return("x", 3), TypeError),  # type: ignore[arg-type]
        (lambda: inferspan.diffusion_step(3), TypeError),  # type: ignore[arg-type]
        (lambda: inferspan.block_computation("x"), TypeError),  # type: ignore[arg-type]
        (lambda: inferspan.model_parameters({}), TypeError),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_of_decorators(call: Callable[[], Any], error: type[Exception]) -> None:
    """A decorator refuses what it cannot use where it is written."""
    with pytest.raises(error, match=r"^inferspan\.\w+\(\) takes "):
        call()


# Pickle finds them by their names in this module.
@inferspan.stage("part")
def in_a_module(value: int) -> int:
    """A function that other processes may be given."""
    return value + 1


class WithMethod:
    """A class whose objects travel."""

    @inferspan.method("part")
    def add(self, value: int) -> int:
        """Add one."""
        return value + 1


def test_pickling(telemetry: Telemetry, model: Any) -> None:
    """A decorated function of a module, and a method of an object, can be pickled and copied."""
    assert pickle.loads(pickle.dumps(in_a_module)) is in_a_module
    assert pickle.loads(pickle.dumps(WithMethod().add))(1) == 2
    assert copy.deepcopy(in_a_module) is in_a_module
    assert in_a_module(1) == 2
    assert _names(telemetry) == ["part", "part"]


def test_method_is_stage() -> None:
    """``inferspan.method`` is another name of ``inferspan.stage``."""
    assert inferspan.method is inferspan.stage


# ------------------------------------------------------------------------------------------------------ what is recorded
def test_spans_of_calls(kind: Kind, telemetry: Telemetry, model: Any) -> None:
    """Each call under a decorator with a span is one, and what happens inside lies in it."""
    for name, span in SPANS.items():
        kind.call(DECORATORS[name]()(kind.make(twice)), 1)
        assert [(where, what) for where, what, _ in events_on_spans(telemetry)][-1] == (span, "inside")
    assert _names(telemetry) == sorted(SPANS.values())
    telemetry.check()


def test_it_is_asked_at_each_call(kind: Kind, telemetry: Telemetry) -> None:
    """Whether anything is recorded is decided when a function is called, not when it is decorated."""
    made = inferspan.stage("part", count=2)(kind.make(twice))
    kind.call(made, 1)
    module = torch.nn.Linear(2, 2)
    handle = telemetry.instrument(module)
    kind.call(made, 1)
    decorated_while_on = inferspan.stage("other")(kind.make(twice))
    handle.uninstrument()
    kind.call(made, 1)
    kind.call(decorated_while_on, 1)
    assert _names(telemetry) == ["part"]
    assert telemetry.only(telemetry.spans("part"))["count"] == 2


def test_a_session_for_each_call(kind: Kind, telemetry: Telemetry) -> None:
    """Each call is a session of its own, which needs no instrumented model, with its tags on what is inside."""
    made = inferspan.session("job", tags={"mode": "t2v"}, tracer_provider=telemetry.tracer_provider)(inferspan.stage("part")(kind.make(twice)))
    kind.call(made, 1)
    kind.call(made, 2)
    assert _names(telemetry) == ["part", "part", "session job", "session job"]
    ids = [(span.attributes or {})[semconv.SESSION_ID] for span in telemetry.spans()]
    assert [ids.count(one) for one in dict.fromkeys(ids)] == [2, 2]
    assert {(span.attributes or {})[f"{semconv.SESSION_TAG}.mode"] for span in telemetry.spans()} == {"t2v"}
    telemetry.check()


def test_attributes_of_the_result(telemetry: Telemetry, model: Any) -> None:
    """A stage or session gets attributes from what a call has returned."""
    of_result = lambda result: {"app.result": result, "app.twice": 2 * result}  # noqa: E731
    inferspan.session("job", of_result=of_result)(inferspan.stage("part", of_result, app_kind="x")(lambda: 21))()
    for span in telemetry.spans():
        assert (span.attributes or {})["app.result"] == 21
        assert (span.attributes or {})["app.twice"] == 42
    assert telemetry.only(telemetry.spans("part"))["app_kind"] == "x"


def test_attributes_of_the_result_of_a_generator(telemetry: Telemetry, model: Any) -> None:
    """The result of a generator is what it returns when it is exhausted."""

    @inferspan.stage("part", lambda result: {"app.result": result})
    def numbers() -> Any:
        yield 1
        return "whole"

    assert [*numbers()] == [1]
    assert telemetry.only(telemetry.spans("part"))["app.result"] == "whole"


@pytest.mark.parametrize("of_result", [lambda result: 1 / 0, lambda result: 3, lambda: {}], ids=["raises", "no mapping", "takes nothing"])
def test_a_function_of_the_result_that_fails(of_result: Any, telemetry: Telemetry, model: Any, contained: list[Any]) -> None:
    """A function of the user's that fails costs its attributes, not the call."""
    assert inferspan.stage("part", of_result)(lambda: 5)() == 5
    assert [error.place for error in contained] == ["attributes of a call"]
    contained.clear()
    assert _names(telemetry) == ["part"]


def test_nothing_is_asked_where_nothing_is_recorded(kind: Kind) -> None:
    """Where nothing is recorded, no function of the user's that describes a call is run."""

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("called")

    made = kind.make(lambda value: 2 * value)
    for decorator in (
        inferspan.stage("part", never),
        inferspan.event_on_return("returned", never),
        inferspan.diffusion_step(never),
        inferspan.block_computation(never),
        inferspan.model_parameters(never),
    ):
        made = decorator(made)
    assert kind.call(made, 4) == 8
