"""The statistics of a request's logits, step by step: launched on the device now, read when they have come to the host.

In: logits ``[batch, vocabulary]`` and the chosen token ids, still on the device. Out: one ``StepLogits`` a step, in order.
Nothing before ``LogitRing.read`` waits for the device, writes to the logits, draws random numbers or keeps them alive. On CUDA a fused
kernel takes them as soon as it is compiled, torch operations until then and elsewhere; what comes out is the same. All methods may
raise on tensors that are not logits; the caller contains that.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.modules.device_rows import is_plain
from inferspan.guard import report

from .kernel_cache import FUSED, Call, FusedLogits, Variant
from .reductions import COLUMNS, Statistics, check, compute
from .rows import DeviceRowBuffer, Link, link_of
from .statistics import Kind, StepLogits, pack, to_steps

__all__ = ["LogitRing"]

ROWS_KEPT = 16
"""Largest batch whose rows are kept one by one; of larger ones the first row and the mean are."""
DETAIL_BYTES = 8 << 20
"""Bytes of row-by-row results that a request may hold; after that, the first row and the mean of each step are kept."""

HELD_BYTES = 2 << 20
HELD_STEPS = 16
"""Logits on a CPU that are held until their statistics are taken in one go."""

_in_child = False
"""Whether this process was forked while this module was loaded."""

_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: 0)
_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
_is_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor


def _forked() -> None:
    global _in_child
    _in_child = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Lane(DeviceRowBuffer):
    """Rows of one kind, and those of its steps that have been read."""

    __slots__ = ("detailed", "done", "kind", "top_k")

    def __init__(self, kind: Kind, top_k: int, dtype: torch.dtype, device: torch.device, link: Link) -> None:
        self.kind, self.top_k = kind, top_k
        self.detailed = kind.batch > 1 and not kind.compact
        """Whether more rows than one of each step are kept."""
        self.done: deque[StepLogits] = deque()
        packing = partial(pack, kind, top_k) if kind.compact else None
        super().__init__(kind.batch, COLUMNS + 2 * top_k, dtype, device, pack=packing, link=link)

    def collect(self, rows: list[Tensor]) -> None:
        """Make steps out of ``rows``, which are float64 on the host."""
        if rows:
            whole = rows[0] if len(rows) == 1 else torch.cat(rows)
            self.done.extend(to_steps(self.kind, self.top_k, whole))


class _Held:
    """Logits of successive steps on a CPU, copied until there are enough for one go.

    The thirty operations cost as much for one row as for three.

    Args:
        logits: like those that will come.
        chosen: the same.
        steps: how many are held.
    """

    __slots__ = ("_chosen_rows", "_rows", "chosen", "count", "logits", "steps")

    def __init__(self, logits: Tensor, chosen: Tensor | None, steps: int) -> None:
        self.steps, self.count = steps, 0
        # What is made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            self.logits = torch.empty((steps, *logits.shape), dtype=logits.dtype, device="cpu")
            self.chosen = None if chosen is None else torch.empty((steps, *chosen.shape), dtype=chosen.dtype, device="cpu")
            self._rows = self.logits.unbind()
            self._chosen_rows = None if self.chosen is None else self.chosen.unbind()

    def put(self, logits: Tensor, chosen: Tensor | None) -> bool:
        """Copy one step; returns whether there is no room for another."""
        # A context of torch's costs more than the copies.
        if torch.is_grad_enabled():
            logits = logits.detach()
        self._rows[self.count].copy_(logits)
        if self._chosen_rows is not None and chosen is not None:
            self._chosen_rows[self.count].copy_(chosen)
        self.count += 1
        return self.count == self.steps

    def take(self) -> tuple[Tensor, Tensor | None]:
        """The rows of all steps, one below the other, and their ids; forgets them."""
        count, self.count = self.count, 0
        return self.logits[:count].flatten(0, 1), None if self.chosen is None else self.chosen[:count].flatten(0, 1)


class _Source:
    """Logits as they were in the last step, and all that follows from how they were."""

    __slots__ = (
        "aligned",
        "batch",
        "call",
        "chosen_shape",
        "device",
        "dtype",
        "held",
        "ids",
        "ids_bytes",
        "index",
        "lane",
        "last_shape",
        "scratch",
        "scratch_at",
        "shape",
        "stride",
        "strides",
        "variant",
    )

    def __init__(self, logits: Tensor, chosen: Tensor | None, lane: _Lane, variant: Variant | None) -> None:
        self.shape, self.strides, self.dtype, self.device = logits.shape, logits.stride(), logits.dtype, logits.device
        self.batch, vocabulary = logits.shape
        # What is in memory like these rows, with its dimension of positions.
        packed = self.strides == (vocabulary, 1) or (self.batch == 1 and self.strides[1] == 1)
        self.last_shape = torch.Size((self.batch, 1, vocabulary)) if packed else None
        self.ids = None if chosen is None else chosen.dtype
        self.ids_bytes = 0 if chosen is None else chosen.element_size()
        self.chosen_shape = None if chosen is None else chosen.shape
        self.index = logits.device.index if logits.device.type == "cuda" else -1
        self.lane, self.variant = lane, variant
        self.aligned = variant is not None and variant.aligned
        self.stride = logits.stride(0) if logits.shape[0] > 1 else 0
        self.call: Call | None = None
        self.scratch: Tensor | None = None
        self.scratch_at = 0
        self.held: _Held | None = None

    def hold(self, logits: Tensor, chosen: Tensor | None) -> None:
        """Do several steps of logits like these in one go, if they are on a CPU and small enough.

        Not in a forked child: over several rows torch wants the threads that only the parent has, and waits for them forever. A child
        that gets through a forward pass of one row gets through the statistics of one.
        """
        if _in_child:
            return
        steps = min(HELD_STEPS, HELD_BYTES // (logits.numel() * logits.element_size()))
        if steps > 1 and logits.device.type == "cpu" and (chosen is None or chosen.device.type == "cpu"):
            self.held = _Held(logits, chosen, steps)

    def holds(self, logits: Tensor, chosen: Tensor | None) -> bool:
        """Whether these tensors are like those that this was made for."""
        if chosen is None:
            like = self.ids is None
        else:
            like = chosen.dtype is self.ids and chosen.shape == self.chosen_shape
            # A kernel reads the ids where their address says.
            like = like and (self.variant is None or chosen.device == self.device)
        return (
            like
            and type(logits) is Tensor
            and logits.shape == self.shape
            and logits.dtype is self.dtype
            and logits.device == self.device
            and logits.stride() == self.strides
            and not _is_wrapped(logits)
            and (self.index < 0 or _raw_stream(self.index) == self.lane.stream)
            and not (self.aligned and logits.data_ptr() & 15)
        )

    def numbers(self, logits: Tensor, ids: Tensor | None) -> tuple[int, ...] | None:
        """What the kernel is called with for the only position of ``logits`` and the last of ``ids``; of these ``holds`` would be true.

        ``None`` if they have to be looked at more closely.
        """
        index = self.index
        if (
            type(logits) is not Tensor
            or logits.shape != self.last_shape
            or logits.dtype is not self.dtype
            or logits.device != self.device
            or not logits.is_contiguous()
            or _is_wrapped(logits)
        ):
            return None
        address = logits.data_ptr()
        if ids is None:
            if self.ids is not None:
                return None
            chosen, step = address, 1
        else:
            shape = ids.shape
            if ids.dtype is not self.ids or len(shape) != 2 or shape[0] != self.batch:
                return None
            if ids.device != self.device or not ids.is_contiguous():
                return None
            step = shape[1]
            chosen = ids.data_ptr() + (step - 1) * self.ids_bytes
        lane = self.lane
        stream = lane.stream
        if self.aligned and address & 15:
            return None
        # The default stream, which has no handle, cannot capture.
        if index >= 0 and (_raw_stream(index) != stream or _current_device() != index or (stream and _capturing())):
            return None
        if lane.chunk is None:
            lane.open()
        return self.batch, stream, address, self.stride, chosen, step, self.scratch_at, lane.base + lane.used * lane.row_bytes


class _Run:
    """Successive steps of one lane."""

    __slots__ = ("count", "lane")

    def __init__(self, lane: _Lane) -> None:
        self.lane, self.count = lane, 0


class LogitRing:
    """Statistics of the steps of one request, bounded, on the device until they are read.

    Args:
        top_k: how many of the most likely tokens are kept per step (content: 0 unless it is captured).
        capacity: most steps that are kept until they are read.
        statistics: implementation, default the fused kernel where there is one, else ``compute``.
        fused: the kernels that there are.
        link: names the way from a device to the host.
    """

    def __init__(
        self,
        *,
        top_k: int,
        capacity: int,
        statistics: Statistics | None = None,
        fused: FusedLogits = FUSED,
        link: Callable[[torch.device], Link] = link_of,
    ) -> None:
        self._top_k = top_k
        self._capacity = capacity
        self._operations = compute if statistics is None else statistics
        self._fused = fused if statistics is None else None
        self._link = link
        self._lanes: dict[tuple[Kind, torch.dtype, torch.device, int], _Lane] = {}
        self._source: _Source | None = None
        self._runs: deque[_Run] = deque()
        self._run: _Run | None = None
        self._taken = self._given = 0
        self._detail_bytes = 0

    @property
    def full(self) -> bool:
        """Whether nothing more is taken until steps are read."""
        return self._taken - self._given >= self._capacity

    def append(self, logits: Tensor, chosen: Tensor | None) -> int | None:
        """Launch the statistics of one step.

        Args:
            logits: raw logits ``[B, V]`` of the last position.
            chosen: ``[B]`` ids that were taken.

        Returns:
            Number of the step, in the order in which ``landed`` and ``read`` return them, counted from the first one of the ring;
            None if the ring is full, reading it has failed, or statistics of such a tensor are not taken.
        """
        if self._taken - self._given >= self._capacity:
            return None
        source = self._source
        if source is None or not source.holds(logits, chosen):
            self._settle()
            if not self._capacity:
                return None
            source = self._source = self._look(logits, chosen)
            if source is None:
                return None
        lane, full = source.lane, False
        if source.held is not None:
            full = source.held.put(logits, chosen)
        else:
            call = source.call or (None if source.variant is None else self._kernel(source))
            if call is None or not self._launch(call, source, logits, chosen):
                self._operations(logits, chosen, top_k=self._top_k, out=lane.row())
            lane.commit()
        place = self._note(lane)
        if full:
            self._settle()
        return place

    def append_last(self, logits: Tensor, ids: Tensor | None) -> int | None:
        """``append`` for a step of a decoding loop, for less where it is like the last one; on CUDA nothing while the stream captures.

        Args:
            logits: raw logits ``[B, 1, V]``.
            ids: ``[B, n]``, of which the last ones were taken; None, or of other rows or another device, if it is not known which were.
        """
        source = self._source
        if source is not None and source.call is not None and self._taken - self._given < self._capacity:
            numbers = source.numbers(logits, ids)
            if numbers is not None:
                try:
                    source.call(*numbers)
                except Exception as error:
                    self._fail(source, error)
                else:
                    lane, run = source.lane, self._run
                    lane.commit()
                    if run is None or run.lane is not lane or lane.detailed:
                        return self._note(lane)
                    run.count += 1
                    self._taken = taken = self._taken + 1
                    return taken - 1
        if logits.device.type == "cuda" and is_capturing():
            return None
        fitting = ids is not None and ids.shape[0] == logits.shape[0] and ids.device == logits.device
        return self.append(logits.select(1, -1), ids.select(1, -1) if fitting and ids is not None else None)

    def _note(self, lane: _Lane) -> int:
        """Number of the step whose statistics have been launched on ``lane``."""
        run = self._run
        if run is None or run.lane is not lane:
            run = self._run = _Run(lane)
            self._runs.append(run)
        run.count += 1
        self._taken += 1
        if lane.detailed:
            self._detail_bytes += lane.row_bytes
            if self._detail_bytes > DETAIL_BYTES:
                self._settle()
                self._source = None
        return self._taken - 1

    def landed(self) -> list[StepLogits]:
        """The next steps whose statistics have come to the host by themselves; does not wait. Not while the stream captures."""
        self._settle()
        try:
            for lane in {id(run.lane): run.lane for run in self._runs}.values():
                lane.collect(lane.landed())
        except BaseException:
            self._break()
            raise
        return self._give()

    def read(self) -> list[StepLogits]:
        """The statistics of all steps that are left, in the order of their ``append``. May wait for the device."""
        self._settle()
        lanes, self._lanes, self._source = self._lanes, {}, None
        try:
            for lane in lanes.values():
                lane.collect(lane.read())
        except BaseException:
            self._break()
            raise
        return self._give()

    def _settle(self) -> None:
        """Take the statistics of what is held; if that fails, nothing any more, but the steps before it are given.

        What the parent of a forked child held is the parent's.
        """
        source = self._source
        if source is None or source.held is None or not source.held.count:
            return
        count, lane, settled = source.held.count, source.lane, False
        try:
            if not _in_child:
                rows = self._operations(*source.held.take(), top_k=self._top_k)
                for row in rows.view(-1, lane.kind.batch, rows.shape[1]):
                    lane.row().copy_(row)
                    lane.commit()
                settled = True
        except Exception as error:
            # Not raised: whoever reads would lose what there is.
            report("logit statistics", error)
        finally:
            if not settled:
                self._source, self._capacity = None, 0
                # These are the newest ones, and all of one run.
                if self._run is not None:
                    self._run.count -= count

    def _break(self) -> None:
        """Take nothing any more: after a failure it is not known which rows belong to which step."""
        self._runs.clear()
        self._lanes, self._source, self._capacity = {}, None, 0

    def _give(self) -> list[StepLogits]:
        steps: list[StepLogits] = []
        while self._runs:
            run = self._runs[0]
            done = run.lane.done
            ready = min(run.count, len(done))
            steps.extend(done.popleft() for _ in range(ready))
            run.count -= ready
            if run.count:
                break
            self._runs.popleft()
            if run is self._run:
                self._run = None
        self._given += len(steps)
        if steps:
            self._detail_bytes = 0
        return steps

    def _look(self, logits: Tensor, chosen: Tensor | None) -> _Source | None:
        if not is_plain(logits):
            return None
        check(logits)
        batch, vocabulary = logits.shape
        kind = Kind(batch, vocabulary, batch > ROWS_KEPT or (batch > 1 and self._detail_bytes > DETAIL_BYTES))
        device = logits.device
        dtype = torch.float64 if logits.dtype is torch.float64 else torch.float32
        key = (kind, dtype, device, _raw_stream(device.index) if device.type == "cuda" else 0)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(kind, self._top_k, dtype, device, self._link(device))
        variant = None if self._fused is None else self._fused.choose(logits, chosen, top_k=self._top_k)
        source = _Source(logits, chosen, lane, variant)
        if variant is None and self._operations is compute and self._capacity > 1:
            source.hold(logits, chosen)
        return source

    def _kernel(self, source: _Source) -> Call | None:
        """The fused kernel for ``source``, if it is ready."""
        variant, fused = source.variant, self._fused
        if variant is None or fused is None:
            return None
        if fused.failed:
            source.variant = None
            return None
        call = fused.get(variant)
        if call is not None:
            source.call = call
            with torch.inference_mode(False):
                source.scratch = torch.zeros(source.batch * (variant.scratch + 1), dtype=torch.float32, device=source.device)
            source.scratch_at = source.scratch.data_ptr()
        return call

    def _launch(self, call: Call, source: _Source, logits: Tensor, chosen: Tensor | None) -> bool:
        lane = source.lane
        if lane.chunk is None:
            lane.open()
        address = logits.data_ptr()
        ids, step = (address, 1) if chosen is None else (chosen.data_ptr(), chosen.stride(0))
        numbers = (
            source.batch, lane.stream, address, source.stride, ids, step, source.scratch_at, lane.base + lane.used * lane.row_bytes,
        )  # fmt: skip
        try:
            if source.index < 0 or _current_device() == source.index:
                call(*numbers)
            else:
                with torch.cuda.device(source.index):
                    call(*numbers)
        except Exception as error:
            self._fail(source, error)
            return False
        return True

    def _fail(self, source: _Source, error: Exception) -> None:
        """Use torch operations from now on, because a launch has failed."""
        source.call = source.variant = None
        if self._fused is not None:
            self._fused.fail(error)
