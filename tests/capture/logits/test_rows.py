"""Rows of a buffer: where they are written, in how many copies they come to the host, and that nothing waits before the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from inferspan.capture.logits import ring as logit_ring
from inferspan.capture.logits import rows as row_buffers
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.logits.rows import DeviceRowBuffer, PinnedBuffers
from inferspan.capture.modules.device_rows import raw_stream
from tests.capture.logits.fused_fakes import FakeKernel, FakeLink

CPU = torch.device("cpu")


def write(buffer: DeviceRowBuffer, steps: range) -> None:
    """One row a step, with its number in it."""
    for step in steps:
        buffer.row().fill_(float(step))
        buffer.commit()


def values(parts: list[Tensor]) -> list[float]:
    """The number that each step wrote."""
    return [float(row.flatten()[0]) for part in parts for row in part]


def test_a_long_buffer_lives_in_one_chunk() -> None:
    """Full chunks are sent in one copy each and written again; 100,000 steps need one piece of device memory, and one copy per 256."""
    link = FakeLink()
    buffer = DeviceRowBuffer(1, 3, torch.float32, CPU, pack=None, link=link)
    addresses, found = set(), []
    for start in range(0, 100_000, 1000):
        write(buffer, range(start, start + 1000))
        addresses.add(buffer.open().data_ptr())
        for transfer in link.sent:
            transfer.there = True
        found += values(buffer.landed())
    found += values(buffer.read())
    assert found == [float(step) for step in range(100_000)]
    assert (len(addresses), len(link.sent), link.fetches, link.waits) == (1, 391, 0, 1)


def test_what_has_not_arrived_stays_and_nothing_waits() -> None:
    """``landed`` gives copies in order up to the first that is under way; only ``read`` waits for the others."""
    link = FakeLink()
    buffer = DeviceRowBuffer(1, 3, torch.float32, CPU, pack=None, link=link)
    write(buffer, range(800))
    link.sent[0].there = link.sent[2].there = True
    assert values(buffer.landed()) == [float(step) for step in range(256)]
    assert values(buffer.landed()) == []
    assert link.waits == 0
    assert values(buffer.read()) == [float(step) for step in range(256, 800)]
    assert (link.waits, buffer.read(), link.settled) == (2, [], 0)


def test_rows_wait_on_the_device_while_no_pinned_memory_is_free() -> None:
    """Chunks for which there is no room are kept, sent once there is, and come in order; those left at the end are fetched."""
    link = FakeLink(room=1)
    buffer = DeviceRowBuffer(1, 3, torch.float32, CPU, pack=None, link=link)
    write(buffer, range(1024))
    assert len(link.sent) == 1
    link.sent[0].there = True
    assert values(buffer.landed()) == [float(step) for step in range(256)]
    assert len(link.sent) == 2
    assert values(buffer.read()) == [float(step) for step in range(256, 1024)]
    assert (len(link.sent), link.fetches) == (2, 2)


def test_another_stream_is_waited_for_at_the_end_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows written on a stream that is no longer current are sent by nobody else, and read after the device has settled."""
    link, stream = FakeLink(), [7]
    monkeypatch.setattr(row_buffers, "raw_stream", lambda device: stream[0])
    buffer = DeviceRowBuffer(1, 3, torch.float32, CPU, pack=None, link=link)
    link.room = 0
    write(buffer, range(256))
    link.room, stream[0] = 9, 8
    assert (buffer.landed(), link.sent, link.settled) == ([], [], 0)
    assert values(buffer.read()) == [float(step) for step in range(256)]
    assert link.settled == 1


def test_packed_rows_are_sent_instead() -> None:
    """What is packed is what comes to the host, and the chunk is used again whether or not it could be sent."""
    link = FakeLink(room=0)
    buffer = DeviceRowBuffer(40, 3, torch.float32, CPU, pack=lambda rows: rows.sum(-1), link=link)
    assert buffer.steps == 102
    address = buffer.open().data_ptr()
    write(buffer, range(250))
    assert buffer.open().data_ptr() == address
    parts = buffer.read()
    assert [tuple(part.shape) for part in parts] == [(102, 40), (102, 40), (46, 40)]
    assert values(parts) == [3.0 * step for step in range(250)]


@pytest.mark.parametrize(("batch", "columns", "steps"), [(1, 13, 256), (16, 23, 89), (16, 213, 9), (5000, 13, 1), (4096, 13, 1)])
def test_chunks_fit_pinned_buffers(batch: int, columns: int, steps: int) -> None:
    """A chunk has 256 steps at most, 4,096 rows, and no more bytes than a buffer unless one step has more."""
    assert DeviceRowBuffer(batch, columns, torch.float32, CPU, pack=None, link=FakeLink()).steps == steps


def test_buffers_are_lent_and_come_back() -> None:
    """Without a driver there are no buffers, and nobody notices; a forked child has none of its parent's."""
    landings = PinnedBuffers()
    assert landings.take() is None
    buffer = torch.empty(4, dtype=torch.uint8)
    landings.give(buffer)
    assert landings.take() is buffer
    assert landings.take() is None
    landings.give(buffer)
    landings.renew()
    assert landings.take() is None


def test_a_request_costs_two_allocations_and_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a kernel, 200 steps make one launch each, allocate their chunk and scratch once, and come in one copy."""
    kernel, link = FakeKernel(), FakeLink()
    fused = kernel.kernels()
    logits, ids = torch.randn(1, 30), torch.zeros(1, dtype=torch.long)
    LogitRing(top_k=0, capacity=1, fused=fused).append(logits, ids)
    fused.join(10)
    made: list[object] = []

    def counted(original: Any) -> Any:
        def make(*args: Any, **options: Any) -> Any:
            made.append(args)
            return original(*args, **options)

        return make

    for name in ("empty", "zeros"):
        monkeypatch.setattr(torch, name, counted(getattr(torch, name)))
    monkeypatch.setattr(logit_ring, "compute", None)
    ring = LogitRing(top_k=0, capacity=1000, fused=fused, link=link)
    for _ in range(200):
        ring.append(logits, ids)
    assert (len(made), kernel.launches, len(link.sent)) == (2, 200, 0)
    assert len(ring.read()) == 200
    assert (len(made), len(link.sent), link.fetches) == (2, 1, 0)


def test_steps_of_several_buffers_arrive_in_their_order() -> None:
    """A step is given only when all before it have come, whatever buffer they are in."""
    link = FakeLink()
    ring = LogitRing(top_k=0, capacity=9999, link=link)
    narrow, wide = torch.full((1, 4), 1.0), torch.full((1, 5), 2.0)
    for step in range(600):
        assert ring.append(narrow if step < 100 else wide, None) == step
    for transfer in link.sent:
        transfer.there = True
    assert ring.landed() == []
    ring.append(narrow, None)
    steps = ring.read()
    assert [step.mean.max for step in steps] == [1.0] * 100 + [2.0] * 500 + [1.0]
    assert ring.append(narrow, None) == 601


def test_a_ring_whose_reading_failed_takes_nothing_more() -> None:
    """After a failure no step is given numbers that may be another's."""
    link = FakeLink()
    ring = LogitRing(top_k=0, capacity=99, link=link)
    ring.append(torch.ones(1, 4), None)
    link.send = lambda rows: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        ring.read()
    assert (ring.full, ring.append(torch.ones(1, 4), None), ring.read()) == (True, None, [])


def test_there_is_no_stream_without_a_device() -> None:
    """On the CPU everything is of one stream."""
    assert raw_stream(CPU) == 0
