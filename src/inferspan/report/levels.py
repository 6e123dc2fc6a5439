"""Where a span of ours stands in the tree: a request, or a part of one, or a stage of the program around requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from inferspan import semconv

__all__ = ["BATCH", "MODULE", "PHASE", "PROFILED", "REQUEST", "STEP", "TOPS", "USER_STAGE", "level_of"]

REQUEST, BATCH, PHASE, STEP, MODULE, PROFILED = "request", "batch", "phase", "step", "module", "profiled"
USER_STAGE = "user stage"
TOPS = (REQUEST, BATCH, USER_STAGE)
"""Spans that count for themselves, wherever they hang."""


class Spanlike(Protocol):
    """Name and attributes of a span."""

    name: str
    attributes: Mapping[str, Any]


def level_of(span: Spanlike) -> str:
    """``request``, ``batch``, ``phase``, ``step``, ``module``, ``profiled``, or ``user stage`` for stages and sessions of the program."""
    attributes = span.attributes
    if semconv.STAGE_SELF_TIME in attributes:
        return USER_STAGE
    if semconv.BATCH_STEPS in attributes:
        return BATCH
    if semconv.PROFILER_KIND in attributes:
        return PROFILED
    if semconv.MODULE_NAME in attributes or semconv.MODULE_TYPE in attributes:
        return MODULE
    if span.name in (semconv.SPAN_PREFILL_STEP, semconv.SPAN_DECODE_STEP, semconv.SPAN_DENOISE_STEP):
        return STEP
    phase = span.name in (semconv.SPAN_PREFILL, semconv.SPAN_DECODE) and semconv.PHASE in attributes
    if phase or attributes.get(semconv.STAGE_NAME) == span.name:
        return PHASE
    return REQUEST
