"""What is found inside a model, as plain values without tensors: outputs with NaN or Inf, a verdict on them, results of functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inferspan.text.numbers import counted

__all__ = ["BadOutput", "ModuleNumerics", "ModuleResult", "NonfiniteError", "NumericsVerdict"]


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

    @property
    def near_limit_share(self) -> float | None:
        """Share of values near the limit of their dtype; ``None`` if none was looked at."""
        return self.near_limit / self.elements if self.elements else None

    def __str__(self) -> str:
        looked = f"{counted(self.calls, 'call')} of {counted(self.total_modules, 'module')}"
        odd = ", ".join(f"{count:,} {reason}" for reason, count in self.not_looked_at.items())
        left = f"; not looked at: {odd or 'none'}"
        near = f"; {self.near_limit:,} of {self.elements:,} values near the limit of their dtype" if self.near_limit else ""
        if self.first is None:
            return f"numerics: no NaN or Inf in {looked}{near}{left}"
        lines = [
            f"numerics: {len(self.problematic_modules):,} of {self.total_modules:,} modules returned NaN or Inf; first {self.first}",
            f"  {counted(self.nan_count, 'call')} with NaN, {self.inf_count:,} with Inf, of {looked}{near}{left}",
        ]
        for one in self.problematic_modules[:12]:
            lines.append(f"  {one.module}: {counted(one.calls, 'call')}, {one.nan:,} NaN, {one.inf:,} Inf")
        more = len(self.problematic_modules) - 12
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
