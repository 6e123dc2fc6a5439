"""The ring of a request: which steps it takes, in which order they come back, and what happens when something fails."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan.capture.logits import reductions as logit_reductions
from inferspan.capture.logits import ring as logit_ring
from inferspan.capture.logits.reductions import compute
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.logits.statistics import whole_logits
from inferspan.capture.modules.recorder import IN_C
from inferspan.guard import Swallowed
from tests.capture.logits.references import (
    DTYPES,
    HOST_READS,
    Operations,
    agree,
    flat,
    measure,
    reference,
)


@pytest.mark.parametrize(
    ("dtype", "batch", "top_k", "limit"), [(torch.float32, 1, 0, 29), (torch.bfloat16, 16, 5, 33), (torch.bfloat16, 64, 0, 31)]
)
def test_a_step_costs_few_operations_and_no_host_read(dtype: torch.dtype, batch: int, top_k: int, limit: int) -> None:
    """On a device, statistics of a step take about 29 operations, 4 more with top-k, whatever the batch, and never read a value on the host.

    The meta device stands for it: it has no values that could be read.
    """
    logits, chosen = torch.empty(batch, 300, dtype=dtype, device="meta"), torch.zeros(batch, dtype=torch.long, device="meta")
    ring, steps = LogitRing(top_k=top_k, capacity=50), 50
    with Operations() as operations:
        for _ in range(steps):
            ring.append(logits, chosen)
    assert operations.counts.total() <= (limit + 0.5) * steps, operations.counts
    assert not HOST_READS & set(operations.counts), operations.counts


@pytest.mark.parametrize(("batch", "vocabulary", "most"), [(1, 300, 11), (16, 3000, 11), (1, 200_000, 24), (16, 200_000, 31)])
def test_steps_on_a_cpu_are_done_in_one_go(batch: int, vocabulary: int, most: int) -> None:
    """On a CPU the logits of up to 16 steps are copied and taken together, while they are small: a few operations a step; results are the same."""
    steps = [torch.randn(batch, vocabulary) for _ in range(37)]
    chosen = torch.arange(batch)
    ring = LogitRing(top_k=2, capacity=50)
    with Operations() as operations:
        for logits in steps:
            kept = logits.clone()
            ring.append(kept, chosen)
            # The model may use the memory of its logits again.
            kept.fill_(float("nan"))
    found = ring.read()
    want = [measure(logits, chosen, top_k=2) for logits in steps]
    assert (operations.counts.total() - 2 * len(steps)) / len(steps) <= most, operations.counts
    assert len(found) == len(want)
    for got, step in zip(found, want, strict=True):
        assert [*flat(got)] == pytest.approx([*flat(step)], rel=1e-5, abs=1e-5, nan_ok=True)


def test_the_ring_returns_every_step_in_order_and_forgets_it() -> None:
    """Hundreds of steps of changing batch size, width and dtype come back in the order of their slots, once."""
    ring, shapes = LogitRing(top_k=1, capacity=1000), [(1, 8), (2, 8), (20, 8), (1, 9)]
    for step in range(700):
        logits = torch.zeros(shapes[step % 4], dtype=DTYPES[step % 3])
        logits[:, step % 8] = 1.0 + step % 5
        assert ring.append(logits, torch.full((logits.shape[0],), step % 8)) == step
    steps = ring.read()
    want = [(shapes[step % 4][0], 1.0 + step % 5, (step % 8,), 1.0) for step in range(700)]
    assert [(step.batch, step.mean.max, tuple(step.top[0][0]), step.rows[0].rank) for step in steps] == want
    assert ring.read() == []


def test_a_full_ring_takes_nothing_until_it_is_read() -> None:
    """Beyond its capacity a ring says None and keeps what it has; after ``read`` it takes steps again, and counts on."""
    ring, logits = LogitRing(top_k=0, capacity=2), torch.ones(1, 4)
    assert [ring.append(logits, None) for _ in range(4)] == [0, 1, None, None]
    assert (ring.full, len(ring.read()), ring.full, ring.append(logits, None)) == (True, 2, False, 2)


def test_rows_of_a_long_request_are_thinned_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a request's rows fill their share of memory, further steps of a batch keep their mean and first row."""
    monkeypatch.setattr(logit_ring, "DETAIL_BYTES", 1000)
    ring, logits = LogitRing(top_k=0, capacity=100), torch.randn(4, 8, generator=torch.Generator().manual_seed(6))
    for _ in range(10):
        ring.append(logits, torch.tensor([1, 2, 3, 4]))
    steps = ring.read()
    assert [len(step.rows) for step in steps] == [4] * 5 + [1] * 5
    agree(steps[9].mean, steps[0].mean._replace(chosen=steps[9].mean.chosen))


def test_tensors_without_values_of_their_own_are_not_measured() -> None:
    """Meta, integer, sparse and wrapped tensors and subclasses get no slot, and leave the ring usable."""

    class Mine(Tensor):
        """A subclass that may mean anything."""

    ring, plain = LogitRing(top_k=0, capacity=9), torch.ones(1, 4)
    odd = [plain.to("meta"), plain.long(), plain.to_sparse(), plain.as_subclass(Mine), plain.to(torch.float8_e4m3fn), plain + 1j]
    assert [ring.append(tensor, None) for tensor in odd] == [None] * 6
    seen: list[int | None] = []

    def look(row: Tensor) -> Tensor:
        seen.append(ring.append(row, None))
        return row

    torch.func.vmap(look)(plain[None])
    assert seen == [None]
    assert ring.append(plain, None) == 0


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (4,), (1, 2, 3)], ids=str)
def test_what_is_no_batch_of_logits_is_refused(shape: tuple[int, ...]) -> None:
    """An empty tensor or one of another rank raises an error that names its shape."""
    with pytest.raises(ValueError, match=r"batch, vocabulary.*\("):
        compute(torch.zeros(shape), None, top_k=0)


def test_another_implementation_can_be_given() -> None:
    """The ring uses the implementation it is given, with a place for what it finds."""
    calls: list[tuple[int, Any]] = []

    def counted(logits: Tensor, chosen: Tensor | None, *, top_k: int, out: Tensor | None = None) -> Tensor:
        calls.append((top_k, None if out is None else tuple(out.shape)))
        return compute(logits, chosen, top_k=top_k, out=out)

    LogitRing(top_k=3, capacity=1, statistics=counted).append(torch.ones(1, 9), None)
    assert calls == [(3, (1, 19))]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_failure_of_held_steps_leaves_those_before_them(
    monkeypatch: pytest.MonkeyPatch, contained: list[Swallowed], error: type[BaseException]
) -> None:
    """What had been reduced when memory ran out, or an interrupt came, is given; later steps are not taken."""
    logits, reduce, calls = torch.randn(40, 2, 64).bfloat16(), logit_reductions._reduce, 0

    def fail(*args: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise error
        return reduce(*args)

    monkeypatch.setattr(logit_reductions, "_reduce", fail)
    ring = LogitRing(top_k=0, capacity=100)
    slots = []
    for step in logits:
        with contextlib.suppress(KeyboardInterrupt):
            slots.append(ring.append(step, None))
    assert slots[:31] == list(range(31))
    assert slots[-8:] == [None] * 8
    assert [one.place for one in contained] == ["logit statistics"] * (error is MemoryError)
    contained.clear()
    got = ring.read()
    assert len(got) == 16
    for measured, rows in zip(got, logits, strict=False):
        agree(measured.rows[1], reference(rows[1], None)._replace(chosen=None))


def _exit_code_of_child(work: Callable[[], int]) -> int | None:
    """What ``work`` returns in a forked child, ``None`` if it does not within five seconds."""
    child = os.fork()
    if child == 0:
        os._exit(work())
    for _ in range(500):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("dtype", "codes"),
    [
        (torch.bfloat16, [10, 10, 30]),
        pytest.param(torch.float32, [15, 33, 30], marks=pytest.mark.skipif(not IN_C, reason="needs the C extension")),
    ],
    ids=["held", "reduced at once"],
)
def test_a_forked_child_does_not_wait_for_threads_of_its_parent(dtype: torch.dtype, codes: list[int]) -> None:
    """Held steps are the parent's; a request that begins in the child is measured step by step, as long as torch needs no threads."""
    logits, ids, before = torch.randn(20, 1, 1000).to(dtype), torch.zeros(1, dtype=torch.long), torch.get_num_threads()
    ring = LogitRing(top_k=0, capacity=100)
    for step in logits[:5]:
        ring.append(step, ids)

    def leave() -> int:
        return 10 + len(ring.read())

    def go_on() -> int:
        taken = [ring.append(step, ids) for step in (*logits[5:], *torch.randn(2, 1, 7).to(dtype))]
        return 10 + len(ring.read()) + (taken[-1] is not None)

    def begin() -> int:
        own = LogitRing(top_k=0, capacity=100)
        for step in logits:
            own.append(step, ids)
        return 10 + len(own.read())

    torch.set_num_threads(2)
    try:
        torch.randn(64, 4096).softmax(-1)
        assert [_exit_code_of_child(work) for work in (leave, go_on, begin)] == codes
    finally:
        torch.set_num_threads(before)
    for step in logits[5:]:
        ring.append(step, ids)
    for got, row in zip(ring.read(), logits, strict=True):
        agree(got.rows[0], reference(row[0], 0))


@pytest.mark.filterwarnings("ignore:DTensor random operators:UserWarning")  # of torch 2.4
def test_parts_of_logits_are_told_from_whole_ones() -> None:
    """A DTensor is whole if it is replicated, and a plain tensor if it is as wide as the vocabulary of a tensor-parallel model."""
    from torch import distributed
    from torch._C._distributed_c10d import HashStore
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    except ImportError:  # torch before 2.5
        from torch.distributed._tensor import Replicate, Shard, distribute_tensor  # type: ignore[attr-defined]

    logits = torch.randn(1, 2, 8, requires_grad=True)
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        replicated = whole_logits(distribute_tensor(logits, mesh, [Replicate()]))
        assert type(replicated) is Tensor
        assert torch.equal(replicated, logits)
        assert whole_logits(distribute_tensor(logits, mesh, [Shard(2)])) is None
        ring = LogitRing(top_k=0, capacity=2)
        assert ring.append(distribute_tensor(logits.detach()[:, -1], mesh, [Shard(1)]), None) is None
    finally:
        distributed.destroy_process_group()
    assert whole_logits(logits) is logits
    assert whole_logits(logits, vocabulary=8) is logits
    assert whole_logits(logits, vocabulary=16) is None
    assert whole_logits(None, vocabulary=16) is None
