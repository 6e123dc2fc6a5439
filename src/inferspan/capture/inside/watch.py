"""The numerics watch: NaN, Inf and values near the limit of their dtype in outputs of modules.

In: outputs. Out: counts, read when the request ends. Nothing before that waits for the device or writes to a tensor, and only
``DeferredCounts`` keeps some alive, until the pass ends; ``count_now``, for ``on_nonfinite="raise"``, waits.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from inferspan import semconv
from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.modules.device_rows import is_plain
from inferspan.capture.modules.shapes import every_tensor
from inferspan.capture.values import host
from inferspan.capture.values.counts import Counted, DeviceCounts
from inferspan.capture.values.deferred import DeferredCounts, Stability
from inferspan.capture.values.kept import KeptModules, NoKeeper
from inferspan.capture.values.pieces import LARGEST
from inferspan.capture.values.staging import LARGEST_STAGED
from inferspan.guard import contain, pass_on
from inferspan.records import AttributeValue

from .results import BadOutput, ModuleNumerics, NumericsVerdict

__all__ = ["Looked", "Numerics", "WatchLog", "count_now", "reason_of", "tensors_in"]

CAPACITY = 1 << 18
"""Calls of one request that are looked at."""
MOST_MODULES = 4_000
_NOTHING = (0, 0, 0)
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
_transforms: Any = torch._C._functorch.peek_interpreter_stack
_WORDS = {"FakeTensor": "fake", "DTensor": "distributed"}


def reason_of(tensor: Tensor) -> str:
    """Why a tensor is not looked at, in a word."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return _WORDS.get(type(tensor).__name__, "of a subclass") if not tensor.is_nested else "nested"
    if tensor.is_nested:
        return "nested"
    if tensor.is_meta:
        return "meta"
    if tensor.is_quantized:
        return "quantized"
    if tensor.layout is not torch.strided:
        return "sparse"
    if tensor.is_complex():
        return "complex"
    if not tensor.is_floating_point():
        return "integer"
    return "transformed" if torch._C._functorch.is_functorch_wrapped_tensor(tensor) else "8-bit"


def tensors_in(output: Any, left_out: Counter[str]) -> list[Tensor]:
    """The tensors of an output that can be looked at; ``left_out`` counts the others. Of a distributed one, the local part."""
    if is_plain(output) and output.numel() <= LARGEST:
        return [output]
    found = []
    for tensor in every_tensor(output, [], left_out):
        part = getattr(tensor, "_local_tensor", tensor) if type(tensor).__name__ == "DTensor" else tensor
        if not is_plain(part):
            left_out[reason_of(tensor)] += 1
        elif part.numel() > LARGEST:
            left_out["too large"] += 1
        else:
            found.append(part)
    return found


def count_now(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Numbers of NaN and Inf in tensors; waits for the device."""
    nan = inf = 0
    for tensor in tensors:
        if tensor.is_cpu:
            found = host.counts(tensor)
        else:
            rows = DeviceCounts()
            found = (0, 0, 0) if not tensor.numel() else (place := rows.add(tensor), rows.read()(place))[1]
        nan, inf = nan + found[0], inf + found[1]
    return nan, inf


class _Known:
    """The latest output of a module that was one tensor: what is the same for others of its shape and dtype."""

    __slots__ = ("dtype", "kind", "number", "plain", "shape", "small")

    def __init__(self, tensor: Tensor, kinds: dict[Any, int]) -> None:
        self.plain = is_plain(tensor) and tensor.numel() <= LARGEST
        if self.plain:
            self.shape, self.dtype, self.number = tensor.shape, tensor.dtype, tensor.numel()
            self.small = 0 < self.number <= LARGEST_STAGED
            self.kind = kinds.setdefault((self.shape, self.dtype), len(kinds))


class Looked:
    """One call that was looked at; the counts are 0 until they are read."""

    __slots__ = ("call", "counted", "elements", "high", "inf", "module", "nan", "of_inputs", "places", "row", "step", "time")

    def __init__(self, module: str, step: int | None, call: int, time: int, *, of_inputs: bool) -> None:
        self.of_inputs = of_inputs
        self.module, self.step, self.call, self.time = module, step, call, time
        self.places: list[Counted] = []
        self.elements = self.nan = self.inf = self.high = 0
        self.counted = False
        """Whether the counts are in the statistics of a recorded call, which the metric counts."""
        self.row = -1
        """Number in its pass of the recorded call, which has no statistics yet."""

    def add(self, nan: int, inf: int, high: int) -> None:
        """Take in the counts of one tensor."""
        self.nan += nan
        self.inf += inf
        self.high += high

    def attributes(self) -> dict[str, AttributeValue]:
        """For the span of the call, if it has one: nothing where all is well."""
        if not (self.nan or self.inf):
            return {}
        if self.of_inputs:
            return {semconv.INPUT_STAT_NAN_COUNT: self.nan, semconv.INPUT_STAT_INF_COUNT: self.inf}
        return {semconv.OUTPUT_STAT_NAN_COUNT: self.nan, semconv.OUTPUT_STAT_INF_COUNT: self.inf}


class WatchLog:
    """The calls of one request that were looked at, in the order in which they ended.

    Args:
        of_inputs: whether their inputs were, in the order in which they began.
        stability: of the modules of the model; without it outputs on a device are counted at once, each by itself.
        kept: the modules whose outputs C code may keep.
        reads_host: whether values in the memory of the host are counted there; if not, as those of a device.
    """

    def __init__(
        self, *, of_inputs: bool = False, stability: Stability | None = None, kept: KeptModules | None = None, reads_host: bool = True
    ) -> None:
        self._of_inputs = of_inputs
        self._reads_host = reads_host
        self._rows = DeviceCounts()
        self._unread: list[Looked] = []
        self.left_out: Counter[str] = Counter()
        self.steps: set[int | None] = set()
        self._step: int | None = -1
        self._known: dict[str, _Known] = {}
        self._kinds: dict[Any, int] = {}
        self._several = torch.cuda.is_initialized() and torch.cuda.device_count() > 1  # type: ignore[no-untyped-call]
        self._placed: list[tuple[Any, Counted]] = []
        self._deferred = None if stability is None else DeferredCounts(stability, self.left_out, kept, CAPACITY)
        self.keeper = None if self._deferred is None else self._deferred.keeper
        """Keeps outputs of modules that have observers in their slots; ``None`` without the extension."""
        self._calls: Any = NoKeeper() if self._deferred is None else self._deferred.calls
        self._noted = 0
        self.read_rows: list[Looked] = []
        """Calls with NaN or Inf whose counts are known."""
        self.modules: dict[str, int] = {}
        """Calls by module."""
        self.elements = self.high = 0

    def see(self, module: str, step: int | None, output: Any, request: Any, number: int = -1) -> Looked | None:
        """As ``add``, in few instructions if the output is one plain tensor, or a tuple of one and of ``None``.

        Args:
            module: that returned it.
            step: in which.
            output: of the module.
            request: has ``open_calls`` if the call may have a span, so that a call of which nothing is known yet is returned as well.
            number: of the module in the keeper, if that may keep its next outputs.
        """
        if step != self._step:
            self._begin(step)
        tensor = output
        if type(output) is tuple and output:
            tensor = output[0]
            for other in output[1:]:
                if other is not None:
                    tensor = None
        looked = None
        known = self._known.get(module)
        try:
            if type(tensor) is not Tensor or _transforms() is not None or self._calls.looked >= CAPACITY:
                return self.add(module, step, perf_counter_ns(), output)
            if known is None or (known.plain and (tensor.shape != known.shape or tensor.dtype is not known.dtype)):
                known = self._known[module] = _Known(tensor, self._kinds)
            if not known.plain:
                return self.add(module, step, perf_counter_ns(), output)
            size = known.number
            if tensor.is_cpu and self._reads_host:
                found = host.counts(tensor)
                if found != _NOTHING:
                    looked = self._looked_at(module, step, perf_counter_ns())
                    looked.add(*found)
                    looked.elements = size
            else:
                deferred, index, stream = self._deferred, -1, 0
                if deferred is None or not known.small:
                    return self.add(module, step, perf_counter_ns(), output)
                if tensor.is_cuda:
                    index = tensor.get_device()
                    stream = _raw_stream(index)
                # A device's default stream cannot capture; the current stream may be one of another device.
                if (stream or self._several) and _capturing() if index >= 0 else not tensor.is_cpu:
                    return self.add(module, step, perf_counter_ns(), output)
                note: list[Any] = [module, step, self._calls.looked, perf_counter_ns(), size, None]
                if not deferred.keep(module, note, tensor, known.kind, index, stream):
                    self._placed.append((note, self._rows.add(tensor)))
                elif number >= 0:
                    deferred.allow(number, tensor, stream)
                if request.open_calls:
                    looked = note[5] = Looked(module, step, self._calls.looked, perf_counter_ns(), of_inputs=self._of_inputs)
                    looked.elements = size
        except Exception as error:
            pass_on(error)
            # Such as that of a sparse tensor after dense ones.
            return self.add(module, step, perf_counter_ns(), output)
        self._calls.looked += 1
        self._calls.running = True
        calls = self.modules
        calls[module] = calls.get(module, 0) + 1
        self.elements += size
        return looked

    def begin(self, step: int) -> None:
        """A step begins."""
        self._begin(step)
        self._calls.running = True

    def _begin(self, step: int | None) -> None:
        """What is looked at from now on is of this step."""
        self._end()
        self._step = step
        self._calls.step = -1 if step is None else step

    def _end(self) -> None:
        if self._calls.looked > self._noted:
            self._noted = self._calls.looked
            self.steps.add(self._step)

    def flush(self) -> None:
        """A pass has ended."""
        self._calls.running = False
        self._end()
        if self._deferred is not None:
            with contain("numerics watch"):
                self._deferred.end_pass()

    def drop(self) -> None:
        """Keep no outputs any more."""
        if self._deferred is not None:
            self._deferred.drop()

    def add(self, module: str, step: int | None, time: int, output: Any) -> Looked | None:
        """Count in an output, at once in the memory of the host, else on the device until ``read``.

        Returns:
            The call, unless it is known by now that it has nothing to show, has no tensor to look at, or the log is full.
        """
        tensors = tensors_in(output, self.left_out)
        if not tensors:
            return None
        if self._calls.looked >= CAPACITY:
            self.left_out["over the limit of a request"] += 1
            return None
        looked: Looked | None = None
        elements = 0
        for tensor in tensors:
            number = tensor.numel()
            elements += number
            if tensor.is_cpu and self._reads_host:
                found = host.counts(tensor)
                if found != _NOTHING:
                    looked = looked or self._looked_at(module, step, time)
                    looked.add(*found)
            elif tensor.is_cuda and is_capturing():
                self.left_out["in a captured graph"] += 1
            elif number:
                looked = looked or self._looked_at(module, step, time)
                looked.places.append(self._rows.add(tensor))
        self._calls.looked += 1
        self.modules[module] = self.modules.get(module, 0) + 1
        self.elements += elements
        self.steps.add(step)
        self._noted = self._calls.looked
        if looked is not None:
            looked.elements = elements
        return looked

    def _looked_at(self, module: str, step: int | None, time: int) -> Looked:
        looked = Looked(module, step, self._calls.looked, time, of_inputs=self._of_inputs)
        self._unread.append(looked)
        return looked

    def read(self) -> bool:
        """Read what has been launched, which may wait for the device; whether some output had NaN or Inf."""
        self._end()
        unread, self._unread = self._unread, []
        numbers = self._rows.read()
        for looked in unread:
            for place in looked.places:
                looked.add(*numbers(place))
            looked.places = []
            self.high += looked.high
            if looked.nan or looked.inf:
                self.read_rows.append(looked)
        placed, self._placed = self._placed, []
        for note, place in placed:
            self._settle(note, numbers(place))
        if self._deferred is not None:
            for module, calls, size in self._deferred.counted():
                self.modules[module] = self.modules.get(module, 0) + calls
                self.elements += size
            for note, found in self._deferred.read():
                self._settle(note, found)
            self.read_rows.sort(key=attrgetter("call"))
        return bool(self.read_rows)

    def _settle(self, note: Any, found: tuple[int, int, int] | None) -> None:
        """Take in the counts of a call of which ``see`` has kept a note; ``None`` if it could not be counted."""
        module, step, call, time, elements, looked, *recorded = note
        if found is None:
            self.modules[module] -= 1
            if not self.modules[module]:
                del self.modules[module]
            self.elements -= elements
        elif found != _NOTHING:
            if looked is None:
                looked = Looked(module, step, call, time, of_inputs=self._of_inputs)
                looked.elements = elements
                looked.row = recorded[0] if recorded else -1
            looked.add(*found)
            self.high += looked.high
            if looked.nan or looked.inf:
                self.read_rows.append(looked)


class Numerics:
    """What all requests of one model have shown so far; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._modules: Counter[str] = Counter()
        self._problems: dict[str, list[Any]] = {}
        self._left_out: Counter[str] = Counter()
        self._sums = Counter[str]()
        self._first: BadOutput | None = None

    def add(self, log: WatchLog, offset: int) -> list[BadOutput]:
        """Take in a request that has ended.

        Args:
            log: of the request, read.
            offset: added to the time of a call, gives nanoseconds since the epoch.

        Returns:
            The first bad output of each module, in order.
        """
        firsts: dict[str, BadOutput] = {}
        with self._lock:
            for module, calls in log.modules.items():
                if module in self._modules or len(self._modules) < MOST_MODULES:
                    self._modules[module] += calls
            self._left_out.update(log.left_out)
            self._sums.update(elements=log.elements, high=log.high)
            for looked in log.read_rows:
                bad = BadOutput(
                    looked.module, looked.step, looked.call, looked.time + offset, looked.nan, looked.inf, looked.elements
                )
                firsts.setdefault(looked.module, bad)
                self._first = self._first or bad
                self._sums.update(nan_calls=bool(looked.nan), inf_calls=bool(looked.inf), nan=looked.nan, inf=looked.inf)
                if looked.module in self._problems or len(self._problems) < MOST_MODULES:
                    found = self._problems.setdefault(looked.module, [0, 0, 0, bad])
                    found[0], found[1], found[2] = found[0] + 1, found[1] + looked.nan, found[2] + looked.inf
        return list(firsts.values())

    def verdict(self) -> NumericsVerdict:
        """What is known by now."""
        with self._lock:
            sums = self._sums
            return NumericsVerdict(
                len(self._modules), sum(self._modules.values()), sums["nan_calls"], sums["inf_calls"], sums["nan"], sums["inf"],
                tuple(ModuleNumerics(module, *found) for module, found in self._problems.items()),
                self._first, sums["elements"], sums["high"], {key: count for key, count in self._left_out.items() if count},
            )  # fmt: skip

    def forked(self) -> None:
        """Called in a forked child, where no thread is left to release the lock."""
        self._lock = threading.Lock()
