"""Decorators that tell of calls: an event after them, a denoising step, the computation of a block, facts of a model.

In: a function of the user's that describes a call, if the arguments do not. Out: a decorator for functions of every kind. This module loads
neither torch nor OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .layers import BlockLayer, EventLayer, ModelLayer, StepLayer
from .recorders import check_name
from .wrappers import Layer, decorate

__all__ = ["block_computation", "diffusion_step", "event_on_return", "model_parameters"]

F = TypeVar("F", bound=Callable[..., Any])
Describe = Callable[..., "Mapping[str, Any] | None"]


def _checked(fn: Any, what: str) -> None:
    if fn is not None and not callable(fn):
        raise TypeError(f"inferspan.{what}() takes a function that describes a call, not {type(fn).__name__}")


def _decorator(layer: Layer, what: str) -> Callable[[F], F]:
    def of(function: F) -> F:
        made: F = decorate(function, layer, what)
        return made

    return of


def event_on_return(name: str, fn: Describe | None = None) -> Callable[[F], F]:
    """An event after each call that has returned: ``@inferspan.event_on_return("checkpoint_loaded", lambda result, path, **_: {...})``.

    The event stands on the innermost span of the call: of the stage that ``@inferspan.stage`` makes of it, in whatever order the two are
    written, else of what is around the call.

    Args:
        name: of the event.
        fn: called as ``fn(result, **arguments)`` with the result and the arguments of the call by name, positional ones and defaults
            included, without ``self``; returns attributes. It gets those arguments that it has parameters for. It is not called where the
            function raises or nothing is recorded; its own exceptions are contained, and the event comes without attributes then.

    Raises:
        TypeError: ``name`` is no text, or ``fn`` cannot be called.
        ValueError: ``name`` is empty.
    """
    check_name(name, "event_on_return")
    _checked(fn, "event_on_return")
    return _decorator(EventLayer(name, fn), "event_on_return")


def diffusion_step(fn: Describe | None = None) -> Callable[[F], F]:
    """Make each call a span ``denoise_step`` of a diffusion loop of your own.

    Args:
        fn: called as ``fn(args, kwargs)`` with the arguments of the call without ``self``, or as ``fn(result, **arguments)`` after it if
            its first parameter is called ``result``; returns a mapping with ``step`` (0 is the first), ``timestep`` and ``block_size``, and
            other attributes by their exact name. Default: the arguments of these names. A number in a tensor that lies on a device is left
            out, because reading it would wait.

    Raises:
        TypeError: ``fn`` cannot be called.
    """
    _checked(fn, "diffusion_step")
    return _decorator(StepLayer(fn), "diffusion_step")


def block_computation(fn: Describe | None = None) -> Callable[[F], F]:
    """Make each call a span ``block_computation``, with its time and memory.

    Args:
        fn: called after each call as for ``diffusion_step``; returns a mapping with ``block_index``, ``block_size``,
            ``computation_time_ms`` (milliseconds) and ``memory_usage_mb`` (of 1,048,576 bytes), and other attributes by their exact name.
            Default: the arguments of these names. Time (host clock, seconds) and memory (in use at the end, bytes) are measured where they
            are not given; given ones are attributes of their own, ``inferspan.block.reported.*``.

    Raises:
        TypeError: ``fn`` cannot be called.
    """
    _checked(fn, "block_computation")
    return _decorator(BlockLayer(fn), "block_computation")


def model_parameters(fn: Describe | None = None) -> Callable[[F], F]:
    """Put facts of a model that is not instrumented on the session around each call, or the session that the call is.

    Args:
        fn: called as for ``diffusion_step``; returns a mapping with ``model_name``, ``parameters_count`` and ``model_type``, and other
            attributes by their exact name. Default: the arguments of these names.

    Raises:
        TypeError: ``fn`` cannot be called.
    """
    _checked(fn, "model_parameters")
    return _decorator(ModelLayer(fn), "model_parameters")
