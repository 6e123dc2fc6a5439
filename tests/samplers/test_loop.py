"""The sampler thread: fresh readings for those who ask, none that are stale, and no harm to anybody."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from inferspan import guard
from inferspan.records import Sample
from inferspan.samplers.loop import SamplerLoop

LONG = 60.0
"""Seconds a test waits at most for what comes at once."""


class Clock:
    """Seconds that pass when a test says so, so that no round begins which nobody asked for."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Counting:
    """A sampler whose reading is the number of the round; a test may hold a round, or make it fail."""

    def __init__(self, name: str = "round") -> None:
        self.name = name
        self.rounds = self.closed = 0
        self.threads: set[str] = set()
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.failing = False

    def collect(self) -> Sequence[Sample]:
        self.rounds += 1
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.gate.wait(LONG)
        if self.failing:
            raise RuntimeError("no reading")
        return [Sample(self.name, self.rounds, {})]

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.closed += 1


class Metering(Counting):
    """A sampler that has energy as well."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.clock = clock
        self.readings = 0

    def energy(self) -> Mapping[str, tuple[float, float]]:
        self.readings += 1
        assert self.gate.wait(LONG)
        return {"GPU-a": (self.readings, self.clock())}

    def shared(self, hw_id: str) -> bool:
        return hw_id != "GPU-a"


Start = Callable[..., SamplerLoop]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a loop over samplers that is stopped at the end of the test."""
    loops: list[tuple[SamplerLoop, tuple[Counting, ...]]] = []

    def begin(*samplers: Counting, clock: Callable[[], float] | None = None, interval: float = 5.0, wait: float = LONG) -> SamplerLoop:
        loop = SamplerLoop(samplers, interval=interval, clock=clock or Clock(), wait=wait)
        loops.append((loop, samplers))
        loop.start()
        return loop

    yield begin
    for loop, samplers in loops:
        for sampler in samplers:
            sampler.gate.set()
        loop.stop(LONG)


def settled(condition: Callable[[], bool]) -> bool:
    """Whether something becomes true soon."""
    deadline = time.monotonic() + LONG
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def values(samples: Sequence[Sample]) -> list[tuple[str, float]]:
    """Names and numbers of readings."""
    return [(sample.metric, sample.value) for sample in samples]


class TestRead:
    """What ``read`` hands out."""

    def test_every_read_is_fresh(self, start: Start) -> None:
        """Each read gets a round that began after it, on the thread, in the order of the samplers."""
        first, second = Counting("first"), Counting("second")
        loop = start(first, second)
        seen = [values(loop.read()) for _ in range(3)]
        base = int(seen[0][0][1])
        assert seen == [[("first", base + turn), ("second", base + turn)] for turn in range(3)]
        assert first.threads == {"inferspan-samplers"}

    def test_readers_share_a_round(self, start: Start) -> None:
        """Readers that come while a round is running wait for one more, and share it."""
        sampler = Counting()
        sampler.gate.clear()
        loop = start(sampler)
        assert sampler.entered.wait(LONG)
        results: list[list[tuple[str, float]]] = []
        readers = [threading.Thread(target=lambda: results.append(values(loop.read()))) for _ in range(4)]
        for reader in readers:
            reader.start()
        assert settled(lambda: len(loop._condition._waiters) == 4)  # type: ignore[attr-defined]
        sampler.gate.set()
        for reader in readers:
            reader.join(LONG)
        assert results == [[("round", 2)]] * 4
        assert sampler.rounds == 2

    def test_slow_sampler(self, start: Start) -> None:
        """A reader waits no longer than it was told to, and then gets what the others have, and the newest of the slow one."""
        quick, slow = Counting("quick"), Counting("slow")
        loop = start(quick, slow, wait=0.05)
        assert settled(lambda: len(loop.read()) == 2)
        slow.gate.clear()
        old = slow.rounds
        began = time.monotonic()
        samples = dict(values(loop.read()))
        assert time.monotonic() - began > 0.04
        assert samples["slow"] == old
        assert samples["quick"] == quick.rounds > old

    def test_stale_reading(self, start: Start) -> None:
        """A reading older than two intervals is not handed out."""
        clock, sampler = Clock(), Counting()
        loop = start(sampler, clock=clock, wait=0.02)
        assert settled(lambda: bool(loop.read()))
        sampler.entered.clear()
        sampler.gate.clear()
        loop.wake()
        assert sampler.entered.wait(LONG)
        clock.now += 10
        assert len(loop.read()) == 1
        assert loop.latest("round") is not None
        clock.now += 0.1
        assert loop.read() == []
        assert loop.latest("round") is None

    def test_failing_sampler(self, start: Start, contained: list[guard.Swallowed]) -> None:
        """A sampler that raises loses its own readings, old ones too; the others go on, and it may recover."""
        good, bad = Counting("good"), Counting("bad")
        loop = start(good, bad)
        assert [name for name, _ in values(loop.read())] == ["good", "bad"]
        bad.failing = True
        assert [name for name, _ in values(loop.read())] == ["good"]
        bad.failing = False
        assert [name for name, _ in values(loop.read())] == ["good", "bad"]
        assert {(error.place, error.kind) for error in contained} == {("samplers.Counting", "RuntimeError")}
        contained.clear()

    def test_interval(self, start: Start) -> None:
        """Rounds go on when nobody asks; ``latest`` sees them without waiting, with the time of the reading."""
        sampler = Counting()
        loop = start(sampler, clock=time.monotonic, interval=0.01)
        assert settled(lambda: sampler.rounds >= 5)
        assert settled(lambda: loop.latest("round") is not None)
        latest = loop.latest("round")
        assert latest is None or time.monotonic() - latest[1] < LONG
        assert loop.latest("other") is None


class TestEnergy:
    """Energy on request."""

    def test_energy(self, start: Start) -> None:
        """Energy is read after the call began, without a whole round."""
        clock = Clock()
        sampler = Metering(clock)
        loop = start(sampler, Counting(), clock=clock)
        loop.read()
        rounds = sampler.rounds
        assert loop.energy(LONG) == {"GPU-a": (1, 1000.0)}
        clock.now += 1
        assert loop.energy(LONG) == {"GPU-a": (2, 1001.0)}
        assert sampler.rounds == rounds
        assert (loop.shared("GPU-a"), loop.shared("GPU-b")) == (False, True)

    def test_energy_too_late(self, start: Start) -> None:
        """An answer that does not come in time is none, rather than an older one."""
        sampler = Metering(Clock())
        loop = start(sampler)
        assert loop.energy(LONG) == {"GPU-a": (1, 1000.0)}
        sampler.gate.clear()
        assert loop.energy(0.02) == {}

    def test_no_meter(self, start: Start) -> None:
        """Without a sampler that has energy there is none, at once, and no card counts as ours alone."""
        loop = start(Counting())
        began = time.monotonic()
        assert loop.energy(LONG) == {}
        assert time.monotonic() - began < LONG / 2
        assert loop.shared("GPU-a")

    def test_requests_do_not_starve_rounds(self, start: Start) -> None:
        """However often energy is asked for, the rounds go on."""
        sampler = Metering(time.monotonic)
        loop = start(sampler, clock=time.monotonic, interval=0.02)
        deadline = time.monotonic() + LONG
        while sampler.rounds < 4 and time.monotonic() < deadline:
            loop.energy(LONG)
        assert sampler.rounds >= 4
        assert sampler.readings > sampler.rounds


class TestLife:
    """Start, stop, fork."""

    def test_nothing_before_start(self) -> None:
        """A loop that was not started has no thread, no reading, and makes nobody wait."""
        sampler = Counting()
        loop = SamplerLoop([sampler], interval=5.0)
        began = time.monotonic()
        assert (loop.read(), loop.energy(LONG), loop.latest("round"), loop.running) == ((), {}, None, False)
        loop.wake()
        loop.stop()
        assert time.monotonic() - began < LONG / 2
        assert sampler.rounds == 0

    def test_stop(self, start: Start) -> None:
        """Stopping closes each sampler once, on the thread; afterwards nothing is read, and it can start again."""
        sampler = Counting()
        loop = start(sampler)
        loop.start()
        loop.read()
        loop.stop(LONG)
        loop.stop(LONG)
        assert (loop.running, loop.read(), sampler.closed) == (False, (), 1)
        loop.start()
        assert len(loop.read()) == 1
        loop.stop(LONG)
        assert sampler.closed == 2
        assert sampler.threads == {"inferspan-samplers"}

    def test_stop_during_a_query(self, start: Start) -> None:
        """A sampler is not closed while a query of its runs, and stopping does not wait for ever."""
        sampler = Counting()
        sampler.gate.clear()
        loop = start(sampler)
        assert sampler.entered.wait(LONG)
        loop.stop(0.02)
        assert (sampler.closed, loop.read()) == (0, ())
        loop.start()  # the thread is still in the query: there is to be no second one
        sampler.gate.set()
        assert settled(lambda: sampler.closed == 1)

    def test_readers_do_not_hang(self, start: Start) -> None:
        """A reader that waits when the loop is stopped gets nothing, at once."""
        sampler = Counting()
        sampler.gate.clear()
        loop = start(sampler)
        assert sampler.entered.wait(LONG)
        results: list[Sequence[Sample]] = []
        reader = threading.Thread(target=lambda: results.append(loop.read()))
        reader.start()
        assert settled(lambda: len(loop._condition._waiters) == 1)  # type: ignore[attr-defined]
        loop.stop(0)
        reader.join(LONG)
        assert results == [[]]

    def test_close_fails(self, start: Start, contained: list[guard.Swallowed]) -> None:
        """A sampler that cannot be closed keeps nobody else from it."""
        bad, good = Counting(), Counting()
        bad.close = lambda: 1 / 0  # type: ignore[method-assign,assignment]
        loop = start(bad, good)
        loop.read()
        loop.stop(LONG)
        assert good.closed == 1
        assert [error.place for error in contained] == ["samplers.Counting.close"]
        contained.clear()

    def test_no_samplers(self, start: Start) -> None:
        """Without samplers there is no thread."""
        loop = start()
        assert (loop.running, loop.read()) == (False, ())

    @pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError(), OSError(11, "busy")], ids=repr)
    def test_no_thread_to_be_had(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        """A system that refuses a thread costs the readings until it grants one: the next reader starts it."""

        def refuse(thread: threading.Thread) -> None:
            raise error

        loop = SamplerLoop([Counting()], interval=5.0, clock=Clock(), wait=LONG)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            loop.start()
            assert (loop.running, loop.read(), loop.energy(LONG)) == (False, (), {})
        assert len(loop.read()) == 1
        loop.stop(LONG)
        assert loop.read() == ()
        assert not loop.running

    def test_not_kept_alive(self, start: Start) -> None:
        """A stopped loop goes with its last reference: the handler of forks does not hold it."""
        loop = SamplerLoop([Counting()], interval=5.0)
        loop.start()
        loop.stop(LONG)
        gone = weakref.ref(loop)
        del loop
        gc.collect()
        assert gone() is None

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_fork(self, start: Start) -> None:
        """A child starts nothing by itself, even if it was forked while the lock was held; told to start, it has its own thread."""
        sampler = Counting()
        loop = start(sampler)
        loop.read()
        with loop._condition:
            child = os.fork()
            if child == 0:
                try:
                    quiet = (
                        not loop.running
                        and not loop.read()
                        and not any(thread.name == "inferspan-samplers" for thread in threading.enumerate())
                    )
                    rounds = sampler.rounds
                    loop.start()
                    # A read waits 50 ms; on a busy machine the child's first round may take longer to come.
                    woken = any(len(loop.read()) == 1 for _ in range(100)) and sampler.rounds > rounds
                    loop.stop(LONG)
                    os._exit(0 if quiet and woken and sampler.closed == 1 else 1)
                finally:
                    os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert any(len(loop.read()) == 1 for _ in range(100))
        assert sampler.closed == 0
