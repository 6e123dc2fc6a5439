"""Stand-ins at the boundary of Triton and CUDA: a kernel that works on CPU memory by addresses, and a link that the test moves."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inferspan.capture.logits.kernel_cache import FusedLogits, KernelCall, Variant
from inferspan.capture.logits.reductions import compute

SIZES = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2, torch.int64: 8, torch.int32: 4}


def memory(address: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """A tensor over memory that somebody else owns."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    buffer = (ctypes.c_char * (count * SIZES[dtype])).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype).as_strided(shape, strides)


class FakeKernel:
    """Compiles to ``compute``; counts compilations and launches, and fails where it is told to."""

    def __init__(self, *, import_error: Exception | None = None, compile_error: Exception | None = None) -> None:
        self.import_error, self.compile_error = import_error, compile_error
        self.launch_error: Exception | None = None
        self.compiled: list[Variant] = []
        self.launches = 0

    def __call__(self) -> Callable[[Variant], KernelCall]:
        if self.import_error is not None:
            raise self.import_error
        return self.compile

    def compile(self, variant: Variant) -> KernelCall:
        if self.compile_error is not None:
            raise self.compile_error
        self.compiled.append(variant)
        floats, size = variant.scratch, variant.scratch_bytes

        def call(batch: int, stream: int, logits: int, stride: int, chosen: int, step: int, scratch: int, row: int) -> None:
            if self.launch_error is not None:
                raise self.launch_error
            self.launches += 1
            assert not variant.aligned or logits % 16 == 0
            assert {0: stride == 0, 1: stride == 1, 16: stride % 16 == 0, 2: stride % 16 != 0}[variant.stride]
            width = 13 + 2 * variant.top_k
            memory(scratch, torch.float32, (batch * floats,), (1,)).fill_(float("nan"))
            assert not memory(scratch + batch * size, torch.int32, (batch,), (1,)).any()
            found = compute(
                memory(logits, variant.logits, (batch, variant.vocabulary), (stride, 1)),
                None if variant.chosen is None else memory(chosen, variant.chosen, (batch,), (step,)).long(),
                top_k=variant.top_k,
            )
            memory(row, torch.float32, (batch, width), (width, 1)).copy_(found)

        return call

    def kernels(self, **options: Any) -> FusedLogits:
        """What a ring takes, for CPU tensors."""
        return FusedLogits(device_type="cpu", compiler=self, prepare=lambda: None, **options)


class FakeTransfer:
    """A copy that arrives when the test says so; until then the host would see other numbers."""

    def __init__(self, link: FakeLink, rows: Tensor) -> None:
        self._link, self._rows = link, rows.clone()
        self.there = False

    def arrived(self) -> bool:
        self._link.queries += 1
        return self.there

    def take(self) -> Tensor:
        self._link.waits += not self.there
        return self._rows.double()


class FakeLink:
    """Counts copies and waits; ``room`` is how many copies may be under way at once."""

    def __init__(self, room: int = 99) -> None:
        self.room, self.queries, self.waits, self.fetches, self.settled = room, 0, 0, 0, 0
        self.sent: list[FakeTransfer] = []

    def __call__(self, device: torch.device) -> FakeLink:
        return self

    def send(self, rows: Tensor) -> FakeTransfer | None:
        if sum(not one.there for one in self.sent) >= self.room:
            return None
        self.sent.append(FakeTransfer(self, rows))
        return self.sent[-1]

    def fetch(self, rows: Tensor) -> Tensor:
        self.fetches += 1
        return rows.double()

    def settle(self) -> None:
        self.settled += 1
