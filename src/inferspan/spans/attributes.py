"""Attributes of the spans under a request: phases, steps, module calls, and the operations and kernels of a profiler window.

Each of these attributes is set here and nowhere else. Both writers, of SDK spans and of OTLP bytes, call these functions, so that a new
attribute of a phase, step or module is one line here and one row in ``semconv``. What belongs to a module call is divided by what it
depends on, because the packer keeps the bytes of each part: the module (``of_module``), the shapes (``of_inputs``, ``of_outputs``), the
pass (``of_pass``) and the call itself (``of_device_time``, ``of_tokens``, ``of_failure``, the recorded statistics). ``of_call`` joins them.

At its limit the SDK drops the attributes that were set first, so those that identify a span come last.
"""

from __future__ import annotations

import functools
from typing import Any

from inferspan import semconv
from inferspan.attribute_values import shape_attributes
from inferspan.guard import contain
from inferspan.records import Attributes, AttributeValue, ModuleBatch, ModuleInfo, Phase, Profiled, Stage, Step

__all__ = [
    "nonfinite_attributes",
    "of_call",
    "of_device_time",
    "of_failure",
    "of_inputs",
    "of_module",
    "of_outputs",
    "of_pass",
    "of_phase",
    "of_profiled",
    "of_roofline",
    "of_stage",
    "of_step",
    "of_tokens",
]

_Described = tuple[tuple[Any, Any], ...]


def of_phase(phase: Phase) -> dict[str, AttributeValue]:
    """Attributes of the span of a phase."""
    found = {**phase.attributes, semconv.PHASE: phase.key.name}
    if phase.roofline is not None:
        with contain("roofline"):
            found.update(phase.roofline.attributes())
    if phase.failure is not None:
        found.update(of_failure(phase.failure))
    return found


def of_step(step: Step, device: str | None) -> dict[str, AttributeValue]:
    """Attributes of the span of a step.

    Args:
        step: the step; its attributes are computed now if the record holds a function.
        device: where the model ran, such as ``cuda:0``, if that is known.
    """
    known = step.attributes
    found: dict[str, AttributeValue] = {**(known() if callable(known) else known)}
    if step.roofline is not None:
        with contain("roofline"):
            found.update(step.roofline.of_step(found, (step.end_ns - step.start_ns) / 1e9))
    if device is not None:
        found[semconv.DEVICE] = device
    found[semconv.PHASE] = step.phase.name
    found[semconv.STEP_INDEX] = step.number
    if step.failure is not None:
        found.update(of_failure(step.failure))
    return found


def of_stage(stage: Stage) -> dict[str, AttributeValue]:
    """Attributes of the span of a stage of a model, computed now if the record holds a function.

    The stage may run on another device than the rest of the model, so the device is an attribute only if the record has it.
    """
    known = stage.attributes
    found: dict[str, AttributeValue] = {**(known() if callable(known) else known)}
    if stage.phase is not None:
        found[semconv.PHASE] = stage.phase.name
    found[semconv.STAGE_KIND] = semconv.STAGE_KIND_MODEL
    found[semconv.STAGE_NAME] = stage.name
    if stage.failure is not None:
        found.update(of_failure(stage.failure))
    return found


@functools.lru_cache(maxsize=8192)
def of_module(info: ModuleInfo, phase: str) -> Attributes:
    """Attributes that all calls of a module have in a phase."""
    found: dict[str, AttributeValue] = {} if info.layer_index is None else {semconv.MODULE_LAYER_INDEX: info.layer_index}
    found[semconv.MODULE_TYPE] = info.type
    found[semconv.PHASE] = phase
    found[semconv.MODULE_NAME] = info.name
    if info.stage is not None:
        if info.stage.device is not None:
            found[semconv.DEVICE] = info.stage.device
        found[semconv.STAGE_KIND] = semconv.STAGE_KIND_MODEL
        found[semconv.STAGE_NAME] = info.stage.name
    return found


@functools.lru_cache(maxsize=4096)
def of_inputs(described: _Described) -> Attributes:
    """Attributes of a module call for the (shape, dtype) pairs of its inputs; none if there are none."""
    return shape_attributes(described, semconv.INPUT_SHAPES, semconv.INPUT_DTYPES)


@functools.lru_cache(maxsize=4096)
def of_outputs(described: _Described) -> Attributes:
    """Attributes of a module call for the (shape, dtype) pairs of its outputs; none if there are none."""
    return shape_attributes(described, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES)


def of_pass(step: int | None) -> dict[str, AttributeValue]:
    """Attributes that all module calls, operations and kernels of a forward pass have: the number of the step, if it is one."""
    return {} if step is None else {semconv.STEP_INDEX: step}


def of_device_time(seconds: float) -> dict[str, AttributeValue]:
    """The attribute of a module call whose time on the device was measured; always one double, for which templates keep a column."""
    return {semconv.DEVICE_TIME: seconds}


def of_tokens(tokens: int) -> dict[str, AttributeValue]:
    """The attribute of a call of a stage whose output stands for so many tokens of the input."""
    return {semconv.STAGE_TOKENS: tokens}


def of_collectives(seconds: float) -> dict[str, AttributeValue]:
    """The attribute of a module call in which a profiler window has seen collectives."""
    return {semconv.PROFILER_COLLECTIVE_TIME: seconds}


def of_roofline(batch: ModuleBatch, call: tuple[Any, ...]) -> dict[str, AttributeValue]:
    """The attributes of the roofline of a module call; none if they are not wanted, or not known."""
    if batch.roofline is None:
        return {}
    with contain("roofline"):
        number, _, info, start, end, inputs, outputs, *_ = call
        found: dict[str, AttributeValue] = batch.roofline.of_module(
            info.name, inputs, outputs, (end - start) / 1e9, batch.device.get(number)
        )
        return found
    return {}


def of_failure(failure: str) -> dict[str, AttributeValue]:
    """The attribute of a phase, step or module call that an exception of this type has ended."""
    return {semconv.ERROR_TYPE: failure}


def of_call(batch: ModuleBatch, call: tuple[Any, ...]) -> dict[str, AttributeValue]:
    """All attributes of the span of a module call.

    Args:
        batch: the forward pass, with the statistics of outputs and the device times.
        call: one of its calls, in the layout of ``ModuleCall``.
    """
    number, _, info, _, _, inputs, outputs, failure, slot = call
    step, phase, _, _, statistics, device, *_ = batch
    found = {**of_inputs(inputs), **of_outputs(outputs), **of_pass(step), **of_module(info, phase.name)}
    if (seconds := device.get(number)) is not None:
        found = {**of_device_time(seconds), **found}
    if (tokens := batch.tokens.get(number)) is not None:
        found = {**of_tokens(tokens), **found}
    if (shared := batch.collectives.get(number)) is not None:
        found = {**of_collectives(shared), **found}
    if slot is not None:
        found = {**statistics.get(slot, {}), **found}
    if batch.roofline is not None:
        found = {**of_roofline(batch, call), **found}
    if failure is not None:
        found.update(of_failure(failure))
    return found


def nonfinite_attributes(bad: Any) -> dict[str, AttributeValue]:
    """Attributes of the event of a ``BadOutput``."""
    found: dict[str, AttributeValue] = {
        semconv.MODULE_NAME: bad.module,
        semconv.OUTPUT_STAT_NAN_COUNT: bad.nan,
        semconv.OUTPUT_STAT_INF_COUNT: bad.inf,
        semconv.OUTPUT_STAT_ELEMENT_COUNT: bad.elements,
    }
    return found if bad.step is None else {**found, semconv.STEP_INDEX: bad.step}


def of_profiled(batch: ModuleBatch, profiled: Profiled) -> dict[str, AttributeValue]:
    """Attributes of the span of an operation or kernel."""
    return {**profiled.attributes, **of_pass(batch.step), semconv.PHASE: batch.phase.name}
