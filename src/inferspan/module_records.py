"""Records of modules and their calls, and figures of logits; ``records`` has the others, and offers these as well.

A forward pass has hundreds of calls, so they lie in one list and not in objects of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = [
    "FlowCall", "FlowEdge", "ModuleCall", "ModuleCalls", "ModuleColumns", "ModuleInfo", "ModuleRow", "ModuleStage", "Moments",
    "NumberMeanDeviation", "PassFacts", "PassFlow", "PassRun", "RowFigures", "joined_moments",
]  # fmt: skip


class ModuleStage(NamedTuple):
    """What makes a module a stage of its model, such as its vision encoder."""

    name: str
    modality: str | None = None
    """Of its input, ``image`` or ``audio``; ``None`` if that is not known."""
    device: str | None = None
    """Where its weights are."""


class ModuleInfo(NamedTuple):
    """Static facts of one hooked module, shared by all of its calls."""

    name: str
    type: str
    layer_index: int | None
    span_name: str
    stage: ModuleStage | None = None
    """The stage that the module is, if it is one."""


class FlowCall(NamedTuple):
    """A module call among those between which tensors flow; ``number`` and ``parent`` as in ``ModuleCall``."""

    number: int
    parent: int
    name: str
    type: str


class FlowEdge(NamedTuple):
    """A tensor on its way from the module call that returned it.

    Attributes:
        kind: ``input``: the target takes it as an argument; ``output``: the target returns it.
        source: number of the call that returned it; -1 for an input of the model, and for what an earlier pass has made.
        target: number of the call that takes or returns it; -1 for the model itself.
        origin: ``module``, ``input``, or ``earlier`` for a module in an earlier pass of the request.
        name: path of the module that returned it, or name of the input.
        tensor: number of the returned tensor in the pass; of an input or an earlier one as well.
        into: number of the tensor that the target returns, of an ``output``; else -1.
        shape: of what arrives; ``None`` if it has none, such as a nested tensor.
        dtype: of what arrives, such as ``float32``.
        bytes: of its elements; ``None`` if not known.
        via: names of the operations between, in order; empty if it is the same tensor.
    """

    kind: str
    source: int
    target: int
    origin: str
    name: str
    tensor: int
    into: int
    shape: tuple[int, ...] | None
    dtype: str
    bytes: int | None
    via: tuple[str, ...]


class PassFlow(NamedTuple):
    """How tensors flowed between the recorded module calls of one forward pass."""

    step: int | None
    calls: tuple[FlowCall, ...]
    edges: tuple[FlowEdge, ...]
    left_out: Mapping[str, int]
    """Numbers of what was left out, by reason."""
    notes: tuple[str, ...] = ()


class ModuleCall(NamedTuple):
    """The fields of one call of one module, as ``ModuleCalls`` stores them.

    ``parent`` is the ``number`` of the enclosing module call of the same batch, -1 directly under the step. ``start`` and
    ``end`` are readings of the monotonic clock, made epoch times by the batch's ``offset``. ``inputs`` and ``outputs`` hold
    (shape, dtype) pairs, the dtype being anything whose ``str`` names it.
    """

    number: int
    parent: int
    module: ModuleInfo
    start: int
    end: int
    inputs: Sequence[tuple[Sequence[int], object]]
    outputs: Sequence[tuple[Sequence[int], object]]
    failure: str | None
    statistics: int | None


ModuleRow = tuple[int, int, ModuleInfo, int, int, Any, Any, "str | None", "int | None"]
"""A plain tuple of the fields of ``ModuleCall``."""
_FIELDS = len(ModuleCall._fields)
_START = ModuleCall._fields.index("start")


class ModuleColumns(NamedTuple):
    """Module calls as one list for each field of ``ModuleCall``."""

    numbers: list[int]
    parents: list[int]
    modules: list[ModuleInfo]
    starts: list[int]
    ends: list[int]
    inputs: list[Any]
    outputs: list[Any]
    failures: list[str | None]
    slots: list[int | None]

    def row(self, place: int) -> ModuleRow:
        """The fields of one call."""
        row: ModuleRow = tuple(column[place] for column in self)  # type: ignore[assignment]
        return row

    def cut(self, first: int, stop: int) -> ModuleColumns:
        """The calls from index ``first`` to before ``stop``."""
        if first == 0 and stop >= len(self.numbers):
            return self
        columns: list[Any] = [column[first:stop] for column in self]
        return ModuleColumns(*columns)


class ModuleCalls:
    """The module calls of one forward pass, in the order in which they ended; ``Calls`` of the C extension has the same methods.

    All fields lie in one flat list. One object for each call would be cheap to create and expensive to keep: every few thousand of them
    the garbage collector walks the whole heap, which in a process with torch takes a tenth of a second and more. It does not track
    numbers, and the objects in the list are shared.

    Args:
        rows: the fields of each call, in the order of ``ModuleCall``.

    Attributes:
        add: appends the fields of one call, a tuple in the order of ``ModuleCall``. It is a method of the list, because the model's thread
            calls it once for each module call.
    """

    __slots__ = ("_flat", "add")

    def __init__(self, rows: Iterable[Sequence[Any]] = ()) -> None:
        self._flat: list[Any] = [value for row in rows for value in row]
        self.add: Callable[[ModuleRow], None] = self._flat.extend

    def __len__(self) -> int:
        return len(self._flat) // _FIELDS

    def columns(self) -> ModuleColumns:
        """Copy the calls into one list for each field."""
        columns: list[Any] = [self._flat[field::_FIELDS] for field in range(_FIELDS)]
        return ModuleColumns(*columns)

    def rows(self) -> Iterator[ModuleRow]:
        """Iterate over the calls, one tuple for each."""
        return zip(*[iter(self._flat)] * _FIELDS, strict=True)

    def begun_before(self, moment: int) -> bool:
        """Whether some call began earlier."""
        return min(self._flat[_START::_FIELDS], default=moment) < moment


class PassFacts:
    """What the shapes of the passes of a request leave open; filled in while it runs, read when its spans are made.

    Attributes:
        static: positions of its cache, if that has a fixed size.
        source: positions of a row of the encoder's output.
        length: positions of a row in the cache after a plain forward pass, the cache that was passed in included.
        hidden: whether it has a cache that cannot be looked into.
        unsure: whether layers with a window do not say how many positions they have seen, on which a plain pass depends.
        copies: rows in its passes for each row of its input, such as those of beams; an encoder has run before they were made.
    """

    __slots__ = ("copies", "hidden", "length", "source", "static", "unsure")

    def __init__(self) -> None:
        self.static: int | None = None
        self.source: int | None = None
        self.length: int | None = None
        self.hidden = self.unsure = False
        self.copies = 1


class PassRun(NamedTuple):
    """Forward passes in a row whose inputs have one shape.

    Attributes:
        rows: sequences.
        width: positions of each that go in.
        length: positions of each in the cache and in the first pass.
        passes: how many.
        growth: positions by which the length grows from one to the next; ``None`` if that differs.
        first: whether the first of them is that of the request.
    """

    rows: int
    width: int
    length: int
    passes: int = 1
    growth: int | None = 1
    first: bool = False


NumberMeanDeviation = tuple[float, float, float]
"""Number of values, their mean, and their population standard deviation."""


class Moments(NamedTuple):
    """Values of which only these are kept: how many, their mean, the sum of their squared distances from it, and the extremes.

    Where only their number and mean are known, the others are NaN.
    """

    number: int
    mean: float
    squares: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Moments | None:
        """Those of the finite ones among ``values``; ``None`` if there are none."""
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None
        mean = math.fsum(finite) / len(finite)
        return cls(len(finite), mean, math.fsum([(value - mean) ** 2 for value in finite]), min(finite), max(finite))

    @classmethod
    def mean_of(cls, values: Iterable[float]) -> Moments | None:
        """Number and mean of the finite ones among ``values``, which costs half as much; ``None`` if there are none."""
        finite = [value for value in values if math.isfinite(value)]
        return cls(len(finite), math.fsum(finite) / len(finite), math.nan, math.nan, math.nan) if finite else None

    @classmethod
    def joined(cls, parts: Iterable[Moments | None]) -> Moments | None:
        """Those of the values of all parts together (Chan, Golub and LeVeque, 1979); ``None`` of nothing."""
        some = [part for part in parts if part is not None]
        if len(some) < 2:
            return some[0] if some else None
        number = sum(part.number for part in some)
        mean = math.fsum(part.mean * part.number for part in some) / number
        squares = math.fsum(part.squares + part.number * (part.mean - mean) ** 2 for part in some)
        if math.isnan(squares):
            return cls(number, mean, math.nan, math.nan, math.nan)
        return cls(number, mean, squares, min(part.least for part in some), max(part.greatest for part in some))


class RowFigures(NamedTuple):
    """What the raw logits of the steps of one sequence, or of several together, say; ``None`` where nothing was measured.

    ``top1``: largest probabilities; ``chosen``: probabilities of the chosen tokens; ``logit_means`` and ``logit_stds``: of the finite
    logits of a step, of which the mean alone is kept. One value each for a step.
    """

    top1: Moments | None = None
    chosen: Moments | None = None
    logit_means: Moments | None = None
    logit_stds: Moments | None = None

    @classmethod
    def together(cls, rows: Sequence[RowFigures]) -> RowFigures:
        """Those of all rows together."""
        return cls(*(Moments.joined(column) for column in zip(*rows, strict=True))) if rows else cls()


def joined_moments(one: NumberMeanDeviation, other: NumberMeanDeviation) -> NumberMeanDeviation:
    """Both together; a mean or deviation that is NaN in one of them, if that has values, is NaN in the result.

    Joined pairwise (Chan, Golub and LeVeque, 1979), by deviations instead of squares: those of values over 1e154 are no float64.
    """
    (first, mean, std), (second, other_mean, other_std) = one, other
    if not second:
        return one
    if not first:
        return other
    both = first + second
    # Half of it, because the largest value minus the smallest may be too large.
    half_gap = other_mean / 2 - mean / 2
    parts = math.sqrt(first / both), math.sqrt(second / both)
    return (
        both,
        (mean / 2 + half_gap * (second / both)) * 2,
        math.hypot(std * parts[0], other_std * parts[1], half_gap * (2 * parts[0] * parts[1])),
    )
