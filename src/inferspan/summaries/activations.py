"""Calls of one module -> shapes, and mean, deviation and range of its outputs and inputs: of the last call, and of all recorded calls.

In: calls as they were recorded, with the statistics that the settings ``output_stats`` and ``input_stats`` have made. Out: a row of
plain values. Nothing of a tensor is held.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, overload

from inferspan import semconv
from inferspan.attribute_values import shape_attributes
from inferspan.module_records import joined_moments
from inferspan.text.numbers import counted

__all__ = ["Activations", "ModuleFigures", "ModuleRow", "OutputCall", "OutputFigures"]

KEPT_CALLS = 32
"""Calls in the history of a module."""
_LARGE = 1e9
"""Numbers from here on are shown with an exponent."""


@dataclass(frozen=True, slots=True)
class OutputFigures:
    """Values of outputs in a few numbers, over the finite ones; ``None`` where there is none, or the number is not known.

    Attributes:
        elements: values, those that are not finite included.
        mean: of the finite values.
        std: population standard deviation of the finite values.
        range: the smallest and the largest finite value.
        nan: values that are not a number.
        inf: infinite values.
        sparsity: share of zeros among all elements.
    """

    elements: int
    mean: float | None
    std: float | None
    range: tuple[float, float] | None
    nan: int
    inf: int
    sparsity: float | None = None

    def __str__(self) -> str:
        """In one line, with four decimals, very large numbers with an exponent; a figure that is not known is left out."""
        if self.elements <= self.nan + self.inf:
            return "no finite value"
        known = [f"{word} {_shown(value)}" for word, value in (("mean", self.mean), ("std", self.std)) if value is not None]
        if self.range is not None:
            known.append(f"range [{_shown(self.range[0])}, {_shown(self.range[1])}]")
        odd = "".join(f", {number:,} {word}" for number, word in ((self.nan, "NaN"), (self.inf, "Inf")) if number)
        zeros = f", {self.sparsity:.1%} zeros" if self.sparsity else ""
        return f"{', '.join(known) or 'figures are not known'}{zeros}{odd}"


@dataclass(frozen=True, slots=True)
class OutputCall:
    """One call of a module whose output was looked at.

    Attributes:
        start_ns: when it began, nanoseconds since the epoch.
        step: number of the step of its request; ``None`` outside of one.
        output: values of the output's first floating point tensor.
    """

    start_ns: int
    step: int | None
    output: OutputFigures


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """What one module was called with and gave.

    Attributes:
        name: its path in the model.
        type: its class.
        calls: number of recorded calls.
        input_shapes, output_shapes: of the last call, such as ``1x12x64``; one for each tensor.
        input_dtypes, output_dtypes: of the same tensors.
        outputs: values of all calls together; ``None`` without ``output_stats``.
        last: values of the last call that has statistics.
        history: the latest calls that have statistics, at most 32, the newest last.
        forgotten: number of earlier ones.
        inputs, last_inputs: as ``outputs`` and ``last``, of the first floating point tensor that the module was called with; ``None``
            without ``input_stats``.
    """

    name: str
    type: str
    calls: int
    input_shapes: tuple[str, ...]
    output_shapes: tuple[str, ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    outputs: OutputFigures | None = None
    last: OutputFigures | None = None
    history: tuple[OutputCall, ...] = field(default=(), repr=False)
    forgotten: int = field(default=0, repr=False)
    inputs: OutputFigures | None = None
    last_inputs: OutputFigures | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, without the history and those that are ``None``."""
        found = asdict(replace(self, history=(), forgotten=0))
        return {key: value for key, value in found.items() if value is not None and key not in ("history", "forgotten")}

    def __str__(self) -> str:
        """In one line."""
        given = ", ".join(f"{shape} {dtype}" for shape, dtype in zip(self.output_shapes, self.output_dtypes, strict=False)) or "no tensor"
        calls = counted(self.calls, "call")
        taken = "" if self.inputs is None else f"; inputs: {self.inputs}"
        return f"{self.name} ({self.type}): {given}" + ("" if self.outputs is None else f", {self.outputs}") + f", {calls}{taken}"


class Activations(Sequence[ModuleRow]):
    """Rows of the observed modules, in the model's order; printed with a line for each.

    Args:
        rows: one for each module.
    """

    def __init__(self, rows: Iterable[ModuleRow]) -> None:
        self.rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> ModuleRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ModuleRow, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        """A line for each module, with four decimals; std is the population's."""
        return "\n".join(map(str, self.rows)) or "no module has been recorded"


class _Sums:
    """Adds up the figures of one tensor over calls."""

    __slots__ = ("elements", "inf", "largest", "last", "moments", "nan", "smallest", "zeros")

    def __init__(self) -> None:
        self.elements = self.nan = self.inf = 0
        self.zeros = 0.0
        self.moments = (0.0, math.nan, math.nan)
        self.smallest, self.largest = math.inf, -math.inf
        self.last: Mapping[str, Any] | None = None

    def add(self, statistics: Mapping[str, Any]) -> None:
        """Take in a call, by the names of outputs."""
        self.last = statistics
        elements, nan, inf = (int(statistics.get(key, 0)) for key in _COUNTS)
        self.elements, self.nan, self.inf = self.elements + elements, self.nan + nan, self.inf + inf
        self.zeros += statistics.get(semconv.OUTPUT_STAT_SPARSITY, 0.0) * elements
        number = elements - nan - inf
        if number <= 0:
            return
        # Each figure by itself: one that is not known of a call says nothing of the others.
        mean, std, smallest, largest = (statistics.get(key, math.nan) for key in _VALUES)
        self.moments = joined_moments(self.moments, (number, mean, std))
        if smallest < self.smallest:  # not so for NaN
            self.smallest = smallest
        if largest > self.largest:
            self.largest = largest

    def together(self) -> OutputFigures | None:
        """The figures of all calls; ``None`` without one."""
        if self.last is None:
            return None
        sparsity = self.zeros / self.elements if self.elements else None
        mean, std = (value if math.isfinite(value) else None for value in self.moments[1:])
        extremes = (self.smallest, self.largest) if self.smallest <= self.largest else None
        return OutputFigures(self.elements, mean, std, extremes, self.nan, self.inf, sparsity)

    def latest(self) -> OutputFigures | None:
        """The figures of the last call."""
        return None if self.last is None else _figures(self.last)


class ModuleFigures:
    """Adds up the calls of one module; not safe to use on several threads at once.

    Args:
        name: its path in the model.
        type: its class.
        order: number of its first call, by which modules are in the model's order.
    """

    __slots__ = ("_calls", "_given", "_history", "_inputs", "_looked", "_name", "_outputs", "_taken", "_type", "order")

    def __init__(self, name: str, type: str, order: int) -> None:
        self._name, self._type, self.order = name, type, order
        self._calls = 0
        self._inputs: Any = ()
        self._outputs: Any = ()
        self._given, self._taken = _Sums(), _Sums()
        self._history: deque[tuple[int, int | None, Mapping[str, Any]]] = deque(maxlen=KEPT_CALLS)
        self._looked = 0

    def add(self, inputs: Any, outputs: Any, statistics: Mapping[str, Any] | None, at: tuple[int, int | None] = (0, None)) -> None:
        """Take in a call.

        Args:
            inputs: (shape, dtype) pairs of what went in.
            outputs: the same of what came out.
            statistics: of the output and the inputs, if they have any.
            at: when it began, in nanoseconds since the epoch, and the number of the step.
        """
        self.count(1, inputs, outputs)
        if statistics:
            self.look(statistics, at)

    def count(self, calls: int, inputs: Any, outputs: Any) -> None:
        """Take in calls without their statistics; the tensors are those of the last one."""
        self._calls += calls
        self._inputs, self._outputs = inputs, outputs

    def look(self, statistics: Mapping[str, Any], at: tuple[int, int | None]) -> None:
        """Take in the statistics of a call; see ``add``."""
        if semconv.OUTPUT_STAT_ELEMENT_COUNT in statistics:
            self._looked += 1
            self._history.append((*at, statistics))
            self._given.add(statistics)
        if _TAKEN[semconv.OUTPUT_STAT_ELEMENT_COUNT] in statistics:
            self._taken.add({key: statistics[name] for key, name in _TAKEN.items() if name in statistics})

    def row(self) -> ModuleRow:
        """The figures so far."""
        given, taken = _shapes(self._inputs), _shapes(self._outputs)
        return ModuleRow(
            self._name, self._type, self._calls, given[0], taken[0], given[1], taken[1], self._given.together(), self._given.latest(),
            tuple(OutputCall(at, step, _figures(found)) for at, step, found in self._history),
            self._looked - len(self._history), self._taken.together(), self._taken.latest(),
        )  # fmt: skip


_COUNTS = (semconv.OUTPUT_STAT_ELEMENT_COUNT, semconv.OUTPUT_STAT_NAN_COUNT, semconv.OUTPUT_STAT_INF_COUNT)
_TAKEN = {key: semconv.INPUT_STATS[key] for key in semconv.OUTPUTS_STATS}
"""Names of figures of inputs, by those of outputs."""
_VALUES = (semconv.OUTPUT_STAT_MEAN, semconv.OUTPUT_STAT_STD, semconv.OUTPUT_STAT_MIN, semconv.OUTPUT_STAT_MAX)


def _shown(value: float) -> str:
    return f"{value:.4f}" if abs(value) < _LARGE else f"{value:.4e}"


def _figures(found: Mapping[str, Any]) -> OutputFigures:
    elements, nan, inf = (int(found.get(key, 0)) for key in _COUNTS)
    mean, std, smallest, largest = (found.get(key) for key in _VALUES)
    extremes = None if smallest is None or largest is None else (smallest, largest)
    return OutputFigures(elements, mean, std, extremes, nan, inf, found.get(semconv.OUTPUT_STAT_SPARSITY))


def _shapes(described: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = shape_attributes(described, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES) if described else {}
    shapes: Any = found.get(semconv.OUTPUT_SHAPES, ())
    dtypes: Any = found.get(semconv.OUTPUT_DTYPES, ())
    return tuple(shapes), tuple(dtypes)
