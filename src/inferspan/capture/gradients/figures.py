"""Figures of gradients as plain values, without torch: those of one backward call of a module, and of all of them together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from inferspan.module_records import joined_moments
from inferspan.records import AttributeValue

__all__ = ["GradientFigures", "GradientRow", "GradientTotals", "Gradients", "as_attributes", "nonfinite"]


@dataclass(frozen=True, slots=True)
class GradientFigures:
    """Figures of gradients, over their finite values.

    Attributes:
        elements: all values.
        mean: mean; ``None``, as are the next four, if no value was finite, or it is too large for a float64.
        std: population standard deviation.
        min: smallest value.
        max: largest value.
        norm: Euclidean norm.
        nan: values that are not a number.
        inf: infinite values.
    """

    elements: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    norm: float | None
    nan: int
    inf: int

    def __str__(self) -> str:
        odd = f", {self.nan:,} NaN and {self.inf:,} Inf" if self.nan or self.inf else ""
        if not self.finite:
            return f"no finite value{odd}"
        known = [f"{word} {value:.2e}" for word, value in (("norm", self.norm), ("std", self.std)) if value is not None]
        return f"{', '.join(known) or 'norm and std are not known'}{odd}"

    @property
    def finite(self) -> int:
        """Number of finite values."""
        return self.elements - self.nan - self.inf

    def joined(self, other: GradientFigures | None) -> GradientFigures:
        """The figures of both together; one that is not known of either is not known of both, apart from the extremes."""
        if other is None:
            return self
        elements, nan, inf = self.elements + other.elements, self.nan + other.nan, self.inf + other.inf
        if not (self.finite and other.finite):
            known = self if self.finite else other
            return GradientFigures(elements, known.mean, known.std, known.min, known.max, known.norm, nan, inf)
        _, mean, std = joined_moments(*((one.finite, _number(one.mean), _number(one.std)) for one in (self, other)))
        norm = math.hypot(_number(self.norm), _number(other.norm))
        return GradientFigures(
            elements,
            _known(mean),
            _known(std),
            _chosen(min, self.min, other.min),
            _chosen(max, self.max, other.max),
            _known(norm),
            nan,
            inf,
        )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _chosen(choose: Any, one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return float(choose(known)) if known else None


def as_attributes(figures: GradientFigures | None, names: dict[str, str]) -> dict[str, AttributeValue]:
    """The figures under ``names``, those of ``semconv.GRAD_INPUTS`` or ``GRAD_OUTPUTS``; numbers that are not known are left out."""
    if figures is None:
        return {}
    found = {
        "mean": figures.mean, "std": figures.std, "min": figures.min, "max": figures.max, "norm": figures.norm,
        "nan_count": figures.nan, "inf_count": figures.inf, "element_count": figures.elements,
    }  # fmt: skip
    return {names[key]: value for key, value in found.items() if value is not None and math.isfinite(value)}


@dataclass(frozen=True, slots=True)
class GradientRow:
    """What is known of the backward calls of one module.

    Attributes:
        module: its path; empty for the model itself.
        type: its class.
        calls: backward calls.
        seconds: their time in total, on the host.
        inputs: of the gradients of its inputs, all calls together; ``None`` if it has had none.
        outputs: the same of its outputs.
        last_inputs: those of the last call.
        last_outputs: likewise.
    """

    module: str
    type: str
    calls: int
    seconds: float
    inputs: GradientFigures | None
    outputs: GradientFigures | None
    last_inputs: GradientFigures | None
    last_outputs: GradientFigures | None

    def __str__(self) -> str:
        calls = f"{self.calls:,} backward call" + ("" if self.calls == 1 else "s")
        sides = [f"{what} {figures}" for what, figures in (("outputs", self.outputs), ("inputs", self.inputs)) if figures is not None]
        return f"{self.module or 'the model'} ({self.type}): {'; '.join([*sides, calls])}"


class Gradients(Sequence[GradientRow]):
    """Rows of the modules that had gradients, in the order of the forward pass; printed with a line for each.

    Args:
        rows: one for each module.
        forwards: forward passes whose backward pass was waited for.
        backwards: backward passes that were seen.
        not_looked_at: gradients without figures, by reason.
    """

    def __init__(
        self, rows: Iterable[GradientRow] = (), forwards: int = 0, backwards: int = 0, not_looked_at: dict[str, int] | None = None
    ) -> None:
        self.rows = tuple(rows)
        self.forwards, self.backwards = forwards, backwards
        self.not_looked_at = not_looked_at or {}

    @overload
    def __getitem__(self, index: int) -> GradientRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[GradientRow, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def first_nonfinite(self) -> GradientRow | None:
        """The last module in the order of the forward pass that had NaN or Inf: there they began, as a rule."""
        odd = [row for row in self.rows if row.module and any(one.nan or one.inf for one in (row.inputs, row.outputs) if one is not None)]
        return odd[-1] if odd else None

    def __str__(self) -> str:
        passes = f"{self.backwards:,} backward of {self.forwards:,} forward passes"
        odd = ", ".join(f"{count:,} {reason}" for reason, count in self.not_looked_at.items())
        return "\n".join([f"gradients: {passes}" + (f"; not looked at: {odd}" if odd else ""), *(f"  {row}" for row in self.rows)])


class GradientTotals:
    """Adds up the backward calls of one module; not safe to use on several threads at once."""

    __slots__ = ("_calls", "_inputs", "_last", "_module", "_outputs", "_seconds", "_type", "order")

    def __init__(self, module: str, type: str, order: int) -> None:
        self._module, self._type, self.order = module, type, order
        self._calls, self._seconds = 0, 0.0
        self._inputs: GradientFigures | None = None
        self._outputs: GradientFigures | None = None
        self._last: tuple[GradientFigures | None, GradientFigures | None] = (None, None)

    def add(self, seconds: float, inputs: GradientFigures | None, outputs: GradientFigures | None) -> None:
        """Take in a backward call."""
        self._calls += 1
        self._seconds += seconds
        self._last = (inputs, outputs)
        self._inputs = self._inputs if inputs is None else inputs.joined(self._inputs)
        self._outputs = self._outputs if outputs is None else outputs.joined(self._outputs)

    def row(self) -> GradientRow:
        """The figures so far."""
        return GradientRow(self._module, self._type, self._calls, self._seconds, self._inputs, self._outputs, *self._last)


def nonfinite(*figures: GradientFigures | None) -> tuple[int, int]:
    """Numbers of NaN and Inf."""
    known = [one for one in figures if one is not None]
    return sum(one.nan for one in known), sum(one.inf for one in known)
