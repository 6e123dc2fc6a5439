"""Spans of modules in sampled steps -> how long calls of each module take without the modules inside, by phase.

Memory is bounded: percentiles are kept as ``Quantiles``, and modules over a number are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from inferspan import semconv
from inferspan.analysis.quantiles import Quantiles

from .requests import Phase
from .spans import SpanLike, number, submodules, text

__all__ = ["Module", "Sampled", "in_a_row", "kind_of"]

_MOST = 5_000
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")
"""An index in a path: ``layers.0``, but not ``conv1``."""


def kind_of(path: str) -> str:
    """The path of a module with ``*`` for indices, which modules of equal layers share."""
    return _INDEX.sub("*", path)


def in_a_row(path: str) -> bool:
    """Whether a module has a number in place of a name: neighbours in a sequence are of different classes and sizes by design."""
    return path.rpartition(".")[2].isdecimal()


def _shapes(span: SpanLike) -> tuple[Any, Any]:
    found = (span.attributes.get(name) for name in (semconv.INPUT_SHAPES, semconv.OUTPUT_SHAPES))
    # A damaged file may have anything in place of a text.
    ins, outs = (tuple(one for one in shapes if isinstance(one, str)) if isinstance(shapes, list | tuple) else None for shapes in found)
    return ins, outs


@dataclass(slots=True)
class Module:
    """Calls of one module in one phase; seconds are those of the device where they were measured."""

    path: str
    type: str
    shapes: tuple[Any, Any] = (None, None)
    """Shapes of the inputs and outputs of the first call, as far as they were recorded."""
    calls: int = 0
    own: float = 0.0
    whole: float = 0.0
    typical: Quantiles = field(default_factory=Quantiles)
    """Own seconds of a call."""
    longest: SpanLike | None = None

    def add(self, span: SpanLike, own: float) -> None:
        """Count a call."""
        self.calls += 1
        self.own += own
        self.whole += span.measured_seconds
        self.typical.add(own)
        if self.longest is None or span.measured_seconds > self.longest.measured_seconds:
            self.longest = span


@dataclass(slots=True)
class Sampled:
    """The steps of a phase that have spans of modules, over all requests; ``ran`` counts the steps of the phase that ran, sampled or not.

    ``ran_seconds`` are the host's seconds of these.
    """

    phase: str
    steps: int = 0
    seconds: float = 0.0
    ran: int = 0
    ran_seconds: float = 0.0
    modules: dict[str, Module] = field(default_factory=dict)
    imbalances: list[tuple[float, SpanLike]] = field(default_factory=list)
    """Imbalance of experts in each recorded call of a router."""

    def add(self, phase: Phase, *, typical: bool) -> None:
        """Count the steps of a phase of one request; with ``typical`` its modules count as well."""
        self.ran += phase.ran
        self.ran_seconds += phase.step_seconds or 0.0
        for step in phase.steps if typical else ():
            inside = submodules(step)
            if inside:
                self.steps += 1
                self.seconds += step.measured_seconds
                self._add(inside)

    def _add(self, tops: Iterable[SpanLike]) -> None:
        waiting = list(tops)
        while waiting:
            span = waiting.pop()
            inside = submodules(span)
            waiting.extend(inside)
            path = text(span, semconv.MODULE_NAME) or span.name
            found = self.modules.get(path)
            if found is None:
                if len(self.modules) >= _MOST:
                    continue
                found = self.modules[path] = Module(path, text(span, semconv.MODULE_TYPE) or "", _shapes(span))
            found.add(span, max(0.0, span.measured_seconds - sum(one.measured_seconds for one in inside)))
            imbalance = number(span, semconv.EXPERTS_IMBALANCE)
            if imbalance is not None and len(self.imbalances) < _MOST:
                self.imbalances.append((imbalance, span))

    @property
    def scale(self) -> float:
        """What seconds of sampled steps are multiplied with to get those of all steps."""
        return self.ran / self.steps if self.steps else 0.0
