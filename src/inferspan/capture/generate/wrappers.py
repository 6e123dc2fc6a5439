"""Wrappers around ``generate()`` and the helpers that its decoding loop calls: they see its entry, its steps and its end.

The loop takes ``_sample`` and its kin from the class, but calls ``prepare_inputs_for_generation`` before each forward pass,
``_update_model_kwargs_for_generation`` after it and its stopping criteria once per step; those three give the clock of a step. They are
called on every path (beams, assisted, compiled), so latencies do not depend on hooks. Every wrapper passes arguments, results and
exceptions through untouched, and hands on plain values: no argument tuple goes further than this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from inferspan.capture.call import current
from inferspan.capture.compile.state import is_compiling, loaded
from inferspan.capture.model_info import has_plain_generate
from inferspan.capture.owner import Owner
from inferspan.capture.recording import Request, run_recorded
from inferspan.capture.values.unseen import AS_IT_IS, dispatches, functions, without_modes
from inferspan.guard import contain, report

from .arguments import generate_arguments, loop_config, main_input, pass_end
from .call import GenerateCall, start_generate
from .run import InnerCall

__all__ = ["around_generate", "generate_methods", "generating_modules"]

def generating_modules(model: nn.Module) -> list[nn.Module]:
    """The model itself and the modules inside it that can run a decoding loop."""
    return [module for module in model.modules() if callable(getattr(type(module), "generate", None))]


_get: Callable[[Any, str], Any] = dict.get
"""The base class's own: a subclass may have put side effects into its overrides."""


def _other_cache(outputs: dict[str, Any], inputs: Any) -> Any:
    """The cache of a model that returns it under another name, or only takes one and writes to it."""
    for given in (outputs, inputs):
        if isinstance(given, dict):
            for name in ("cache", "past_key_values", "cache_params", "state"):
                cache = _get(given, name)
                if cache is not None:
                    return cache
    return None


def _running(module: Any) -> GenerateCall | None:
    """The innermost ``generate()`` of this thread whose loop ``module`` runs."""
    call = current.call
    while call is not None:
        adapter = call.adapter
        if type(adapter) is GenerateCall:
            return adapter if call.follows(module) else None
        call = call.outer
    return None


def around_generate(target_of: Callable[[object], Owner | None]) -> Any:
    """Wrapper of ``generate``; ``target_of(module)`` finds the instrumentation of a model, if it has one."""

    def generate(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        call: GenerateCall | None = None
        outer: GenerateCall | None = None
        around = current.call
        try:
            with contain("start of generate()"):
                running = _running(model)
                if running is not None and (running.request.root_id != id(model) or running.awaits_loop):
                    outer = running
                else:
                    target = target_of(model)
                    if target is not None and target.pausing.admits(current.call):
                        call = start_generate(target, model, generate_arguments(args, kwargs))
            if call is not None:
                return run_recorded(call, original, args, kwargs)
        except BaseException as error:
            _end_unknown(model, around, error)
            raise
        if outer is not None:
            return _run_inside(outer, original, model, args, kwargs, plain=has_plain_generate(model))
        return original(*args, **kwargs)

    return generate


def _around_base(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around transformers' own ``generate()``, where that of a model's class may call it."""
    outer: GenerateCall | None = None
    if current.call is not None and not is_compiling():
        with contain("inner generate()"):
            outer = None if has_plain_generate(model) else _running(model)
    return original(*args, **kwargs) if outer is None else _run_inside(outer, original, model, args, kwargs, plain=True)


def _run_inside(outer: GenerateCall, original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, plain: bool) -> Any:
    """Run a ``generate()`` that belongs to the request of another one."""
    inner: InnerCall | None = None
    result: Any = None
    try:
        with contain("inner generate()"):
            if outer.awaits_loop:
                outer.run.loops.clear()
            inner = outer.run.enter(generate_arguments(args, kwargs), model, plain=plain)
        result = original(*args, **kwargs)
        return result
    finally:
        if inner is not None:
            with contain("inner generate()"):
                outer.run.leave(inner, result)


def _end_unknown(model: Any, around: Any, error: BaseException) -> None:
    """End a request on ``model`` that an interrupt has lost between its start and its return from it; ``around`` was there before."""
    left = current.call
    if left is not None and left is not around and left.root_id == id(model) and isinstance(left, Request):
        left.fail(error)


def prepare_inputs(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around ``prepare_inputs_for_generation``: the previous token is on the host, a forward pass is about to begin."""
    request = current.call
    call = request.adapter if request is not None and request.root_id == id(model) else _running(model)
    if type(call) is not GenerateCall:  # in a loop by hand there may be another adapter
        return original(*args, **kwargs)
    # Not ``contain``: between the device's last result and its next work, each half microsecond is the user's.
    steps = call.steps
    try:
        with without_modes() if functions() or dispatches() else AS_IT_IS:
            if steps.open:
                call.look_at_inputs()
            if not call.ordinary:
                call.passes.helped = True
            steps.prepare()
    except Exception as error:
        report("start of a step", error)
    inputs = original(*args, **kwargs)
    try:
        # Looked at once the pass has been launched.
        call.inputs = inputs
        if not call.ordinary and call.run.drafted:
            call.run.drafts.candidates = args[0] if args else kwargs.get("input_ids")
        steps.begin()
    except Exception as error:
        report("start of a step", error)
    return inputs


def update_model_kwargs(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around ``_update_model_kwargs_for_generation``: a forward pass has been launched and returned."""
    request = current.call
    call = request.adapter if request is not None and request.root_id == id(model) else _running(model)
    if type(call) is not GenerateCall:  # in a loop by hand there may be another adapter
        return original(*args, **kwargs)
    try:
        with without_modes() if functions() or dispatches() else AS_IT_IS:
            call.fresh = True
            outputs = args[0] if args else kwargs.get("outputs")
            logits = None
            if isinstance(outputs, dict):
                logits = _get(outputs, "logits")
                cache = _get(outputs, "cache")
                if cache is None:  # before transformers 5.24
                    cache = _get(outputs, "past_key_values")
                call.cache = _other_cache(outputs, call.inputs) if cache is None else cache
            inputs, call.inputs = call.inputs, None
            main = inputs.get(call.main_key) if type(inputs) is dict else None
            if main is None:
                call.main_key, main = main_input(inputs)
            if call.ordinary and len(args) < 4 and "num_new_tokens" not in kwargs:
                call.steps.end(logits, main)
            else:
                call.end_pass(logits, main, pass_end(args, kwargs))
    except Exception as error:
        report("end of a step", error)
    return original(*args, **kwargs)


def stopping_criteria(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around ``_get_stopping_criteria``: the final generation config is known, and the criteria will report the chosen tokens."""
    criteria = original(*args, **kwargs)
    call = _running(model)
    if call is not None:
        with contain("stopping criteria"):
            return call.begin_loop(loop_config(args, kwargs), criteria)
    return criteria


def prepare_encoder(original: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around the method that runs encoders before a loop: of a long recording, also in the middle of a request."""
    call = _running(model)
    if call is not None:
        with contain("start of a stage"):
            call.steps.modules.expect_stages()
    return original(*args, **kwargs)


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
    "_maybe_prepare_encoder_kwargs_for_generation": prepare_encoder,
    "_prepare_encoder_decoder_kwargs_for_generation": prepare_encoder,  # transformers 4
}
"""Methods that are wrapped beside ``generate``, where the class has them."""


def generate_methods(module: nn.Module, around: Any) -> list[tuple[type, str, Any]]:
    """The methods that are wrapped for a module that can run a decoding loop: (class, name, wrapper).

    Args:
        module: the module.
        around: wrapper of its ``generate``.
    """
    kind = type(module)
    found: list[tuple[type, str, Any]] = [(kind, "generate", around)]
    base = loaded("transformers.generation.utils", "GenerationMixin")
    if base is not None and issubclass(kind, base) and kind is not base and not has_plain_generate(module):
        found.append((base, "generate", _around_base))
    return found + [(kind, name, wrapper) for name, wrapper in METHODS.items() if callable(getattr(kind, name, None))]
