"""Wrappers around ``generate()`` and the helpers that its decoding loop calls, which tell entry, steps, tokens and end.

The loop takes ``_sample`` and its kin from the class, but calls ``prepare_inputs_for_generation`` before each forward pass,
``_update_model_kwargs_for_generation`` after it and its stopping criteria once per step; those three give the clock of a step. They are
called on every path (beams, assisted, compiled), so latencies do not depend on hooks. Every wrapper passes arguments, results and
exceptions through untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from inferspan.capture.call import current
from inferspan.capture.compile.state import is_compiling
from inferspan.guard import contain, report

from .call import GenerateCall

__all__ = ["METHODS", "around_generate"]


def _running(module: Any) -> GenerateCall | None:
    """The innermost generate call of this thread whose loop ``module`` runs."""
    call = current.call
    while call is not None and not isinstance(call, GenerateCall):
        call = call.outer
    return call if call is not None and call.follows(module) else None


class _Instrumented(Protocol):
    """The instrumentation of a model, as far as these wrappers know it."""

    def start_generate(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GenerateCall | None:
        """Open the request of a ``generate()``, or ``None`` where telemetry stays out."""


def around_generate(target_of: Callable[[object], _Instrumented | None]) -> Any:
    """Wrapper of ``generate``; ``target_of(module)`` finds the instrumentation of a model, if it has one."""

    def generate(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        call: GenerateCall | None = None
        inner: GenerateCall | None = None
        with contain("start of generate()"):
            running = _running(model)
            if running is not None and not running.is_root(model):
                inner = running
                inner.enter_inner(args, kwargs)
            else:
                target = target_of(model)
                if target is not None:
                    call = target.start_generate(model, args, kwargs)
        if inner is not None:
            result = original(*args, **kwargs)
            with contain("inner generate()"):
                inner.leave_inner(result)
            return result
        if call is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            call.fail(error)
            raise
        call.finish(result)
        return result

    return generate


def prepare_inputs(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around ``prepare_inputs_for_generation``: the previous token is on the host, a forward pass is about to begin."""
    call = current.call
    if type(call) is not GenerateCall or call.root_id != id(model):
        call = _running(model)
        if call is None:
            return original(*args, **kwargs)
    # Not ``contain``: between the device's last result and its next work, each half microsecond is the user's.
    try:
        call.before_step()
    except Exception as error:
        report("start of a step", error)
    inputs = original(*args, **kwargs)
    try:
        call.begin_step(inputs)
    except Exception as error:
        report("start of a step", error)
    return inputs


def update_model_kwargs(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around ``_update_model_kwargs_for_generation``: a forward pass has been launched and returned."""
    call = current.call
    if type(call) is not GenerateCall or call.root_id != id(model):
        call = _running(model)
        if call is None:
            return original(*args, **kwargs)
    try:
        call.end_step(args, kwargs)
    except Exception as error:
        report("end of a step", error)
    return original(*args, **kwargs)


def stopping_criteria(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around ``_get_stopping_criteria``: the final generation config is known, and the criteria tell the chosen tokens."""
    criteria = original(*args, **kwargs)
    call = _running(model)
    if call is not None:
        with contain("stopping criteria"):
            return call.begin_loop(args, kwargs, criteria)
    return criteria


def compiled_call(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around ``get_compiled_call``: the loop will run a compiled forward pass, in which no hook of ours may be."""
    call = _running(model)
    if call is not None:
        call.compiles()
    return original(*args, **kwargs)


METHODS = {
    "prepare_inputs_for_generation": prepare_inputs,
    "_update_model_kwargs_for_generation": update_model_kwargs,
    "_get_stopping_criteria": stopping_criteria,
    "get_compiled_call": compiled_call,
}
"""Methods that are wrapped beside ``generate``, where the class has them."""
