"""Functions of the program that run before or after modules, and what they return.

In: a call of a module. Out: results as plain values. Tensors in a result are reduced on the device and read when the request ends. What a
function raises is contained; what it returns never replaces an input or output.
"""

from __future__ import annotations

import logging
import math
import numbers
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn

from inferspan import semconv
from inferspan.capture.modules.device_rows import DeviceRows, Place
from inferspan.capture.modules.output_stats import OutputStats
from inferspan.capture.modules.recorder import current
from inferspan.guard import count, pass_on
from inferspan.records import AttributeValue
from inferspan.text.numbers import counted

from .results import ModuleResult

__all__ = ["Function", "ModuleFunction", "Results", "Returned", "function_runs"]

_log = logging.getLogger("inferspan")
Function = Callable[[nn.Module, Any, Any, Any, str], Any]
MOST_KEYS = 16
MOST_RESULTS = 1 << 17
"""Results of one request."""
LONGEST_TEXT = 256
SMALL = 16
"""Values of a tensor that are kept one by one."""
_PREFIX = "inferspan.output.stat."
_UINT64: Any = getattr(torch, "uint64", None)
"""``None`` before torch 2.3."""


class _Here(threading.local):
    runs = False


_here = _Here()
"""Whether a function runs on this thread: one that calls the model starts no request, and no function."""


def function_runs() -> bool:
    """Whether a function of the program's runs on this thread, so that what it calls is not observed."""
    return _here.runs


class ModuleFunction:
    """A function that runs before or after modules, until ``remove()``.

    Attributes:
        pattern: of the modules.
        when: ``before`` or ``after``.
        modules: paths of the modules that match at present.
        calls: how often it has run.
        errors: how often it has raised, or returned something else than ``None`` or a mapping that can be read.
        seconds: its time in total, on the host.
    """

    def __init__(self, pattern: Any, function: Function, when: str, removed: Callable[[ModuleFunction], None]) -> None:
        self.pattern, self.when = pattern, when
        self.modules: tuple[str, ...] = ()
        self.calls = self.errors = 0
        self.seconds = 0.0
        self.active = True
        self._function = function
        self._removed = removed

    @property
    def name(self) -> str:
        """Name of the function."""
        return str(getattr(self._function, "__qualname__", type(self._function).__name__))

    def remove(self) -> None:
        """Take it off; may be called twice, and while the model runs."""
        if self.active:
            self.active = False
            self._removed(self)

    def run(self, module: nn.Module, args: Any, kwargs: Any, output: Any, name: str) -> dict[str, Any] | None:
        """What it returns for a call of a module, at most ``MOST_KEYS``; ``None`` if that is nothing or nothing of use.

        Contains errors of the program's function. Modules and models that the function calls are not observed.
        """
        if _here.runs:
            return None
        call: Any = current.call
        current.call = None
        _here.runs = True
        result, doing, began = None, "raised", perf_counter_ns()
        try:
            with torch.no_grad():
                result = self._function(module, args, kwargs, output, name)
            returned, result = result, None
            if isinstance(returned, Mapping):
                doing = "returned a mapping that raises"
                # Its code and that of its keys is the program's.
                result = {str(key)[:64]: value for key, value in islice(returned.items(), MOST_KEYS)}
            elif returned is not None:
                self.complain(f"returned {type(returned).__name__} instead of a dict or None", name)
        except Exception as error:
            pass_on(error)
            self.complain(f"{doing} {type(error).__name__}", name)
        finally:
            _here.runs = False
            current.call = call
            took = perf_counter_ns() - began
            self.calls += 1
            self.seconds += took / 1e9
            if call is not None:
                call.overhead += took
        return result

    def complain(self, what: str, module: str) -> None:
        """Count an error; the first one is logged.

        Args:
            what: the function did.
            module: path of the module at which it ran.
        """
        self.errors += 1
        count("function of on_module")
        if self.errors == 1:
            _log.warning(
                "%s %s %s at %s: the model is not affected, and what it returns never changes an output; further errors are only counted",
                self.name, what, self.when, module,
            )  # fmt: skip

    def __repr__(self) -> str:
        state = counted(len(self.modules), "module") if self.active else "removed"
        had = f"{counted(self.calls, 'call')}, {counted(self.errors, 'error')}, {self.seconds:.3f} s"
        return f"<{self.name} {self.when} {self.pattern!r}: {state}, {had}>"


class _Small:
    """A tensor whose values are read one by one."""

    __slots__ = ("dtype", "place", "scalar")

    def __init__(self, place: Place[int], dtype: torch.dtype, *, scalar: bool) -> None:
        self.place, self.dtype, self.scalar = place, dtype, scalar

    def values(self, row: Sequence[Any]) -> Any:
        """What it held: numbers of Python of the same kind."""
        parts = list(row)
        if self.dtype is torch.bool:
            parts = [bool(one) for one in parts]
        elif self.dtype is _UINT64:
            parts = [one % (1 << 64) for one in parts]
        return parts[0] if self.scalar else parts


class _Large(int):
    """Index of a tensor's statistics."""


class Returned:
    """A result until it is read; ``values`` are plain from then on."""

    __slots__ = ("module", "step", "time", "values", "when")

    def __init__(self, module: str, step: int | None, time: int, when: str, values: dict[str, Any]) -> None:
        self.module, self.step, self.time, self.when, self.values = module, step, time, when, values

    def attributes(self) -> dict[str, AttributeValue]:
        """For the span of the call, if it has one; numbers that cannot be sent are texts."""
        return {f"{semconv.MODULE_RESULT}.{key}": _sent(value) for key, value in self.values.items()}


def _text(value: Any) -> str:
    """A text of any value; never raises."""
    try:
        return str(value)[:LONGEST_TEXT]
    except Exception as error:
        pass_on(error)
        if isinstance(value, int):  # Python gives no decimal digits of very long ones
            return f"integer of {value.bit_length():,} bits"
        return f"{type(value).__name__}, whose text raises {type(error).__name__}"


def _fits(value: Any) -> bool:
    """Whether an attribute can hold it, if it is a number."""
    return math.isfinite(value) if isinstance(value, float) else not isinstance(value, int) or -(1 << 63) <= value < 1 << 63


def _sent(value: Any) -> Any:
    parts = value if isinstance(value, list) else [value]
    if len({type(one) for one in parts}) < 2 and all(map(_fits, parts)):
        return value
    return [_text(one) for one in parts] if isinstance(value, list) else _text(value)


def _number(value: Any) -> Any:
    """A number as one of Python's own; ``None`` for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Real):  # those of NumPy as well
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    # That of NumPy is no number there.
    return bool(value) if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_") else None


def _alike(parts: list[Any]) -> list[Any]:
    """Numbers of several kinds as floats, if that changes none of them."""
    if len({type(part) for part in parts}) < 2:
        return parts
    try:
        floats = [float(part) for part in parts]
    except OverflowError:
        return parts
    return floats if all(one == part or part != part for one, part in zip(floats, parts, strict=True)) else parts


class Results:
    """The results of one request, on the device until they are read."""

    def __init__(self) -> None:
        self._small: DeviceRows[int] = DeviceRows()
        self._whole: DeviceRows[int] = DeviceRows(torch.int64)
        self._large = OutputStats()
        self._unread: list[Returned] = []
        self._taken = 0
        self.left_out = 0

    def add(self, module: str, step: int | None, time: int, when: str, result: dict[str, Any]) -> Returned | None:
        """Take in what ``ModuleFunction.run`` has returned; waits for nothing."""
        if self._taken >= MOST_RESULTS:
            self.left_out += 1
            return None
        self._taken += 1
        values = {key: self._plain(value) for key, value in result.items()}
        returned = Returned(module, step, time, when, {key: value for key, value in values.items() if value is not None})
        self._unread.append(returned)
        return returned

    def _plain(self, value: Any) -> Any:
        if value is None:
            return None
        try:
            if isinstance(value, Tensor):
                return self._tensor(value)
            number = _number(value)
            if number is not None:
                return number
            if isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) <= SMALL:
                parts = [_number(part) for part in value]
                if None not in parts:
                    return _alike(parts)
        except Exception as error:  # of code of the program, or a number that is too large for a float
            pass_on(error)
            if isinstance(value, Tensor):  # whose text may wait for a device
                return f"{type(value).__name__}, whose values raise {type(error).__name__}"
        return _text(value)

    def _tensor(self, tensor: Tensor) -> Any:
        plain = type(tensor) in (Tensor, nn.Parameter) and not tensor.is_nested and tensor.layout is torch.strided
        plain = plain and not (tensor.is_meta or tensor.is_quantized or tensor.is_complex())
        if plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            if 0 < tensor.numel() <= SMALL:
                row, whole = tensor.detach().reshape(1, -1), not tensor.is_floating_point()
                if tensor.dtype is _UINT64:  # its bits; those of negative numbers are read as what they mean
                    row = row.view(torch.int64)
                row = row.to(torch.int64 if whole else torch.float64, copy=True)
                place = (self._whole if whole else self._small).append(tensor.numel(), row)
                return _Small(place, tensor.dtype, scalar=tensor.dim() == 0)
            usual = tensor.is_floating_point() and tensor.element_size() > 1
            index = self._large.append(tensor if usual or not tensor.numel() else tensor.detach().to(torch.float64))
            if index is not None:
                return _Large(index)
        kind = str(tensor.dtype).removeprefix("torch.")
        return f"{type(tensor).__name__} of {kind}" if not plain else f"{'x'.join(map(str, tensor.shape))} {kind}"

    def read(self) -> list[Returned]:
        """The results since the last reading, with plain values; may wait for the device."""
        unread, self._unread = self._unread, []
        small = {group: rows.tolist() for kind in (self._small, self._whole) for group, rows in kind.read().items()}
        large = self._large.read()
        for returned in unread:
            values: dict[str, Any] = {}
            for key, value in returned.values.items():
                if isinstance(value, _Small):
                    values[key] = value.values(small[value.place.group][value.place.order][0])
                elif isinstance(value, _Large):
                    values.update(
                        (f"{key}.{name.removeprefix(_PREFIX)}", one) for name, one in large[value].items() if name.startswith(_PREFIX)
                    )
                else:
                    values[key] = value
            returned.values = values
        return unread

    @staticmethod
    def result(returned: Returned, offset: int) -> ModuleResult:
        """One of them as it is shown; ``offset`` makes its time nanoseconds since the epoch."""
        return ModuleResult(returned.module, returned.step, returned.time + offset, returned.when, returned.values)
