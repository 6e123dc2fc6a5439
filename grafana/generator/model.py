"""The dashboard "Model internals": a beginning, with one panel."""

from __future__ import annotations

from typing import Any

from inferspan import semconv

from .frame import Row, frame
from .links import MODEL
from .panels import Query, Says, trend
from .queries import Queries
from .variables import COMMON

__all__ = ["dashboard"]

NAMES = (*COMMON, "trace_service")
Q = Queries(NAMES)


def dashboard() -> dict[str, Any]:
    """The dashboard as JSON."""
    says = Says("Forward passes a second.", "Rate of steps.", "Nothing: it is a measure of load.", empty="no generate() in this time range")
    rate = Query(Q.count(semconv.M_STEP_DURATION, by=["inferspan_phase"]), "{{inferspan_phase}}")
    steps = trend("Steps", rate, unit="ops", says=says, width=24)
    return frame(MODEL, "What happens inside the model.", [Row("Steps", [steps])], NAMES)
