"""Decorators on functions of every kind: what stays, what is recorded, and what happens with exceptions."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import gc
import inspect
import itertools
import pickle
import threading
import traceback
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import inferspan
from inferspan import semconv
from tests.cases.telemetry import Telemetry
from tests.program.kinds import Kind, twice

DECORATORS: dict[str, Callable[[], Any]] = {
    "stage": lambda: inferspan.stage("part"),
    "session": lambda: inferspan.session("job"),
    "event": lambda: inferspan.event_on_return("returned", lambda result, value, scale: {"result": result, "value": value, "scale": scale}),
    "step": lambda: inferspan.diffusion_step(lambda args, kwargs: {"step": args[0]}),
    "block": lambda: inferspan.block_computation(lambda args, kwargs: {"block_index": args[0]}),
    "model": lambda: inferspan.model_parameters(lambda args, kwargs: {"model_name": "mine"}),
}
each = pytest.mark.parametrize("decorator", DECORATORS.values(), ids=DECORATORS)
SPANS = {"stage": "part", "session": "session job", "step": "denoise_step", "block": "block_computation"}


def _names(telemetry: Telemetry) -> list[str]:
    return sorted(span.name for span in telemetry.spans())


def _events(telemetry: Telemetry) -> list[tuple[str, str, dict[str, Any]]]:
    """Each event on a span, with the name of the span."""
    found = [(span.name, event) for span in telemetry.spans() for event in span.events]
    return [
        (name, event.name, {key: value for key, value in (event.attributes or {}).items() if not key.startswith("inferspan.")})
        for name, event in sorted(found, key=lambda item: item[1].timestamp)
    ]


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
        assert [(where, what) for where, what, _ in _events(telemetry)][-1] == (span, "inside")
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


# --------------------------------------------------------------------------------------------------------------- stacked
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
    assert _events(telemetry)[-1] == (inner, "returned", {**result, "value": 3, "scale": 1})
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
    assert [(where, what) for where, what, _ in _events(telemetry)] == [("outer", "returned")]


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
    assert sorted(attributes["value"] for _, _, attributes in _events(telemetry)) == [0, 1, 2, 3]
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
