"""The statistics of a request's logits, step by step: launched on the device now, read when they have come to the host.

In: logits ``[batch, vocabulary]`` and the chosen token ids, still on the device. Out: one ``StepLogits`` a step, in order.
Nothing before ``LogitRing.read`` waits for the device, writes to the logits, draws random numbers or keeps them alive. On CUDA a fused
kernel computes them as soon as it is compiled, torch operations until then and elsewhere, with the same results. All methods may raise on
tensors that are not logits; the caller contains that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.modules.device_rows import is_plain
from inferspan.capture.values.unseen import hidden, unseen
from inferspan.guard import pass_on, report

from . import host
from .kernel_cache import FUSED, FusedLogits, KernelCall
from .reductions import Statistics, check, compute
from .rows import Link, link_of
from .source import LogitSource, StepBuffer, is_forked
from .statistics import Kind, StepLogits

__all__ = ["LogitRing"]

_functions: Any = torch._C._is_torch_function_mode_enabled
_dispatches: Any = torch._C._len_torch_dispatch_stack

ROWS_KEPT = 16
"""Largest batch whose rows are kept one by one; of larger ones only the first row and the mean."""
DETAIL_BYTES = 8 << 20
"""Bytes of row-by-row results that a request may hold; after that, the first row and the mean of each step are kept."""

_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: 0)


class _Run:
    """Successive steps of one buffer."""

    __slots__ = ("buffer", "count")

    def __init__(self, buffer: StepBuffer) -> None:
        self.buffer, self.count = buffer, 0


class LogitRing:
    """Statistics of the steps of one request, bounded, on the device until they are read.

    Args:
        top_k: how many of the most likely tokens are kept per step (content: 0 unless it is captured).
        capacity: most steps that are kept until they are read.
        statistics: implementation, default the fused kernel if there is one, else ``compute``.
        fused: the kernels that are compiled.
        link: returns the link from a device to the host.
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
        self._buffers: dict[tuple[Kind, torch.dtype, torch.device, int], StepBuffer] = {}
        self._source: LogitSource | None = None
        self._runs: deque[_Run] = deque()
        self._run: _Run | None = None
        self._taken = self._given = 0
        self._detail_bytes = 0

    @property
    def full(self) -> bool:
        """Whether nothing more is taken until steps are read."""
        return self._taken - self._given >= self._capacity

    def append(self, logits: Tensor, chosen: Tensor | None) -> int | None:
        """Launch the statistics of one step. The caller hides the operations from modes, as ``append_last`` does.

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
        buffer, full = source.buffer, False
        if source.on_host:
            if buffer.chunk is None:
                buffer.open()
            if host.reduce(logits, chosen, buffer.base + buffer.used * buffer.row_bytes):
                buffer.commit()
                return self._note(buffer)
            source.on_host = False
            self._hold(source, logits, chosen)
        if source.held is not None:
            full = source.held.put(logits, chosen)
        else:
            call = source.call or (None if source.variant is None else self._kernel(source))
            if call is None or not self._launch(call, source, logits, chosen):
                self._operations(logits, chosen, top_k=self._top_k, out=buffer.row())
            buffer.commit()
        place = self._note(buffer)
        if full:
            self._settle()
        return place

    def append_last(self, logits: Tensor, ids: Tensor | None) -> int | None:
        """``append`` for a step of a decoding loop, cheaper if it is like the last one; on CUDA nothing while the stream captures.

        Args:
            logits: raw logits ``[B, 1, V]``.
            ids: ``[B, n]``, of which the last ones were taken; None, or of other rows or another device, if it is not known which were.
        """
        if _functions() or _dispatches():
            with unseen():
                return self.append_last(logits, ids)
        source = self._source
        if source is not None and source.call is not None and self._taken - self._given < self._capacity:
            numbers = source.numbers(logits, ids)
            if numbers is not None:
                try:
                    source.call(*numbers)
                except Exception as error:
                    pass_on(error)
                    self._fail(source, error)
                else:
                    buffer, run = source.buffer, self._run
                    buffer.commit()
                    if run is None or run.buffer is not buffer or buffer.detailed:
                        return self._note(buffer)
                    run.count += 1
                    self._taken = taken = self._taken + 1
                    return taken - 1
        if logits.device.type == "cuda" and is_capturing():
            return None
        fitting = ids is not None and ids.shape[0] == logits.shape[0] and ids.device == logits.device
        return self.append(logits.select(1, -1), ids.select(1, -1) if fitting and ids is not None else None)

    def _note(self, buffer: StepBuffer) -> int:
        """Number of the step whose statistics have been launched on ``buffer``."""
        run = self._run
        if run is None or run.buffer is not buffer:
            run = self._run = _Run(buffer)
            self._runs.append(run)
        run.count += 1
        self._taken += 1
        if buffer.detailed:
            self._detail_bytes += buffer.row_bytes
            if self._detail_bytes > DETAIL_BYTES:
                self._settle()
                self._source = None
        return self._taken - 1

    @hidden
    def landed(self) -> list[StepLogits]:
        """The next steps whose statistics have arrived on the host; does not wait. Not while the stream captures."""
        self._settle()
        try:
            for buffer in {id(run.buffer): run.buffer for run in self._runs}.values():
                buffer.collect(buffer.landed())
        except BaseException:
            self._break()
            raise
        return self._give()

    @hidden
    def read(self) -> list[StepLogits]:
        """The statistics of all steps that are left, in the order of their ``append``. May wait for the device."""
        self._settle()
        buffers, self._buffers, self._source = self._buffers, {}, None
        try:
            for buffer in buffers.values():
                buffer.collect(buffer.read())
        except BaseException:
            self._break()
            raise
        return self._give()

    def _settle(self) -> None:
        """Reduce the held steps; if that fails, take no further ones, but return those before it.

        In a forked child the logits that the parent held are left to the parent.
        """
        source = self._source
        if source is None or source.held is None or not source.held.count:
            return
        count, buffer, settled = source.held.count, source.buffer, False
        try:
            if not is_forked():
                rows = self._operations(*source.held.take(), top_k=self._top_k)
                for row in rows.view(-1, buffer.kind.batch, rows.shape[1]):
                    buffer.row().copy_(row)
                    buffer.commit()
                settled = True
        except Exception as error:
            pass_on(error)
            # Not raised: the reader would lose the other steps.
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
        self._buffers, self._source, self._capacity = {}, None, 0

    def _give(self) -> list[StepLogits]:
        steps: list[StepLogits] = []
        while self._runs:
            run = self._runs[0]
            done = run.buffer.done
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

    def _look(self, logits: Tensor, chosen: Tensor | None) -> LogitSource | None:
        if not is_plain(logits):
            return None
        check(logits)
        batch, vocabulary = logits.shape
        kind = Kind(batch, vocabulary, batch > ROWS_KEPT or (batch > 1 and self._detail_bytes > DETAIL_BYTES))
        device = logits.device
        dtype = torch.float64 if logits.dtype is torch.float64 else torch.float32
        key = (kind, dtype, device, _raw_stream(device.index) if device.type == "cuda" else 0)
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = StepBuffer(kind, self._top_k, dtype, device, self._link(device))
        variant = None if self._fused is None else self._fused.choose(logits, chosen, top_k=self._top_k)
        source = LogitSource(logits, chosen, buffer, variant)
        source.on_host = variant is None and not self._top_k and self._operations is compute and host.can_reduce(logits, chosen)
        if not source.on_host:
            self._hold(source, logits, chosen)
        return source

    def _hold(self, source: LogitSource, logits: Tensor, chosen: Tensor | None) -> None:
        if source.variant is None and self._operations is compute and self._capacity > 1:
            source.hold(logits, chosen)

    def _kernel(self, source: LogitSource) -> KernelCall | None:
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

    def _launch(self, call: KernelCall, source: LogitSource, logits: Tensor, chosen: Tensor | None) -> bool:
        buffer = source.buffer
        if buffer.chunk is None:
            buffer.open()
        address = logits.data_ptr()
        ids, step = (address, 1) if chosen is None else (chosen.data_ptr(), chosen.stride(0))
        numbers = (
            source.batch, buffer.stream, address, source.stride, ids, step, source.scratch_at, buffer.base + buffer.used * buffer.row_bytes,
        )  # fmt: skip
        try:
            if source.index < 0 or _current_device() == source.index:
                call(*numbers)
            else:
                with torch.cuda.device(source.index):
                    call(*numbers)
        except Exception as error:
            pass_on(error)
            self._fail(source, error)
            return False
        return True

    def _fail(self, source: LogitSource, error: Exception) -> None:
        """Use torch operations from now on, because a launch has failed."""
        source.call = source.variant = None
        if self._fused is not None:
            self._fused.fail(error)
