"""What is put around a pipeline of diffusers: its call for as long as it is instrumented, and its components while a call runs.

During a call, hooks on the components that are stages and on the denoiser tell of their passes; the methods of the autoencoder and
``step()`` of the scheduler are wrapped, whichever the pipeline has by then. Arguments, results and exceptions pass through untouched.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling

from inferspan import semconv
from inferspan.capture import recording
from inferspan.capture.call import current
from inferspan.capture.compile.state import is_compiled, leave_frame
from inferspan.capture.forward import close_stale
from inferspan.capture.owner import Owner
from inferspan.capture.patching import ClassMethods, Undo
from inferspan.guard import contain, read_attribute, report

from .call import DiffusionCall
from .components import Components, _plain, components_of
from .outcome import facts_of

__all__ = ["attach_pipeline"]

KIND = "pipeline"


def attach_pipeline(owner_of: Callable[[object], Owner | None], model: nn.Module, classes: ClassMethods, undo: Undo) -> None:
    """Wrap the call of a pipeline.

    Args:
        owner_of: finds the instrumentation of parts, if they have one.
        model: the instrumented module; for anything but the parts of a pipeline nothing happens.
        classes: the wrapped methods of classes.
        undo: where the way back is put.
    """
    pipeline = model.pipeline if issubclass(type(model), Components) else None
    if pipeline is not None:
        undo.push(classes.acquire(type(pipeline), "__call__", _around_call(owner_of, classes)))


def _around_call(owner_of: Callable[[object], Owner | None], classes: ClassMethods) -> Any:
    def call_pipeline(original: Any, pipeline: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call: DiffusionCall | None = None
        if not is_dynamo_compiling():
            with contain("start of a pipeline call"):
                parts = components_of(pipeline)
                owner = owner_of(parts)
                if owner is not None and parts is not None:
                    call = _start(owner, parts, pipeline, _bound(original, args, kwargs), classes)
        if call is None:
            return original(*args, **kwargs)
        return recording.run_recorded(call, original, args, kwargs)

    return call_pipeline


def _bound(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a call by name, with defaults; those alone that have a name if they do not fit, which the call itself will say."""
    try:
        bound = inspect.signature(original).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return dict(kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _start(owner: Owner, parts: Components, pipeline: Any, arguments: dict[str, Any], classes: ClassMethods) -> DiffusionCall | None:
    close_stale(None)
    if parts.look(pipeline):
        owner.refresh()
    scheduler = read_attribute(pipeline, "scheduler")
    facts: dict[str, Any] = facts_of(arguments, scheduler)
    request = recording.start(KIND, owner, operation=semconv.OPERATION_GENERATE_CONTENT, root=parts, **facts)
    if not isinstance(request, recording.Request):
        return None
    undo = Undo()
    try:
        call = request.adapter = DiffusionCall(request, arguments, scheduler, undo)
        with contain("stages of a pipeline"):
            _attach(parts, scheduler, owner, undo, classes)
    except BaseException as error:
        undo.close()
        request.fail(error)
        raise
    return call


def _is_wanted(stage: str, chosen: str | tuple[tuple[str, tuple[str, ...]], ...]) -> bool:
    """Whether the setting ``stages`` leaves a stage of a pipeline in."""
    return isinstance(chosen, str) or any(name == stage for name, _ in chosen)


def _attach(parts: Components, scheduler: Any, owner: Owner, undo: Undo, classes: ClassMethods) -> None:
    """Put hooks and wrappers on the components; ``undo`` takes them off when the call has ended."""
    wanted = owner.settings.steps != "none"
    for name, stage in parts.stages.items():
        module = parts._modules[name]
        if module is not None and not is_compiled(module) and _is_wanted(stage, owner.settings.stages):
            undo.push(module.register_forward_pre_hook(_StageEnter(stage), with_kwargs=True).remove)
            undo.push(module.register_forward_hook(_StageExit(), with_kwargs=True, always_call=True).remove)
    for name in parts.autoencoders:
        module = parts._modules[name]
        if module is not None:
            module = _plain(module)
            for method, stage in (("encode", semconv.STAGE_VAE_ENCODE), ("decode", semconv.STAGE_VAE_DECODE)):
                if _is_wanted(stage, owner.settings.stages):
                    if stage == semconv.STAGE_VAE_DECODE:
                        _attach_blocks(module, undo)
                    undo.push(classes.wrap(module, method, _around_coder(stage)))
    if not wanted or scheduler is None:
        return
    if callable(read_attribute(scheduler, "step")):
        undo.push(classes.wrap(scheduler, "step", _around_step))
    if callable(read_attribute(scheduler, "set_timesteps")):
        undo.push(classes.wrap(scheduler, "set_timesteps", _around_timesteps))
    for name in parts.denoisers:
        module = parts._modules[name]
        if module is not None and not is_compiled(module):
            undo.push(module.register_forward_pre_hook(_enter_denoiser, with_kwargs=True).remove)


def _attach_blocks(autoencoder: nn.Module, undo: Undo) -> None:
    """Put hooks on the decoder inside an autoencoder, unless it runs in compiled code, which would be compiled again for them."""
    decoder = read_attribute(autoencoder, "decoder")
    if not isinstance(decoder, nn.Module) or is_compiled(decoder):
        return
    if any(hasattr(vars(autoencoder).get(name), "_torchdynamo_orig_callable") for name in ("decode", "_decode", "tiled_decode")):
        return
    undo.push(decoder.register_forward_pre_hook(_enter_decoder, with_kwargs=True).remove)
    undo.push(decoder.register_forward_hook(_leave_decoder, with_kwargs=True, always_call=True).remove)


def _running() -> DiffusionCall | None:
    """The pipeline call that runs on this thread, if no other request runs inside it."""
    call = current.call
    adapter = None if call is None else call.adapter
    return adapter if type(adapter) is DiffusionCall else None


class _StageEnter:
    """Forward pre-hook of a component that is a stage."""

    __slots__ = ("_stage",)

    def __init__(self, stage: str) -> None:
        self._stage = stage

    @leave_frame
    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        call = None if is_dynamo_compiling() else _running()
        if call is not None:
            try:
                call.begin_stage(self._stage, (*arguments[0], *(arguments[1] if len(arguments) > 1 else {}).values()))
            except Exception as error:
                report("start of a stage", error)


class _StageExit:
    """Forward hook of such a component, called after an exception as well, without an output."""

    __slots__ = ()

    @leave_frame
    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        call = None if is_dynamo_compiling() else _running()
        if call is not None:
            try:
                output = arguments[-1]
                call.end_stage(output, sys.exc_info()[1] if output is None else None)
            except Exception as error:
                report("end of a stage", error)


def _around_coder(stage: str) -> Any:
    def code(original: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = None if is_dynamo_compiling() else _running()
        if call is None:
            return original(*args, **kwargs)
        with contain("start of a stage"):
            call.begin_stage(stage, (*args, *kwargs.values()))
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            with contain("end of a stage"):
                call.end_stage(None, error)
            raise
        with contain("end of a stage"):
            call.end_stage(result, None)
        return result

    return code


def _around_step(original: Any, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around ``scheduler.step(model_output, timestep, sample, ...)``."""
    result = original(*args, **kwargs)
    call = _running()
    if call is not None and call.scheduler is scheduler:
        try:
            timestep = kwargs.get("timestep", args[1] if len(args) > 1 else None)
            sample = kwargs.get("sample", args[2] if len(args) > 2 else None)
            call.end_step(timestep, sample, result)
        except Exception as error:
            report("end of a step", error)
    return result


def _around_timesteps(original: Any, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around ``scheduler.set_timesteps()``: another denoising loop will run, for the next block of a video or another resolution."""
    call = _running()
    if call is not None and call.scheduler is scheduler:
        with contain("end of a stage"):
            call.end_loop()
    return original(*args, **kwargs)


@leave_frame
def _enter_denoiser(module: nn.Module, *arguments: Any) -> None:
    call = None if is_dynamo_compiling() else _running()
    if call is not None:
        try:
            call.enter_denoiser()
        except Exception as error:
            report("start of a step", error)


@leave_frame
def _enter_decoder(module: nn.Module, *arguments: Any) -> None:
    call = None if is_dynamo_compiling() else _running()
    if call is not None:
        try:
            call.begin_block(arguments[0])
        except Exception as error:
            report("blocks of a stage", error)


@leave_frame
def _leave_decoder(module: nn.Module, *arguments: Any) -> None:
    call = None if is_dynamo_compiling() else _running()
    if call is not None:
        try:
            output = arguments[-1]
            call.end_block(output, sys.exc_info()[1] if output is None else None)
        except Exception as error:
            report("blocks of a stage", error)
