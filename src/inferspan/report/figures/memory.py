"""A session -> memory by module and the peak of the run: the key ``memory`` of the JSON report, and a section of page and text.

In comes a ``Session``; out come the figures that ``handle.memory()`` has of the same run, empty where the setting ``memory`` was off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inferspan import semconv
from inferspan.report.plain import plain
from inferspan.report.session import Session
from inferspan.report.spans import Request
from inferspan.summaries.memory import MemoryFigures, memory_figures

__all__ = ["memory_document", "memory_of"]

_COLUMNS = (
    semconv.MEMORY_MODULE_READINGS, semconv.MEMORY_MODULE_AFTER, semconv.MEMORY_MODULE_DIFFERENCE, semconv.MEMORY_MODULE_RISE,
)  # fmt: skip
_MOST_MODULES = 4_000
_MOST_SHORTAGES = 16


def memory_of(session: Session) -> MemoryFigures:
    """The figures of all requests of a session together."""
    sums: dict[str, list[Any]] = {}
    peaks: list[int] = []
    shortages: list[str] = []
    device, steps = None, 0
    for request in session.requests:
        attributes = request.span.attributes
        high = attributes.get(semconv.MEMORY_HIGH_WATER_END)
        if type(high) is int:
            peaks.append(high)
            allocator = semconv.MEMORY_RESERVED_END in attributes
            named = str(attributes.get(semconv.DEVICE))
            device = (named if named.startswith("cuda") else "cuda") if allocator else device or "cpu"
        steps += sum(semconv.MEMORY_HIGH_WATER_END in step.attributes for step in request.steps)
        for event in request.span.events:
            if event.name == semconv.MEMORY_MODULES_EVENT:
                _add(sums, event.attributes)
            elif event.name == semconv.OOM_EVENT:
                shortages.append(_told(request, event.attributes))
    rows = [(name, *found) for name, found in sums.items()]
    return memory_figures(device, max(peaks, default=None), steps, rows, shortages[-_MOST_SHORTAGES:])


def memory_document(session: Session) -> dict[str, Any]:
    """The same as plain values; empty where nothing was read."""
    found = memory_of(session).as_dict()
    modules = [plain(one) for one in found.pop("modules", ())]
    top = {by: plain(names) for by, names in found.pop("top", {}).items()}
    return {**plain(found), "modules": modules, "top": top} if found else {}


def _add(sums: dict[str, list[Any]], event: Mapping[str, Any]) -> None:
    """Add the modules of an event; one that cannot be read is passed over."""
    names, columns = event.get(semconv.MEMORY_MODULE_NAMES), [event.get(key) for key in _COLUMNS]
    if not isinstance(names, list | tuple) or not all(isinstance(one, list | tuple) and len(one) == len(names) for one in columns):
        return
    lines: Any = zip(names, *columns, strict=True)
    for name, *values in lines:
        if not isinstance(name, str) or not all(isinstance(one, int | float) and math.isfinite(one) for one in values) or values[0] < 1:
            continue
        if name in sums or len(sums) < _MOST_MODULES:
            found = sums.setdefault(name, [0, 0.0, 0.0, 0])
            readings, after, difference, rise = values
            for place, value in enumerate((readings, after * readings, difference * readings, rise)):
                found[place] += value


def _told(request: Request, event: Mapping[str, Any]) -> str:
    """An out-of-memory error in words."""
    parts = [str(request.span.name)]
    if (step := event.get(semconv.STEP_INDEX)) is not None:
        parts.append(f"step {step}")
    if (module := event.get(semconv.MODULE_NAME)) is not None:
        shapes: Any = event.get(semconv.INPUT_SHAPES) or ()
        parts.append(f"{module or 'the model itself'} ({', '.join(map(str, shapes)) or 'no tensors'})")
    asked = event.get(semconv.OOM_REQUESTED)
    return ", ".join(parts) + (f", {asked:,} bytes could not be allocated" if isinstance(asked, int) else "")
