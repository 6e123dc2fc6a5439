"""Where a span of ours stands in the tree: a request, or a part of one, or a stage of the program around requests.

And which operation it is a call of, for figures by operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from inferspan import semconv

__all__ = [
    "BATCH", "FIGURES", "LOAD", "MODULE", "PHASE", "PROFILED", "REQUEST", "STEP", "TOPS", "USER_STAGE", "level_of", "measured",
    "module_operation", "operation_of", "step_name",
]  # fmt: skip

REQUEST, BATCH, PHASE, STEP, MODULE, PROFILED = "request", "batch", "phase", "step", "module", "profiled"
USER_STAGE, LOAD = "user stage", "load"
TOPS = (REQUEST, BATCH, USER_STAGE, LOAD)
"""Spans that count for themselves, wherever they hang."""


FIGURES = frozenset((
    semconv.STAGE_SELF_TIME, semconv.BATCH_STEPS, semconv.PROFILER_KIND, semconv.MODULE_NAME, semconv.MODULE_TYPE, semconv.LOAD_KIND,
    semconv.PHASE, semconv.STAGE_NAME, semconv.METHOD, semconv.KERNEL_NAME, semconv.OP_NAME, semconv.DEVICE_TIME, semconv.MEMORY_START,
    semconv.MEMORY_END,
))  # fmt: skip
"""Attributes that decide about the level of a span, and that figures by operation are made of."""


class Spanlike(Protocol):
    """Name and attributes of a span."""

    @property
    def name(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...


def level_of(span: Spanlike) -> str:
    """``request``, ``batch``, ``phase``, ``step``, ``module``, ``profiled``, ``load``, or ``user stage`` for stages and sessions."""
    attributes = span.attributes
    if semconv.STAGE_SELF_TIME in attributes:
        return USER_STAGE
    if semconv.BATCH_STEPS in attributes:
        return BATCH
    if semconv.PROFILER_KIND in attributes:
        return PROFILED
    if semconv.MODULE_NAME in attributes or semconv.MODULE_TYPE in attributes:
        return MODULE
    if semconv.LOAD_KIND in attributes and span.name in semconv.LOAD_SPANS:
        return LOAD
    if span.name in (semconv.SPAN_PREFILL_STEP, semconv.SPAN_DECODE_STEP, semconv.SPAN_DENOISE_STEP):
        return STEP
    phase = span.name in (semconv.SPAN_PREFILL, semconv.SPAN_DECODE, semconv.SPAN_BACKWARD) and semconv.PHASE in attributes
    if phase or attributes.get(semconv.STAGE_NAME) == span.name:
        return PHASE
    return REQUEST


_KINDS = {PHASE: "phase", STEP: "step", BATCH: "batch", LOAD: "load"}


def operation_of(span: Spanlike, level: str) -> tuple[str, str]:
    """Kind and name of the operation that a span is a call of, as ``analysis.operations`` counts it; ``level`` is that of the span."""
    attributes = span.attributes
    if level == MODULE:
        return "module", module_operation(_text(attributes.get(semconv.MODULE_NAME)) or span.name, attributes.get(semconv.PHASE))
    if level == PHASE and attributes.get(semconv.STAGE_NAME) == span.name:
        return "stage", span.name
    if level in _KINDS:
        return _KINDS[level], span.name
    if level == PROFILED:
        return "kernel", _text(attributes.get(semconv.KERNEL_NAME)) or _text(attributes.get(semconv.OP_NAME)) or span.name
    if level == USER_STAGE:
        return ("stage" if semconv.STAGE_NAME in attributes else "session"), span.name
    return ("method" if semconv.METHOD in attributes else "request"), span.name


def module_operation(module: str, phase: object) -> str:
    """Name of the operation that a call of a module is; backward calls are another one than forward calls."""
    return f"{semconv.SPAN_BACKWARD} {module}" if phase == semconv.SPAN_BACKWARD else module


def step_name(phase: str) -> str:
    """Name of the span of a step in the phase or stage of this name."""
    if phase == semconv.SPAN_PREFILL:
        return semconv.SPAN_PREFILL_STEP
    return semconv.SPAN_DENOISE_STEP if phase == semconv.STAGE_DENOISE else semconv.SPAN_DECODE_STEP


def measured(attributes: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Seconds on the device, and bytes of memory at the end of a span minus at its start; ``None`` where nothing measured them."""
    device = attributes.get(semconv.DEVICE_TIME)
    seconds = max(0.0, float(device)) if isinstance(device, int | float) and not isinstance(device, bool) else None
    start, end, delta = (attributes.get(key) for key in (semconv.MEMORY_START, semconv.MEMORY_END, semconv.MEMORY_DELTA))
    return seconds, delta if type(delta) is int else end - start if type(start) is int and type(end) is int else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
