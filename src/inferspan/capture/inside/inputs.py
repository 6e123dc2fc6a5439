"""Inputs of modules: statistics of those of recorded calls, and which tensors of a call are looked at.

In: positional and keyword arguments, before the module runs, which may write to them. Out: the ``inferspan.input.stat.*`` attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferspan import semconv
from inferspan.capture.modules.output_stats import OutputStats
from inferspan.records import AttributeValue

__all__ = ["InputFigures", "InputLog", "given"]


def given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a module is called with, masks apart: those have infinite or very large values where all is well."""
    if len(args) == 1 and not kwargs:
        return args[0]
    return [*args, *(value for name, value in kwargs.items() if "mask" not in name)]


class InputFigures:
    """Statistics of the inputs of one call; empty until they are read."""

    __slots__ = ("_index", "found")

    def __init__(self, index: int) -> None:
        self._index = index
        self.found: dict[str, AttributeValue] = {}

    def attributes(self) -> dict[str, AttributeValue]:
        """For the span of the call."""
        return self.found

    def settle(self, figures: Sequence[Mapping[str, AttributeValue]]) -> None:
        """Take its own of the figures that have been read."""
        self.found = {semconv.INPUT_STATS[key]: value for key, value in figures[self._index].items()}


class InputLog:
    """Statistics of inputs of one request, on their device until they are read."""

    def __init__(self) -> None:
        self._stats = OutputStats()
        self._unread: list[InputFigures] = []

    def add(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> InputFigures | None:
        """Launch the statistics of what a module is called with; ``None`` if there is nothing to take them of."""
        index = self._stats.append(given(args, kwargs))
        if index is None:
            return None
        self._unread.append(InputFigures(index))
        return self._unread[-1]

    def read(self) -> None:
        """Read them; may wait for the device."""
        unread, self._unread = self._unread, []
        figures = self._stats.read()
        for one in unread:
            one.settle(figures)
