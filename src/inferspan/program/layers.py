"""What each decorator does around a call: a stage, a session, a step, a block, an event, facts of a model.

In: a call, its result or exception. Out: spans, events and attributes, where something is recorded at that moment. The functions of the
user that describe a call run then only, and their exceptions are contained.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter_ns
from typing import Any

from inferspan import semconv
from inferspan.attribute_values import exportable_attributes, number_in
from inferspan.guard import contain

from .events import record
from .recorders import OFF, newest
from .wrappers import Call, Ending

__all__ = ["BlockLayer", "Description", "EventLayer", "ModelLayer", "SessionLayer", "StageLayer", "StepLayer"]

MEBIBYTE = 1 << 20


def _mapping(value: Any) -> dict[str, Any]:
    """What a function of the user has returned, as attributes."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"attributes must be a mapping, not {type(value).__name__}")
    return {str(key): item for key, item in value.items()}


class Description:
    """Describes a call by a function of the user, or by arguments of given names.

    Args:
        function: ``function(args, kwargs)``, or ``function(result, **arguments)`` if its first parameter is called ``result``; without it
            the arguments of these names count.
        names: of the values that are looked for.
    """

    def __init__(self, function: Callable[..., Any] | None, names: tuple[str, ...] = ()) -> None:
        self.function = function
        self._names = names
        self._first: str | None = None
        self._accepted: frozenset[str] | None = None
        """Arguments that the function takes, ``None`` if all."""
        if function is not None:
            parameters = _parameters(function)
            self._first = next(iter(parameters), None)
            if parameters and not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
                self._accepted = frozenset(list(parameters)[1:])
        self.of_result = self._first == "result"

    def of(self, call: Call) -> dict[str, Any]:
        """The values of a call, before its result is known."""
        with contain("attributes of a call"):
            if self.function is not None:
                return _mapping(self.function(call.without_self(), dict(call.kwargs)))
            named = call.named()
            return {name: named[name] for name in self._names if name in named}
        return {}

    def with_result(self, call: Call, result: Any) -> dict[str, Any]:
        """The same of a function that gets the result; its exceptions pass."""
        if self.function is None:
            return {}
        named = call.named()
        if self._first is not None:
            named.pop(self._first, None)
        if self._accepted is not None:
            named = {name: value for name, value in named.items() if name in self._accepted}
        return _mapping(self.function(result, **named))


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # of some functions in C
        return {}


def _close(stage: Any, attributes: Mapping[str, Any], error: BaseException | None) -> None:
    if error is None:
        stage.end(**attributes)
        return
    with contain("attributes of a call"):
        stage.add(exportable_attributes(attributes))
    stage.__exit__(type(error), error, error.__traceback__)


class StageLayer:
    """A stage around each call."""

    has_span, opens = True, False

    def __init__(self, name: str, attributes: dict[str, Any], of_result: Callable[[Any], Any] | None) -> None:
        self._name, self._attributes, self._of_result = name, attributes, of_result

    def _made(self) -> Any:
        recorder = newest()
        return None if recorder is None else recorder.stage(self._name, dict(self._attributes))

    def begin(self, call: Call) -> Ending | None:
        """See :class:`~inferspan.program.wrappers.Layer`."""
        made = self._made()
        return None if made is None or made is OFF else partial(self._end, made.start())

    def _end(self, stage: Any, result: Any, error: BaseException | None, returned: bool) -> None:
        attributes: dict[str, Any] = {}
        if returned and self._of_result is not None and stage.recording:
            with contain("attributes of a call"):
                attributes = _mapping(self._of_result(result))
        _close(stage, attributes, error)


class SessionLayer(StageLayer):
    """A session around each call."""

    opens = True

    def __init__(self, make: Callable[[], Any], of_result: Callable[[Any], Any] | None) -> None:
        super().__init__("", {}, of_result)
        self._make = make

    def _made(self) -> Any:
        return self._make()


class StepLayer:
    """A denoising step around each call."""

    has_span, opens = True, False
    _NUMBERS = (
        ("step", semconv.DENOISE_INDEX, int),
        ("timestep", semconv.DENOISE_TIMESTEP, float),
        ("block_size", semconv.BLOCK_SIZE, int),
    )

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self._described = Description(function, tuple(name for name, _, _ in self._NUMBERS))

    def begin(self, call: Call) -> Ending | None:
        """See :class:`~inferspan.program.wrappers.Layer`."""
        recorder = newest()
        if recorder is None:
            return None
        late = self._described.of_result
        attributes = {} if late else self._named(self._described.of(call))
        return partial(self._end, recorder.stage(semconv.SPAN_DENOISE_STEP, attributes).start(), call if late else None)

    def _end(self, stage: Any, call: Call | None, result: Any, error: BaseException | None, returned: bool) -> None:
        attributes: dict[str, Any] = {}
        if call is not None and returned and stage.recording:
            with contain("attributes of a call"):
                attributes = self._named(self._described.with_result(call, result))
        _close(stage, attributes, error)

    def _named(self, values: dict[str, Any]) -> dict[str, Any]:
        return _numbers(values, self._NUMBERS)


def _numbers(values: dict[str, Any], table: tuple[tuple[str, str, Callable[[Any], Any]], ...]) -> dict[str, Any]:
    """Values under the names of their attributes; a number that is not known or on a device is left out, others stay as they are."""
    left = dict(values)
    found: dict[str, Any] = {}
    for name, key, kind in table:
        number = number_in(left.pop(name, None))
        if number is not None:
            found[key] = kind(number)
    return {**left, **found}


class BlockLayer:
    """The computation of a block around each call."""

    has_span, opens = True, False
    _NUMBERS = (
        ("block_index", semconv.BLOCK_INDEX, int),
        ("block_size", semconv.BLOCK_SIZE, int),
        ("computation_time_ms", semconv.BLOCK_TIME_GIVEN, lambda value: value / 1000),
        ("memory_usage_mb", semconv.BLOCK_MEMORY_GIVEN, lambda value: int(value * MEBIBYTE)),
    )

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self._described = Description(function, tuple(name for name, _, _ in self._NUMBERS))

    def begin(self, call: Call) -> Ending | None:
        """See :class:`~inferspan.program.wrappers.Layer`."""
        recorder = newest()
        if recorder is None:
            return None
        # What the program tells of time and memory it knows at the end.
        early = _numbers(self._described.of(call), self._NUMBERS) if self._described.function is None else {}
        stage = recorder.stage(semconv.SPAN_BLOCK, early).start()
        return partial(self._end, stage, recorder, None if self._described.function is None else call, early, perf_counter_ns())

    def _end(
        self,
        stage: Any,
        recorder: Any,
        call: Call | None,
        early: dict[str, Any],
        start: int,
        result: Any,
        error: BaseException | None,
        returned: bool,
    ) -> None:
        now = perf_counter_ns()
        attributes: dict[str, Any] = {}
        if stage.recording:
            with contain("attributes of a call"):
                attributes = _numbers(self._given(call, result, returned), self._NUMBERS)
            given = {**early, **attributes}
            if semconv.BLOCK_TIME_GIVEN not in given:
                attributes[semconv.BLOCK_TIME] = (now - start) / 1e9
            reading = recorder.read_memory() if semconv.BLOCK_MEMORY_GIVEN not in given else None
            if reading is not None:
                attributes[semconv.BLOCK_MEMORY] = reading.bytes
        _close(stage, attributes, error)

    def _given(self, call: Call | None, result: Any, returned: bool) -> dict[str, Any]:
        if call is None or (self._described.of_result and not returned):
            return {}
        return self._described.with_result(call, result) if self._described.of_result else self._described.of(call)


class EventLayer:
    """An event after each call that has returned."""

    has_span = opens = False

    def __init__(self, name: str, function: Callable[..., Any] | None) -> None:
        self._name = name
        self._described = Description(function)

    def begin(self, call: Call) -> Ending | None:
        """See :class:`~inferspan.program.wrappers.Layer`."""
        return None if newest() is None else partial(self._end, None if self._described.function is None else call)

    def _end(self, call: Call | None, result: Any, error: BaseException | None, returned: bool) -> None:
        if returned:
            record(self._name, partial(self._describe, call, result))

    def _describe(self, call: Call | None, result: Any) -> dict[str, Any]:
        with contain("attributes of an event"):
            return {} if call is None else self._described.with_result(call, result)
        return {}


class ModelLayer:
    """Facts of a model on the session around each call."""

    has_span = opens = False
    _TEXTS = (("model_name", semconv.MODEL_NAME), ("model_type", semconv.MODEL_TYPE))
    _NUMBERS = (("parameters_count", semconv.MODEL_PARAMETERS, int),)

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self._described = Description(function, ("model_name", "parameters_count", "model_type"))

    def begin(self, call: Call) -> Ending | None:
        """See :class:`~inferspan.program.wrappers.Layer`."""
        recorder = newest()
        if recorder is None:
            return None
        if self._described.of_result:
            return partial(self._end, recorder, call)
        recorder.describe_session(lambda: self._named(self._described.of(call)))
        return None

    def _end(self, recorder: Any, call: Call, result: Any, error: BaseException | None, returned: bool) -> None:
        if returned:
            recorder.describe_session(partial(self._describe, call, result))

    def _describe(self, call: Call, result: Any) -> dict[str, Any]:
        with contain("attributes of a call"):
            return self._named(self._described.with_result(call, result))
        return {}

    def _named(self, values: dict[str, Any]) -> dict[str, Any]:
        found = _numbers(values, self._NUMBERS)
        return {dict(self._TEXTS).get(name, name): value for name, value in found.items()}
