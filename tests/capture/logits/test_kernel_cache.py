"""Which logits a fused kernel takes, how it comes to be ready, and what happens if it cannot be had; Triton is played by a fake."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan import guard
from inferspan.capture.logits.kernel_cache import FusedLogits, KernelCall, Variant
from inferspan.capture.logits.ring import LogitRing
from tests.capture.logits.fused_fakes import FakeKernel
from tests.capture.logits.references import DTYPES, KINDS, numbers, special

LOGITS = torch.zeros(2, 48)
IDS = torch.zeros(2, dtype=torch.long)


def both(logits: Tensor, chosen: Tensor | None, top_k: int, kernel: FakeKernel) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """What a ring with a fused kernel says of the second step, and what torch operations say."""
    fused = kernel.kernels()
    found = []
    for ring in (LogitRing(top_k=top_k, capacity=9, fused=fused), LogitRing(top_k=top_k, capacity=9)):
        for _ in range(2):
            ring.append(logits, chosen)
            fused.join(10)
        found.append([numbers(step) for step in ring.read()])
    return found[0], found[1]


@pytest.mark.parametrize(
    ("logits", "chosen", "top_k", "want"),
    [
        (LOGITS, IDS, 5, Variant(0, torch.float32, torch.int64, 5, 48, 16, True)),
        (LOGITS.half(), IDS.int(), 0, Variant(0, torch.float16, torch.int32, 0, 48, 16, True)),
        (LOGITS.bfloat16(), None, 32, Variant(0, torch.bfloat16, None, 32, 48, 16, True)),
        (LOGITS[:1], IDS[:1], 0, Variant(0, torch.float32, torch.int64, 0, 48, 0, True)),
        (torch.zeros(2, 50)[:, 1:49], IDS, 0, Variant(0, torch.float32, torch.int64, 0, 48, 2, False)),
        (torch.zeros(2, 3, 48)[:, -1], IDS, 0, Variant(0, torch.float32, torch.int64, 0, 48, 16, True)),
        (LOGITS, torch.zeros(2, 7, dtype=torch.long)[:, -1], 0, Variant(0, torch.float32, torch.int64, 0, 48, 16, True)),
        (LOGITS.double(), IDS, 0, None),
        (LOGITS, IDS, 33, None),
        (LOGITS, IDS.short(), 0, None),
        (LOGITS, IDS[:1], 0, None),
        (LOGITS, IDS.to("meta"), 0, None),
        (LOGITS.to("meta"), IDS.to("meta"), 0, None),
        (torch.zeros(48, 2).t(), IDS, 0, None),
        (torch._neg_view(LOGITS), IDS, 0, None),
        (torch.zeros(1).expand(1, 1 << 24), None, 0, None),
    ],
)  # fmt: skip
def test_capability_decides_who_computes(logits: Tensor, chosen: Tensor | None, top_k: int, want: Variant | None) -> None:
    """Rows of plain logits with ids beside them, up to 32 of the most likely, are for the kernel; all else is for torch operations."""
    assert FakeKernel().kernels().choose(logits, chosen, top_k=top_k) == want


def test_only_nvidia_devices_with_triton_have_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Triton, and on ROCm, there is no kernel and no attempt; with both it is there."""
    installed: list[object] = [None, object(), object()]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: {"triton": installed.pop(0)}[name])
    assert [FusedLogits().available for _ in range(2)] == [False, True]
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert not FusedLogits().available
    assert FusedLogits().choose(LOGITS, IDS, top_k=0) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_the_ring_gives_a_kernel_the_right_memory(dtype: torch.dtype, kind: str) -> None:
    """Addresses, strides and rows that a kernel is given lead to the numbers that torch operations find, ids in any layout."""
    logits = special(kind, torch.randn(3, 40, generator=torch.Generator().manual_seed(1))).to(dtype)
    ids = torch.tensor([[9, 1], [9, 39], [9, 0]])[:, -1]
    kernel = FakeKernel()
    fused, plain = both(logits, ids, 3, kernel)
    assert repr(fused) == repr(plain)
    assert kernel.launches == 1


@pytest.mark.parametrize(
    "logits", [torch.randn(3, 5, 33)[:, -1], torch.randn(3, 41)[:, 1:], torch.randn(1, 5, 33)[:, 2], torch.randn(4, 7)], ids=lambda x: str(x.stride())
)  # fmt: skip
def test_views_are_read_where_they_are(logits: Tensor) -> None:
    """Strided rows, unaligned rows and single rows are read in place."""
    kernel = FakeKernel()
    fused, plain = both(logits, torch.arange(logits.shape[0]), 2, kernel)
    assert (fused, kernel.launches) == (plain, 1)


WIDE = torch.randn(2, 3, 48, generator=torch.Generator().manual_seed(2))
LAST = WIDE[:, :1].contiguous()
ROWS = torch.arange(22).view(2, 11)
IN_TURN: dict[str, tuple[Tensor, Tensor | None]] = {
    "the same": (LAST, ROWS),
    "ids of another width": (LAST, ROWS[:, :7].contiguous()),
    "ids in another layout": (LAST, ROWS[:, :7]),
    "ids of another type": (LAST, ROWS.int()),
    "ids of other rows": (LAST, ROWS[:1]),
    "no ids": (LAST, None),
    "ids on another device": (LAST, ROWS.to("meta")),
    "a position of several": (WIDE[:, 2:], ROWS),
    "of another type": (LAST.half(), ROWS),
    "of another width": (LAST[..., :40].contiguous(), ROWS),
    "of another address": (torch.cat([torch.zeros(1), LAST.flatten()])[1:].view(LAST.shape), ROWS),
    "of one row": (LAST[:1], ROWS[:1]),
}
"""Logits ``[B, 1, V]`` and ids ``[B, n]`` as a loop may give them."""


@pytest.mark.parametrize("kind", IN_TURN)
def test_the_last_position_of_a_loop(kind: str) -> None:
    """Whatever the steps before were like, a loop's logits and ids give the numbers that torch operations find in their last positions."""
    kernel = FakeKernel()
    fused = kernel.kernels()
    rings = LogitRing(top_k=2, capacity=99, fused=fused), LogitRing(top_k=2, capacity=99)
    for logits, ids in (IN_TURN["the same"], IN_TURN["the same"], IN_TURN[kind], IN_TURN[kind], IN_TURN["the same"]):
        fitting = ids is not None and ids.shape[0] == logits.shape[0] and ids.device == logits.device
        places = (
            rings[0].append_last(logits, ids),
            rings[1].append(logits[:, -1], ids[:, -1] if ids is not None and fitting else None),
        )
        assert places[0] == places[1]
        fused.join(10)
    found, want = ([numbers(step) for step in ring.read()] for ring in rings)
    assert repr(found) == repr(want)
    same_kernel = ("the same", "ids of another width", "ids in another layout", "a position of several")
    assert kernel.launches == (4 if kind in same_kernel else 3)


def test_a_launch_that_fails_in_a_loop_costs_no_step(contained: list[guard.Swallowed]) -> None:
    """The step whose launch failed is computed by torch operations, as are those after it."""
    kernel = FakeKernel()
    fused = kernel.kernels()
    ring = LogitRing(top_k=0, capacity=4, fused=fused)
    for step in range(5):
        kernel.launch_error = RuntimeError("no kernel image") if step == 2 else None
        assert ring.append_last(LAST, ROWS) == (step if step < 4 else None)
        fused.join(10)
    steps = [numbers(one) for one in ring.read()]
    assert len(steps) == 4
    assert steps == [steps[0]] * 4
    assert (kernel.launches, fused.failed, len(contained)) == (1, True, 1)
    contained.clear()


def test_torch_operations_work_until_the_kernel_is_ready() -> None:
    """Steps before, while and after it is compiled have the same numbers; it is compiled once for all requests, on a thread of its own."""
    go, kernel, threads = threading.Event(), FakeKernel(), []

    def slow() -> Callable[[Variant], KernelCall]:
        threads.append(threading.current_thread())
        go.wait(10)
        return kernel.compile

    fused = FusedLogits(device_type="cpu", compiler=slow, prepare=lambda: None)
    logits, ring = torch.randn(1, 30), LogitRing(top_k=2, capacity=9, fused=fused)
    for _ in range(3):
        ring.append(logits, IDS[:1])
    assert kernel.launches == 0
    go.set()
    fused.join(10)
    for one in (ring, LogitRing(top_k=2, capacity=9, fused=fused)):
        for _ in range(2):
            one.append(logits, IDS[:1])
    assert (kernel.launches, len(kernel.compiled), len(threads)) == (4, 1, 1)
    assert threads[0] is not threading.current_thread()
    assert (threads[0].daemon, threads[0].is_alive()) == (True, False)
    steps = [numbers(step) for step in ring.read()]
    assert len(steps) == 5
    assert steps == [steps[0]] * 5


@pytest.mark.parametrize(
    ("kernel", "prepare"),
    [
        (FakeKernel(import_error=ImportError("no triton here")), None),
        (FakeKernel(compile_error=RuntimeError("Failed to find C compiler")), None),
        (FakeKernel(compile_error=PermissionError("cache is read-only")), None),
        (FakeKernel(), OSError("no driver")),
    ],
)
def test_what_cannot_be_compiled_is_said_once(
    kernel: FakeKernel, prepare: Exception | None, caplog: pytest.LogCaptureFixture, contained: list[guard.Swallowed]
) -> None:
    """Without Triton, compiler, cache or driver torch operations are used for good; one line tells the reason, and one error is counted."""

    def fail() -> None:
        if prepare is not None:
            raise prepare

    error = prepare or kernel.import_error or kernel.compile_error
    fused = FusedLogits(device_type="cpu", compiler=kernel, prepare=fail)
    before = guard.error_counts().get("fused logit statistics", 0)
    with caplog.at_level(logging.WARNING, logger="inferspan"):
        guard._logged.discard(("fused logit statistics", type(error).__name__))
        for width in (30, 31):
            ring = LogitRing(top_k=0, capacity=9, fused=fused)
            ring.append(torch.ones(1, width), None)
            fused.join(10)
            ring.append(torch.ones(1, width), None)
            assert [step.mean.max for step in ring.read()] == [1.0, 1.0]
    assert [str(error) in record.message for record in caplog.records] == [True]
    assert guard.error_counts()["fused logit statistics"] == before + 1
    assert (fused.failed, fused.available, kernel.compiled) == (True, False, [])
    contained.clear()


def test_a_launch_that_fails_costs_no_step(contained: list[guard.Swallowed]) -> None:
    """The step whose launch failed, and all later ones of every ring, are computed by torch operations."""
    kernel = FakeKernel()
    fused = kernel.kernels()
    rings = [LogitRing(top_k=0, capacity=9, fused=fused) for _ in range(2)]
    logits = torch.randn(2, 30)
    for _ in range(2):
        for ring in rings:
            ring.append(logits, IDS)
            fused.join(10)
    assert kernel.launches == 3
    kernel.launch_error = TypeError("function takes exactly 9 arguments")
    for ring in rings:
        ring.append(logits, IDS)
        ring.append(logits, IDS)
        steps = [numbers(step) for step in ring.read()]
        assert len(steps) == 4
        assert steps == [steps[0]] * 4
    assert len({one.place for one in contained}) == 1
    assert len(contained) == 1
    contained.clear()


def test_a_given_implementation_is_not_replaced() -> None:
    """A ring with an implementation of its own asks for no kernel."""
    kernel = FakeKernel()
    fused = kernel.kernels()
    seen: list[object] = []

    def own(logits: Tensor, chosen: Tensor | None, /, *, top_k: int, out: Tensor | None = None) -> Tensor:
        seen.append(out)
        return logits

    ring = LogitRing(top_k=0, capacity=9, statistics=own, fused=fused)
    ring.append(LOGITS, IDS)
    fused.join(10)
    assert (len(seen), kernel.compiled) == (1, [])


def test_a_forked_child_begins_anew() -> None:
    """After a fork neither the thread nor compiled kernels are taken over, and they can be had again."""
    kernel = FakeKernel()
    fused = kernel.kernels()
    variant = fused.choose(LOGITS, IDS, top_k=0)
    assert variant is not None
    assert fused.get(variant) is None
    fused.join(10)
    assert fused.get(variant) is not None
    fused.renew()
    assert fused.get(variant) is None
    fused.join(10)
    assert fused.get(variant) is not None
    assert len(kernel.compiled) == 2


def test_the_interpreter_ends_while_a_kernel_is_compiled() -> None:
    """A program that ends meanwhile waits for the compiler, begins nothing new, and exits with 0 and without a word."""
    program = textwrap.dedent(
        """
        import sys, threading, time
        import torch
        from inferspan.capture.logits.kernel_cache import FusedLogits
        started = threading.Event()
        def compile_variant(variant):
            started.set()
            time.sleep(0.3)
            print("compiled", variant.vocabulary, flush=True)
        fused = FusedLogits(device_type="cpu", compiler=lambda: compile_variant, prepare=lambda: None)
        for width in (8, 9):
            fused.get(fused.choose(torch.zeros(1, width), None, top_k=0))
        started.wait()
        """
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=dict(os.environ), check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "compiled 8\n", "")


def test_importing_the_package_does_not_import_triton() -> None:
    """Everything but the kernel itself is imported without Triton."""
    program = "import sys, inferspan.capture.generate.call; assert 'inferspan.capture.logits.kernel' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0
