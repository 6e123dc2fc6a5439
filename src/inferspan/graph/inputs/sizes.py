"""For which sizes a graph holds: what torch.export assumed of the sizes that may differ while it traced one sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import TraceError

AGAIN = "trace again with a sample of such sizes"
"""What to do where a graph does not hold."""


@dataclass(frozen=True)
class Size:
    """A size that may differ on replay.

    Attributes:
        name: its letter in ``Node.dims``.
        minimum: the least size for which the graph holds.
        maximum: the largest one; None if there is none.
        places: the dimensions of inputs that have it, such as ``x.0``.
    """

    name: str
    minimum: int
    maximum: int | None
    places: tuple[str, ...]

    def __str__(self) -> str:
        if self.maximum is None:
            return f"{self.minimum} and more"
        return f"{self.minimum} only" if self.maximum == self.minimum else f"{self.minimum} to {self.maximum}"


@dataclass
class Sizes:
    """The sizes that may differ, those that follow from others, and what must hold between them.

    ``derived`` are expressions by their text in ``Node.dims``, ``conditions`` those that must be true, by their text.
    """

    free: dict[str, Size] = field(default_factory=dict)
    derived: dict[str, Any] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)

    def check(self, known: Mapping[str, tuple[int, str]]) -> None:
        """Refuse sizes for which the graph does not hold.

        Args:
            known: sizes and the dimension that has each, by their text in ``Node.dims``.

        Raises:
            TraceError: a size outside of its range, or sizes that do not go together.
        """
        for name, (size, place) in known.items():
            allowed = self.free.get(name)
            if allowed and (size < allowed.minimum or (allowed.maximum is not None and size > allowed.maximum)):
                raise TraceError(f"{place} is {size}, and the graph holds for {allowed}: {AGAIN}", "shape")
        for text, expression in self.derived.items():
            if text in known and (wanted := _value(expression, known)) is not None and int(wanted) != known[text][0]:
                size, place = known[text]
                raise TraceError(f"{place} is {size}, and must be {int(wanted)}: it is {text}, {_legend(expression, known)}", "shape")
        for text, condition in self.conditions.items():
            if _value(condition, known) is False:
                raise TraceError(f"the graph holds only for {text}, {_legend(condition, known)}: {AGAIN}", "shape")


def _value(expression: Any, known: Mapping[str, tuple[int, str]]) -> Any:
    """An expression with these sizes: a number or a truth, None if it has sizes that no input has."""
    if any(symbol.name not in known for symbol in expression.free_symbols):
        return None
    try:
        value = expression.subs({symbol: known[symbol.name][0] for symbol in expression.free_symbols})
    except ZeroDivisionError:
        return False
    return value if getattr(value, "is_number", False) else bool(value)


def _legend(expression: Any, known: Mapping[str, tuple[int, str]]) -> str:
    names = sorted(symbol.name for symbol in expression.free_symbols)
    return "where " + " and ".join(f"{name} is {known[name][1]} ({known[name][0]})" for name in names)


def sizes_of(program: torch.export.ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> Sizes:
    """What a trace assumed of sizes.

    Guards of the trace say more than the ranges of the program, which know no relations and are too wide where a sample has a size of 1.

    Args:
        program: of the trace.
        inputs: its fake tensors, by the names of their placeholders.
    """
    sizes = Sizes()
    places: dict[str, list[str]] = {}
    environment: Any = None
    for name, value in inputs.items():
        shape: tuple[Any, ...] = tuple(value.shape)
        for number, size in enumerate(shape):
            if not isinstance(size, int):
                expression, environment = size.node.expr, size.node.shape_env
                if expression.is_Symbol:
                    places.setdefault(expression.name, []).append(f"{name}.{number}")
                elif expression.free_symbols:
                    sizes.derived[str(size)] = expression
    bounds = {str(symbol): _bounds(known) for symbol, known in program.range_constraints.items()}
    for guard in environment.guards if environment is not None else ():
        expression = environment.replace(guard.expr)
        if (narrower := _range(expression)) is not None:
            name, least, most = narrower
            lower, upper = bounds.get(name, (0, None))
            bounds[name] = max(least, lower), min((one for one in (most, upper) if one is not None), default=None)
        elif expression.free_symbols:
            sizes.conditions[_text(expression)] = expression
    for name, dimensions in places.items():
        sizes.free[name] = Size(name, *bounds.get(name, (0, None)), tuple(dimensions))
    return sizes


def _bounds(constraint: Any) -> tuple[int, int | None]:
    """Least and largest size of a range of torch.export, of which a bound may be infinite."""
    lower, upper = constraint.lower, constraint.upper
    return int(lower) if lower.is_Integer else 0, int(upper) if upper.is_Integer else None


def _range(expression: Any) -> tuple[str, int, int | None] | None:
    """The range of one size that a comparison with a number gives; None if the expression is something else."""
    sign, left, right = (getattr(expression, name, None) for name in ("rel_op", "lhs", "rhs"))
    if left is None or right is None:
        return None
    if left.is_Integer and right.is_Symbol:
        left, right, sign = right, left, str(sign).translate(str.maketrans("<>", "><"))
    if not (left.is_Symbol and right.is_Integer):
        return None
    number = int(right)
    found: dict[str | None, tuple[int, int | None]] = {
        "==": (number, number),
        "<=": (0, number),
        "<": (0, number - 1),
        ">=": (number, None),
        ">": (number + 1, None),
    }
    return (left.name, *found[sign]) if sign in found else None


def _text(expression: Any) -> str:
    sign = getattr(expression, "rel_op", None)
    return f"{expression.lhs} {sign} {expression.rhs}" if sign else str(expression)
