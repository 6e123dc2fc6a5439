"""Graphs, graph breaks and recompilations of torch.compile in this process, as torch itself counts them.

In: the counters of Dynamo, if the program has loaded it. Out: counts since the first reading. Nothing is imported and nothing of torch is
wrapped; a counter that a release of torch lacks is absent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from inferspan import semconv
from inferspan.guard import contain

__all__ = ["CompileCounts"]


def _counters(group: str) -> dict[str, int] | None:
    known: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    # Asking a counter for a key that it has not would add it, which other threads may be reading.
    return None if known is None else known.get(group, {})


def _graphs() -> int | None:
    found = _counters("stats")
    return None if found is None else int(found.get("unique_graphs", 0))


def _breaks() -> int | None:
    found = _counters("graph_break")
    return None if found is None else sum(list(found.values()))


def _recompiles() -> int | None:
    # Of each function, how often it was compiled.
    found: Any = getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COMPILE_COUNTER", None)
    return None if found is None else sum(max(0, number - 1) for number in list(found.values()))


_READINGS: dict[str, Callable[[], int | None]] = {
    semconv.M_COMPILE_GRAPHS: _graphs,
    semconv.M_COMPILE_GRAPH_BREAKS: _breaks,
    semconv.M_COMPILE_RECOMPILES: _recompiles,
}


class CompileCounts:
    """Counts since this was made, for one meter provider. They never fall: a program may reset the counters of torch."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._total: dict[str, int] = {}
        for name in _READINGS:
            with contain("compile metrics"):
                self._last[name] = _READINGS[name]() or 0

    def read(self, name: str) -> int | None:
        """The count of a metric; ``None`` if Dynamo is not loaded."""
        with contain("compile metrics"):
            now = _READINGS[name]()
            if now is None:
                return None
            last = self._last.get(name, 0)
            self._last[name] = now
            self._total[name] = total = self._total.get(name, 0) + (now - last if now >= last else now)
            return total
        return None
