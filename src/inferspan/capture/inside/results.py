"""What is found inside a model, as plain values without tensors: outputs with NaN or Inf, a verdict on them, results of functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inferspan.text.numbers import counted

__all__ = [
    "BadOutput", "BadWeight", "ModuleNumerics", "ModuleResult", "NonfiniteError", "NumericsVerdict", "PositionLogits", "TopLogits",
    "WeightsVerdict",
]  # fmt: skip


class NonfiniteError(ArithmeticError):
    """An output of a module has NaN or Inf, with ``on_nonfinite="raise"``.

    Attributes:
        module: path of the module in its model.
        step: number of the step of the request; ``None`` outside of one.
        shape: of the output.
        dtype: of the output, such as ``float16``.
        nan: values that are not a number.
        inf: infinite values.
        upstream: the same of the inputs of the module, in words.
    """

    def __init__(self, module: str, step: int | None, shape: tuple[int, ...], dtype: str, nan: int, inf: int, upstream: str) -> None:
        where = "" if step is None else f" in step {step}"
        size = "x".join(map(str, shape)) or "scalar"
        super().__init__(f"output of {module}{where} ({size} {dtype}) has {nan:,} NaN and {inf:,} Inf; {upstream}")
        self.module, self.step, self.shape, self.dtype = module, step, shape, dtype
        self.nan, self.inf, self.upstream = nan, inf, upstream

    def __reduce__(self) -> Any:
        return type(self), (self.module, self.step, self.shape, self.dtype, self.nan, self.inf, self.upstream)


NonfiniteError.__module__ = "inferspan"  # where the program finds it


@dataclass(frozen=True, slots=True)
class BadOutput:
    """A call whose output had NaN or Inf.

    Attributes:
        module: path of the module.
        step: number of the step of its request; ``None`` outside of one.
        call: number of the call among those of the request that were looked at, in the order in which they ended.
        time_ns: when it ended, nanoseconds since the epoch.
        nan: values that are not a number.
        inf: infinite values.
        elements: all values.
    """

    module: str
    step: int | None
    call: int
    time_ns: int
    nan: int
    inf: int
    elements: int

    def __str__(self) -> str:
        where = "" if self.step is None else f", step {self.step}"
        return f"{self.module}{where}, call {self.call} ({self.nan:,} NaN and {self.inf:,} Inf of {self.elements:,} values)"


@dataclass(frozen=True, slots=True)
class ModuleNumerics:
    """Outputs of one module with NaN or Inf: number of such calls, and of values."""

    module: str
    calls: int
    nan: int
    inf: int
    first: BadOutput


@dataclass(frozen=True, slots=True)
class NumericsVerdict:
    """Whether outputs of modules had NaN or Inf; printed, it says so in words.

    Attributes:
        total_modules: modules that were looked at.
        calls: calls that were looked at.
        nan_count: calls whose output had NaN.
        inf_count: calls whose output had Inf.
        nan_values: values that were not a number.
        inf_values: infinite values.
        problematic_modules: modules with NaN or Inf, in the order of their first one.
        first: the first such call: of the first request that had one, the call that ended first.
        elements: values that were looked at.
        near_limit: of them, finite ones of at least half the largest value of their dtype.
        not_looked_at: calls, or tensors of one, that were not looked at, by reason.
        inputs: the same of the inputs of modules; ``None`` without ``numerics_inputs``.
    """

    total_modules: int = 0
    calls: int = 0
    nan_count: int = 0
    inf_count: int = 0
    nan_values: int = 0
    inf_values: int = 0
    problematic_modules: tuple[ModuleNumerics, ...] = ()
    first: BadOutput | None = None
    elements: int = 0
    near_limit: int = 0
    not_looked_at: Mapping[str, int] = field(default_factory=dict)
    inputs: NumericsVerdict | None = None

    @property
    def near_limit_share(self) -> float | None:
        """Share of values near the limit of their dtype; ``None`` if none was looked at."""
        return self.near_limit / self.elements if self.elements else None

    def __str__(self) -> str:
        of_inputs = [] if self.inputs is None else self.inputs._lines("  inputs", "were given")
        return "\n".join([*self._lines("numerics", "returned"), *of_inputs])

    def _lines(self, title: str, verb: str) -> list[str]:
        looked = f"{counted(self.calls, 'call')} of {counted(self.total_modules, 'module')}"
        odd = ", ".join(f"{count:,} {reason}" for reason, count in self.not_looked_at.items())
        left = f"; not looked at: {odd or 'none'}"
        near = f"; {self.near_limit:,} of {self.elements:,} values near the limit of their dtype" if self.near_limit else ""
        if self.first is None:
            return [f"{title}: no NaN or Inf in {looked}{near}{left}"]
        lines = [
            f"{title}: {len(self.problematic_modules):,} of {self.total_modules:,} modules {verb} NaN or Inf; first {self.first}",
            f"  {counted(self.nan_count, 'call')} with NaN, {self.inf_count:,} with Inf, of {looked}{near}{left}",
        ]
        for one in self.problematic_modules[:12]:
            lines.append(f"  {one.module}: {counted(one.calls, 'call')}, {one.nan:,} NaN, {one.inf:,} Inf")
        more = len(self.problematic_modules) - 12
        return lines + ([f"  and {more:,} more"] if more > 0 else [])


@dataclass(frozen=True, slots=True)
class BadWeight:
    """A parameter or buffer with NaN or Inf: its path, shape, dtype, numbers of such values and of all."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nan: int
    inf: int
    elements: int

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.name} ({size} {self.dtype}): {self.nan:,} NaN, {self.inf:,} Inf of {counted(self.elements, 'value')}"


@dataclass(frozen=True, slots=True)
class WeightsVerdict:
    """Whether parameters and buffers have NaN or Inf; printed, it says so in words.

    Attributes:
        tensors: that were looked at.
        elements: their values.
        problematic: those with NaN or Inf, in the model's order.
        near_limit: finite values of at least half the largest value of their dtype.
        not_looked_at: tensors that were not looked at, by reason.
    """

    tensors: int = 0
    elements: int = 0
    problematic: tuple[BadWeight, ...] = ()
    near_limit: int = 0
    not_looked_at: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        looked = f"{counted(self.elements, 'value')} of {counted(self.tensors, 'tensor')}"
        near = f"; {self.near_limit:,} near the limit of their dtype" if self.near_limit else ""
        odd = ", ".join(f"{count:,} {reason}" for reason, count in self.not_looked_at.items())
        rest = f"{near}; not looked at: {odd or 'none'}"
        if not self.problematic:
            return f"weights: no NaN or Inf in {looked}{rest}"
        lines = [f"weights: NaN or Inf in {len(self.problematic):,} of {counted(self.tensors, 'tensor')}, {looked}{rest}"]
        lines += [f"  {one}" for one in self.problematic[:12]]
        more = len(self.problematic) - 12
        return "\n".join(lines + ([f"  and {more:,} more"] if more > 0 else []))


@dataclass(frozen=True, slots=True)
class ModuleResult:
    """What a function of the program has returned for one call of a module.

    Attributes:
        module: path of the module.
        step: number of the step of its request; ``None`` outside of one.
        time_ns: nanoseconds since the epoch.
        when: ``before`` or ``after``.
        values: what it returned, with tensors as numbers.
    """

    module: str
    step: int | None
    time_ns: int
    when: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PositionLogits:
    """The largest raw logits of one position, the largest first.

    Attributes:
        row: of the batch.
        position: in the pass, from 0.
        ids: of the tokens.
        logits: raw, as the language head returns them.
        texts: of the tokens; ``None`` without a tokenizer.
    """

    row: int
    position: int
    ids: tuple[int, ...]
    logits: tuple[float, ...]
    texts: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class TopLogits:
    """What the language head has returned in one pass.

    Attributes:
        step: number of the step of its request; ``None`` outside of one.
        time_ns: nanoseconds since the epoch.
        shape: of the logits.
        positions: row by row.
        left_out: rows and positions that are not among them.
    """

    step: int | None
    time_ns: int
    shape: tuple[int, ...]
    positions: tuple[PositionLogits, ...]
    left_out: int
