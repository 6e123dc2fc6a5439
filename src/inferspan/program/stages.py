"""``stage(name)``: a part of the program as a span, of a block or of every call of a function.

In: a name and attributes. Out: a stage of the recorder that was registered last; where there is none, what does nothing. This module loads
neither torch nor OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from .layers import StageLayer
from .recorders import OFF, AnyStage, Off, check_name, newest, recorders
from .wrappers import decorate

__all__ = ["OffStage", "method", "stage"]

F = TypeVar("F", bound=Callable[..., Any])


class OffStage(Off):
    """What ``stage()`` returns where nothing is recorded: a block gets ``OFF``, and a function is decorated all the same."""

    __slots__ = ("_attributes", "_of_result", "name")

    def __init__(self, name: str, of_result: Callable[[Any], Any] | None, attributes: dict[str, Any]) -> None:
        self.name = name
        self._of_result = of_result
        self._attributes = attributes

    def start(self) -> Off:
        """Do nothing."""
        return OFF

    def __enter__(self) -> Off:
        return OFF

    def __call__(self, function: F) -> F:
        """Make every call of a function a stage; whether it is recorded is asked at each call."""
        made: F = _decorated(self.name, self._of_result, self._attributes, function)
        return made


def stage(name: str, of_result: Callable[[Any], Mapping[str, Any]] | None = None, /, **attributes: Any) -> AnyStage:
    """A part of the program as a span: ``with inferspan.stage("rerank", candidates=20):``, or ``.start()`` and ``.end()`` by hand.

    ``@inferspan.stage("rerank")`` makes every call of a function or method such a stage, of asynchronous functions and of generators, too;
    that of a generator is open until it is exhausted or closed, and current while the generator runs. ``inferspan.method`` is the same.

    Stages nest to any depth, and requests inside become their children. An exception ends the stage with an error and passes. Where no
    model is instrumented and no session is open, a block gets one shared object that does nothing, and a call is passed through.

    Args:
        name: of the span; few different ones, with what varies as attributes.
        of_result: of a decorated function: gets what the call has returned, and returns further attributes. It is not called where the
            function raises or nothing is recorded; its own exceptions are contained.
        **attributes: of the span, by their exact name (``**{"app.tenant": "blue"}`` for names with dots): text, numbers, booleans, or lists
            of one of them; what cannot be sent is left out.

    Raises:
        TypeError: ``name`` is no text, or ``of_result`` cannot be called.
        ValueError: ``name`` is empty.
    """
    if type(name) is not str or not name.strip():
        check_name(name, "stage")
    if of_result is not None and not callable(of_result):
        raise TypeError(f"inferspan.stage() takes a function of the result, not {type(of_result).__name__}; attributes have names")
    recorder = newest() if recorders else None
    if recorder is None:
        return OffStage(name, of_result, attributes)
    made: AnyStage = recorder.stage(name, attributes, partial(_decorated, name, of_result, attributes))
    return made


method = stage


def _decorated(name: str, of_result: Callable[[Any], Any] | None, attributes: dict[str, Any], function: Any) -> Any:
    return decorate(function, StageLayer(name, attributes, of_result), "stage")
