"""The fused kernel on a GPU: the numbers of float64, in any layout, on any stream, inside and beside graphs, without ever waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan.capture.logits.kernel_cache import FUSED
from inferspan.capture.logits.ring import LogitRing
from tests.capture.logits.references import DTYPES, KINDS, agree, reference, special

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
"""Where there is a GPU, Triton and a C compiler are there too, or these tests fail."""


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Whatever a test has said about waiting for the device is forgotten after it."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def ready(logits: Tensor, chosen: Tensor | None, *, top_k: int = 0) -> LogitRing:
    """A ring whose kernel is compiled for such logits."""
    LogitRing(top_k=top_k, capacity=9).append(logits, chosen)
    FUSED.join(120)
    variant = FUSED.choose(logits, chosen, top_k=top_k)
    assert variant is not None
    assert FUSED.get(variant) is not None
    return LogitRing(top_k=top_k, capacity=1 << 20)


def check(ring: LogitRing, logits: Tensor, chosen: Tensor | None, steps: int) -> None:
    """All steps have the numbers of the float64 reference."""
    found = ring.read()
    assert len(found) == steps
    host, ids = logits.cpu(), None if chosen is None else chosen.tolist()
    for step in (found[0], found[-1]):
        for row in range(host.shape[0]):
            agree(step.rows[row], reference(host[row], None if ids is None else ids[row]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_kernel_agrees_with_the_reference(dtype: torch.dtype, kind: str, no_waiting: None) -> None:
    """Every dtype and mask gives the numbers of numpy in float64; hundreds of steps neither wait nor allocate on their way."""
    generator = torch.Generator().manual_seed(8)
    logits = special(kind, torch.randn(3, 5000, generator=generator) * 4).to(dtype).cuda()
    chosen = torch.randint(0, 5000, (3, 9), generator=generator).cuda()[:, -1]
    ring = ready(logits, chosen, top_k=2)
    torch.cuda.set_sync_debug_mode("error")
    ring.append(logits, chosen)
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(299):
        ring.append(logits, chosen)
    torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - allocated <= 2
    check(ring, logits, chosen, 300)


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (3, 7), (16, 64), (1, 50_257), (2, 4097)], ids=str)
@pytest.mark.parametrize("with_ids", [True, False], ids=["ids", "no ids"])
def test_sizes(shape: tuple[int, int], with_ids: bool) -> None:
    """One logit, one part and many, one row and several."""
    logits = torch.randn(shape, device="cuda")
    chosen = torch.randint(0, shape[1], shape[:1], device="cuda") if with_ids else None
    ring = ready(logits, chosen, top_k=3)
    ring.append(logits, chosen)
    check(ring, logits, chosen, 1)


@pytest.mark.parametrize("part", [lambda x: x[:, 2], lambda x: x[:, -1, 1:], lambda x: x[1:2, -1], lambda x: x[:, 1, :40]], ids=["strided", "unaligned", "row", "cut"])  # fmt: skip
def test_views(part: Any) -> None:
    """Strided and unaligned views are read where they are."""
    logits = part(torch.randn(4, 5, 50_257, device="cuda", dtype=torch.bfloat16))
    chosen = torch.arange(logits.shape[0], device="cuda")
    ring = ready(logits, chosen)
    ring.append(logits, chosen)
    check(ring, logits, chosen, 1)


def test_other_streams() -> None:
    """Logits that a side stream makes are read on that stream, without waiting, and come in order with those of others."""
    logits = torch.zeros(1, 50_000, device="cuda")
    ring, side = ready(logits, None), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        made = torch.full((1, 50_000), 3.0, device="cuda")
        ring.append(made, None)
        assert not side.query()
    ring.append(logits, None)
    assert [step.mean.max for step in ring.read()] == [3.0, 0.0]


def test_logits_in_a_graphs_output_are_taken_before_its_next_replay() -> None:
    """A graph writes each step's logits into the same memory; each step has its own numbers."""
    source, step = torch.randn(1, 50_000, device="cuda"), torch.zeros(1, device="cuda")
    logits = torch.empty_like(source)
    ring, graph = ready(logits, None), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step += 1
        torch.mul(source, 0, out=logits)
        logits += step
    for _ in range(300):
        graph.replay()
        ring.append(logits, None)
    assert [one.mean.max for one in ring.read()] == [float(number) for number in range(1, 301)]


def test_a_kernel_is_compiled_while_another_thread_captures() -> None:
    """Compiling and loading a new kernel neither breaks a capture nor fails because of it."""
    static, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    logits = torch.randn(1, 33_333, device="cuda", dtype=torch.float16)
    variant = FUSED.choose(logits, None, top_k=7)
    assert variant is not None
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        static += 1
        assert FUSED.get(variant) is None
        FUSED.join(120)
        static += 1
    graph.replay()
    assert static.tolist() == [3.0] * 4
    assert FUSED.get(variant) is not None


def test_random_state_and_current_device_are_left_alone() -> None:
    """Neither compiling nor launching draws a random number or changes the current device or stream."""
    logits = torch.randn(2, 1234, device="cuda")
    state, host = torch.cuda.get_rng_state(), torch.get_rng_state()
    device, stream = torch.cuda.current_device(), torch.cuda.current_stream()
    ring = ready(logits, None)
    ring.append(logits, None)
    ring.read()
    assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (device, stream)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.equal(torch.get_rng_state(), host)
