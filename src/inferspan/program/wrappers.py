"""Decorated functions: what runs around every call, for functions of every kind.

In: a function, and layers such as a stage. Out: a function of the same kind, name and signature. Whether anything is recorded is asked at
each call; exceptions pass, and what was begun is ended. Decorators on one function are put together: events and facts come inside the
stages and sessions, in whatever order they were written.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

from inferspan.guard import contain

from .recorders import recorders

__all__ = ["Call", "Ending", "Layer", "decorate"]

_PLAN = "__inferspan_plan__"
_SELF = ("self", "cls", "mcs")
Ending = Callable[[Any, "BaseException | None", bool], None]
"""Ends what a layer has begun; gets the result, the exception, and whether the call has returned (a closed generator has not)."""


class Layer(Protocol):
    """What one decorator does around a call."""

    has_span: bool
    """Whether it makes a span; such layers lie outside all others."""
    opens: bool
    """Whether it records although nothing is recorded yet."""

    def begin(self, call: Call) -> Ending | None:
        """Begin; ``None`` if there is nothing to end."""


class Arguments:
    """Binds the arguments of calls to their names.

    Args:
        function: what is called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature: inspect.Signature | None = None
        self._owner: str | None = None
        """Name of the parameter that is the object or class of a method."""

    def _read(self) -> inspect.Signature:
        if self._signature is None:
            found = inspect.signature(self._function)
            first = next(iter(found.parameters), None)
            self._owner = first if first in _SELF else None
            self._signature = found
        return self._signature

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, defaults included and the object of a method left out."""
        signature = self._read()
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if name == self._owner:
                continue
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                found.update(value)
            else:
                found[name] = value
        return found

    def without_self(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Positional arguments without the object of a method."""
        with contain("attributes of a call"):
            self._read()
        return args[1:] if self._owner is not None else args


class _Plan:
    """A function and the layers around it, outermost first."""

    def __init__(self, function: Callable[..., Any], layers: tuple[Layer, ...], arguments: Arguments) -> None:
        self.function = function
        self.layers = layers
        self.arguments = arguments
        self.opens = any(layer.opens for layer in layers)
        self.wrapper: weakref.ref[Any] | None = None

    def with_layer(self, layer: Layer) -> _Plan:
        """The same with one layer more, around those of its kind."""
        spans = [known for known in self.layers if known.has_span]
        others = [known for known in self.layers if not known.has_span]
        (spans if layer.has_span else others).insert(0, layer)
        return _Plan(self.function, (*spans, *others), self.arguments)


class Call:
    """One call of a decorated function.

    Attributes:
        args: positional arguments.
        kwargs: named arguments.
    """

    __slots__ = ("_arguments", "args", "kwargs")

    def __init__(self, arguments: Arguments, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._arguments = arguments
        self.args, self.kwargs = args, kwargs

    def named(self) -> dict[str, Any]:
        """Its arguments by name, without the object of a method."""
        return self._arguments.named(self.args, self.kwargs)

    def without_self(self) -> tuple[Any, ...]:
        """Its positional arguments without the object of a method."""
        return self._arguments.without_self(self.args)


def decorate(function: Any, layer: Layer, what: str) -> Any:
    """Put a layer around every call of a function or method.

    Args:
        function: of any kind; also what ``staticmethod`` and ``classmethod`` return.
        layer: what is done around a call.
        what: name of the decorator, for the error.

    Raises:
        TypeError: ``function`` is a class, or cannot be called.
    """
    if isinstance(function, staticmethod | classmethod):
        return type(function)(decorate(function.__func__, layer, what))
    if isinstance(function, type) or not callable(function):
        found = f"the class {function.__name__}" if isinstance(function, type) else type(function).__name__
        raise TypeError(f"@inferspan.{what}() decorates functions and methods, not {found}")
    known = getattr(function, "__dict__", {}).get(_PLAN)
    # A decorator of somebody else's may have copied the entry to a function of its own.
    if isinstance(known, _Plan) and known.wrapper is not None and known.wrapper() is function:
        plan = known.with_layer(layer)
    else:
        plan = _Plan(function, (layer,), Arguments(function))
    wrapper = functools.update_wrapper(_kind_of(plan.function)(plan), function)
    plan.wrapper = weakref.ref(wrapper)
    setattr(wrapper, _PLAN, plan)
    return wrapper


def _kind_of(function: Any) -> Callable[[_Plan], Any]:
    plain = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not inspect.isroutine(plain):
        plain = type(plain).__call__
    if inspect.isasyncgenfunction(plain):
        return _async_generator
    if inspect.iscoroutinefunction(plain):
        return _coroutine
    if not inspect.isgeneratorfunction(plain):
        return _function
    # What types.coroutine has made of a generator function can be awaited.
    return _awaitable_generator if plain.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE else _generator


def _traced() -> bool:
    """Whether torch compiles the call: what is recorded would become part of the compiled code."""
    torch: Any = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)  # not there while torch is being imported
    return compiler is not None and bool(compiler.is_compiling())


def _begin(opened: list[Ending], plan: _Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    call = Call(plan.arguments, args, kwargs)
    for layer in plan.layers:
        with contain("start of a decorated call"):
            ending = layer.begin(call)
            if ending is not None:
                opened.append(ending)


def _end(opened: list[Ending], result: Any, error: BaseException | None, *, returned: bool) -> None:
    try:
        while opened:
            ending = opened.pop()
            with contain("end of a decorated call"):
                ending(result, error, returned)
    except BaseException as interrupt:
        # Of a function of the user's that describes the call: what is still open ends with it.
        _end(opened, None, interrupt, returned=False)
        raise


# ------------------------------------------------------------------------------------------------------- kinds of functions
def _function(plan: _Plan) -> Any:
    function, opens = plan.function, plan.opens

    def call(*args: Any, **kwargs: Any) -> Any:
        if not (recorders or opens) or _traced():
            return function(*args, **kwargs)
        opened: list[Ending] = []
        try:
            _begin(opened, plan, args, kwargs)
            result = function(*args, **kwargs)
        except BaseException as error:
            _end(opened, None, error, returned=False)
            raise
        _end(opened, result, None, returned=True)
        return result

    return call


def _coroutine(plan: _Plan) -> Any:
    function, opens = plan.function, plan.opens

    async def call(*args: Any, **kwargs: Any) -> Any:
        if not (recorders or opens):
            return await function(*args, **kwargs)
        opened: list[Ending] = []
        try:
            _begin(opened, plan, args, kwargs)
            result = await function(*args, **kwargs)
        except BaseException as error:
            _end(opened, None, error, returned=False)
            raise
        _end(opened, result, None, returned=True)
        return result

    return call


class _Steps:
    """What is open around a generator: current while a step of it runs, and not while its reader does."""

    __slots__ = ("_context", "_opened")

    def __init__(self, plan: _Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._opened: list[Ending] = []
        self._context: Any = None
        outside: Any = None
        with contain("start of a decorated call"):
            from inferspan.spans.current import OwnContext

            self._context = OwnContext()
            outside = self._context.enter()
        try:
            _begin(self._opened, plan, args, kwargs)
        except BaseException as error:
            self.leave(outside, error)
            raise
        self.leave(outside)

    def enter(self) -> Any:
        """A step begins; returns what ``leave`` takes."""
        return None if self._context is None else self._context.enter()

    def leave(self, outside: Any, error: BaseException | None = None, *, result: Any = None, returned: bool = False) -> None:
        """A step has ended; with an exception or a result it was the last one."""
        try:
            if error is not None or returned:
                _end(self._opened, result, error, returned=returned)
        finally:
            if outside is not None:
                self._context.leave(outside)

    def close(self) -> None:
        """The reader has closed the generator, which is no error."""
        if not self._opened:
            return
        outside = self.enter()
        try:
            _end(self._opened, None, None, returned=False)
        finally:
            if outside is not None:
                self._context.leave(outside)


def _generator(plan: _Plan) -> Any:
    function, opens = plan.function, plan.opens

    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        if not (recorders or opens):
            return (yield from function(*args, **kwargs))
        steps = _Steps(plan, args, kwargs)
        thrown: BaseException | None = None
        value: Any = None
        generator: Any = None
        try:
            while True:
                outside = steps.enter()
                try:
                    if generator is None:
                        generator = function(*args, **kwargs)
                        del args, kwargs
                    item = generator.send(value) if thrown is None else generator.throw(thrown)
                except StopIteration as stop:
                    steps.leave(outside, result=stop.value, returned=True)
                    return stop.value
                except BaseException as error:
                    steps.leave(outside, error)
                    raise
                finally:
                    # An exception that holds this frame, which holds the exception, would live until the next collection.
                    thrown = value = None
                steps.leave(outside)
                try:
                    value = yield item
                except GeneratorExit:
                    outside = steps.enter()
                    try:
                        generator.close()
                    except BaseException as error:
                        steps.leave(outside, error)
                        raise
                    steps.leave(outside)
                    raise
                except BaseException as error:
                    thrown = error
        finally:
            steps.close()

    return call


def _awaitable_generator(plan: _Plan) -> Any:
    return types.coroutine(_generator(plan))


def _async_generator(plan: _Plan) -> Any:
    function, opens = plan.function, plan.opens

    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        steps = _Steps(plan, args, kwargs) if recorders or opens else None
        thrown: BaseException | None = None
        value: Any = None
        generator: Any = None
        outside: Any = None
        try:
            while True:
                if steps is not None:
                    outside = steps.enter()
                try:
                    if generator is None:
                        generator = function(*args, **kwargs)
                        del args, kwargs
                    item = await (generator.asend(value) if thrown is None else generator.athrow(thrown))
                except StopAsyncIteration:
                    if steps is not None:
                        steps.leave(outside, returned=True)
                    return
                except BaseException as error:
                    if steps is not None:
                        steps.leave(outside, error)
                    raise
                finally:
                    thrown = value = None
                if steps is not None:
                    steps.leave(outside)
                try:
                    value = yield item
                except GeneratorExit:
                    if steps is not None:
                        outside = steps.enter()
                    try:
                        await generator.aclose()
                    except BaseException as error:
                        if steps is not None:
                            steps.leave(outside, error)
                        raise
                    if steps is not None:
                        steps.leave(outside)
                    raise
                except BaseException as error:
                    thrown = error
        finally:
            if steps is not None:
                steps.close()

    return call
