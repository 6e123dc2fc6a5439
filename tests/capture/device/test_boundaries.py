"""Boundaries in C and in Python: which get an event, and what lies between them."""

from __future__ import annotations

import gc
import random
import sys
import threading
from time import perf_counter_ns
from typing import Any

import pytest
import torch

from inferspan.capture.device.driver import DriverEvents
from tests.capture.device.fake_cuda import FakeCuda
from tests.capture.modules.recorders import IMPLEMENTATIONS, IN_C_CODE, IN_PYTHON, Implementation, in_c


class _Clock:
    """A host clock that goes as it is told to."""

    now = 1_000_000

    def __call__(self) -> int:
        """Nanoseconds."""
        return self.now


def _timed(implementation: Implementation, seed: int, devices: int, *, pointers: bool) -> list[Any]:
    """Everything that comes of 300 random boundaries: events recorded, times read, what is still referred to."""
    draw, clock, fake = random.Random(seed), _Clock(), FakeCuda(devices, pointers=pointers)
    cuda = fake.torch_cuda()
    pools = tuple(DriverEvents(index, cuda, fake, implementation.native) for index in range(devices))
    boundaries = implementation.boundaries(pools, 3_000, 40_000, clock)
    tensors: list[Any] = [torch.ones(1) for _ in range(4)] + [None, 5, (torch.ones(1), 2), ()]
    seen: list[Any] = []
    opened: list[tuple[int, bool]] = []
    number = 0
    for _ in range(300):
        clock.now += draw.choice((0, 500, 2_999, 3_000, 20_000, 60_000))
        fake.work[draw.randrange(devices)] += draw.random()
        fake.current_stream[0] = draw.choice((0, 0, 7))
        fake.capturing = {7} if draw.random() < 0.1 else set()
        inner, passed, now = draw.random() < 0.5, draw.choice(tensors), draw.choice((0, clock.now))
        action = draw.random()
        if action < 0.45:
            boundaries.enter(number, passed, now, inner=inner)
            opened.append((number, inner))
            number += 1
        elif action < 0.9 and opened:
            which, inner = opened.pop()
            boundaries.leave(which, passed, now, inner=inner)
        elif action < 0.92:
            tensors[draw.randrange(4)] = torch.ones(1)
        elif action < 0.95:
            boundaries.record()
        elif action < 0.97 and boundaries.last >= 0:
            fake.capturing = set()
            begin, ends = draw.choice((-1, 0)), boundaries.last
            cut = boundaries.cut()
            fake.reached = [draw.choice((0.0, 1e9)) for _ in range(devices)] if draw.random() < 0.3 else None
            with pools[0].reading():
                times = cut.seconds(pools, begin, ends)
            seen.append((times, cut.count, [cut.slots(device) for device in range(devices)]))
            for device, pool in enumerate(pools):
                pool.release(cut.slots(device))
            number = 0
            opened.clear()
        seen.append((boundaries.last, boundaries.recorded, fake.calls["cuEventRecord"], len(fake.recorded)))
    seen.append([sys.getrefcount(tensor) for tensor in tensors[:4]])
    seen.append([sorted(pool.free) for pool in pools])
    assert not fake.faults
    return seen


@in_c
@pytest.mark.parametrize("pointers", [False, True], ids=["functions", "addresses"])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_same_boundaries(seed: int, devices: int, pointers: bool) -> None:
    """Which boundaries get an event, on which stream, and what lies between them."""
    expected = _timed(IN_PYTHON, seed, devices, pointers=False)
    assert _timed(IN_C_CODE, seed, devices, pointers=pointers) == expected


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_clock_that_ends_while_it_records(implementation: Implementation) -> None:
    """Another thread may end the request while the driver is asked, and no event is left then."""
    fake = FakeCuda(pointers=True)

    def stream(index: int) -> int:
        clock.forget()
        pool.free.clear()
        return 0

    pool = DriverEvents(0, fake.torch_cuda()._replace(stream=stream), fake, implementation.native)
    clock = implementation.boundaries((pool,), 0, 0, perf_counter_ns)
    pool.reserve()
    clock.enter(0, torch.ones(1))
    clock.leave(0, torch.ones(1))
    clock.record()
    assert fake.calls["cuEventRecord"] <= 1 and not fake.faults


def test_events_recorded_while_others_are_made() -> None:
    """The same, while a pool makes events: it does not wait for itself, and no slot is given twice."""
    fake: Any = FakeCuda()
    pool = DriverEvents(0, fake.torch_cuda(), fake)
    create = fake.cuEventCreate
    taken: list[int] = []

    def record_meanwhile(*arguments: Any) -> Any:
        fake.cuEventCreate = create
        taken.append(pool.record())
        return create(*arguments)

    fake.cuEventCreate = record_meanwhile
    thread = threading.Thread(target=lambda: taken.append(pool.record()), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert len(taken) == len(set(taken)) == 2 and min(taken) >= 0
    assert sorted([*taken, *pool.free]) == [*range(len(pool.events))] and not fake.faults


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_clock_told_by_a_finalizer(implementation: Implementation) -> None:
    """The garbage collector may run anything while a boundary is noted, other boundaries of the same request included."""
    clock = implementation.boundaries((), 10**12, 10**12, perf_counter_ns)
    count = 0

    class Nested:
        def __init__(self) -> None:
            self.circle = self

        def __del__(self) -> None:
            nonlocal count
            count += 1
            clock.enter(2 * count, torch.ones(1))

    threshold = gc.get_threshold()
    clock.enter(0)  # the others come in pairs, and now each place where there is no more room is in the middle of one
    try:
        for place in range(2000):
            gc.set_threshold(0)
            Nested()
            passed = torch.ones(1)
            gc.set_threshold(1)
            clock.enter(2 * place + 1, passed)  # makes a weak reference
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert count == 2000
    for place in range(4001):
        clock.leave(place)
