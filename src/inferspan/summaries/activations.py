"""Calls of one module -> shapes, and mean, deviation and range of its outputs: of the last call, and of all recorded calls together.

In: calls as they were recorded, with the statistics of their output where the setting ``output_stats`` has them made. Out: a row of plain
values. Nothing of a tensor is held.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from inferspan import semconv
from inferspan.attribute_values import shape_attributes

__all__ = ["ModuleFigures", "ModuleRow", "OutputFigures"]


@dataclass(frozen=True, slots=True)
class OutputFigures:
    """Values of outputs in a few numbers, over the finite ones; ``None`` where there is none.

    Attributes:
        elements: values, those that are not finite included.
        mean: of the finite values.
        std: population standard deviation of the finite values.
        range: the smallest and the largest finite value.
        nan: values that are not a number.
        inf: infinite values.
    """

    elements: int
    mean: float | None
    std: float | None
    range: tuple[float, float] | None
    nan: int
    inf: int

    def __str__(self) -> str:
        """In one line, with four decimals."""
        if self.mean is None or self.std is None or self.range is None:
            return "no finite value"
        odd = "".join(f", {number:,} {word}" for number, word in ((self.nan, "NaN"), (self.inf, "Inf")) if number)
        return f"mean {self.mean:.4f}, std {self.std:.4f}, range [{self.range[0]:.4f}, {self.range[1]:.4f}]{odd}"


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

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, without those that are ``None``."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        """In one line."""
        given = ", ".join(f"{shape} {dtype}" for shape, dtype in zip(self.output_shapes, self.output_dtypes, strict=False)) or "no tensor"
        calls = f"{self.calls:,} call" + ("" if self.calls == 1 else "s")
        return f"{self.name} ({self.type}): {given}" + ("" if self.outputs is None else f", {self.outputs}") + f", {calls}"


class ModuleFigures:
    """Adds up the calls of one module; not safe to use on several threads at once.

    Args:
        name: its path in the model.
        type: its class.
        order: number of its first call, by which modules are in the model's order.
    """

    __slots__ = ("_calls", "_elements", "_finite", "_inf", "_inputs", "_largest", "_last", "_mean", "_name", "_nan", "_outputs",
                 "_smallest", "_squares", "_type", "order")  # fmt: skip

    def __init__(self, name: str, type: str, order: int) -> None:
        self._name, self._type, self.order = name, type, order
        self._calls = self._elements = self._finite = self._nan = self._inf = 0
        self._inputs: Any = ()
        self._outputs: Any = ()
        self._mean = self._squares = 0.0
        self._smallest, self._largest = math.inf, -math.inf
        self._last: Mapping[str, Any] | None = None

    def add(self, inputs: Any, outputs: Any, statistics: Mapping[str, Any] | None) -> None:
        """Take in a call: (shape, dtype) pairs of what went in and came out, and the statistics of the output, if it has any."""
        self._calls += 1
        self._inputs, self._outputs = inputs, outputs
        if not statistics or semconv.OUTPUT_STAT_ELEMENT_COUNT not in statistics:
            return
        self._last = statistics
        elements, nan, inf = (int(statistics.get(key, 0)) for key in _COUNTS)
        self._elements, self._nan, self._inf = self._elements + elements, self._nan + nan, self._inf + inf
        number = elements - nan - inf
        values = [statistics.get(key) for key in _VALUES]
        if number <= 0 or None in values:
            return
        mean, std, smallest, largest = map(float, values)  # type: ignore[arg-type]
        # Joined pairwise: Chan, Golub and LeVeque, 1979.
        gap, before = mean - self._mean, self._finite
        self._finite += number
        self._mean += gap * number / self._finite
        self._squares += std * std * number + gap * gap * before * number / self._finite
        self._smallest, self._largest = min(self._smallest, smallest), max(self._largest, largest)

    def row(self) -> ModuleRow:
        """The figures so far."""
        given, taken = _shapes(self._inputs), _shapes(self._outputs)
        return ModuleRow(self._name, self._type, self._calls, given[0], taken[0], given[1], taken[1], self._together(), self._of_last())

    def _together(self) -> OutputFigures | None:
        if self._last is None:
            return None
        if not self._finite:
            return OutputFigures(self._elements, None, None, None, self._nan, self._inf)
        std = math.sqrt(self._squares / self._finite)
        return OutputFigures(self._elements, self._mean, std, (self._smallest, self._largest), self._nan, self._inf)

    def _of_last(self) -> OutputFigures | None:
        if self._last is None:
            return None
        elements, nan, inf = (int(self._last.get(key, 0)) for key in _COUNTS)
        mean, std, smallest, largest = (self._last.get(key) for key in _VALUES)
        return OutputFigures(elements, mean, std, None if smallest is None or largest is None else (smallest, largest), nan, inf)


_COUNTS = (semconv.OUTPUT_STAT_ELEMENT_COUNT, semconv.OUTPUT_STAT_NAN_COUNT, semconv.OUTPUT_STAT_INF_COUNT)
_VALUES = (semconv.OUTPUT_STAT_MEAN, semconv.OUTPUT_STAT_STD, semconv.OUTPUT_STAT_MIN, semconv.OUTPUT_STAT_MAX)


def _shapes(described: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = shape_attributes(described, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES) if described else {}
    shapes: Any = found.get(semconv.OUTPUT_SHAPES, ())
    dtypes: Any = found.get(semconv.OUTPUT_DTYPES, ())
    return tuple(shapes), tuple(dtypes)
