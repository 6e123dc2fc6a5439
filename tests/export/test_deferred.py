"""Set-up that waits for threads: nothing is done before they can be had, and everything after."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from inferspan.export.deferred import DeferredSetup, threads_can_start
from inferspan.settings import SettingsError

REFUSALS = [RuntimeError("can't start new thread"), MemoryError(), OSError(11, "busy")]


class Threads:
    """Threads of a system that may refuse them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.granted: float = float("inf")
        """How many may still start."""
        self.error: Exception = REFUSALS[0]
        start = threading.Thread.start

        def limited(thread: threading.Thread) -> None:
            self.granted -= 1
            if self.granted < 0:
                raise self.error
            start(thread)

        patch.setattr(threading.Thread, "start", limited)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """Threads that a test may run out of."""
    return Threads(monkeypatch)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_done_at_once() -> None:
    """With threads to be had a set-up runs once, and is not repeated."""
    done: list[int] = []
    deferred = DeferredSetup()
    deferred.run(lambda: done.append(1))
    deferred.catch_up()
    assert done == [1]


@pytest.mark.parametrize("error", REFUSALS, ids=repr)
def test_put_off(threads: Threads, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Without threads nothing is begun, one line says it, and it is done when threads are there again."""
    done: list[int] = []
    deferred = DeferredSetup()
    threads.error, threads.granted = error, 3
    deferred.run(lambda: done.append(1))
    deferred.run(lambda: done.append(2))
    deferred.catch_up()
    assert done == []
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["the system refuses new threads"]
    threads.granted = float("inf")
    deferred.catch_up()
    deferred.catch_up()
    assert done == [1, 2]


def test_fails_in_the_middle() -> None:
    """A set-up that runs out of threads is tried again, ever less often."""
    clock, tries = Clock(), list[float]()
    deferred = DeferredSetup(clock=clock)

    def setup() -> None:
        tries.append(clock.now)
        if len(tries) < 4:
            raise RuntimeError("can't start new thread")

    deferred.run(setup)
    for _ in range(20):
        deferred.catch_up()
        clock.now += 1
    assert tries == [0, 1, 3, 7]


def test_wrong_settings_are_not_put_off() -> None:
    """A wrong argument is the caller's to know."""
    tries: list[int] = []

    def setup() -> None:
        tries.append(1)
        raise SettingsError("wrong")

    deferred = DeferredSetup()
    with pytest.raises(SettingsError):
        deferred.run(setup)
    deferred.catch_up()
    assert tries == [1]


def test_probes_end() -> None:
    """Threads that were only started to see whether they start are gone at once."""
    before = threading.active_count()
    assert threads_can_start(5)
    for thread in threading.enumerate():
        if thread.name == "inferspan-probe":
            thread.join(30)
    # Threads of other tests may end meanwhile.
    assert threading.active_count() <= before


@pytest.mark.parametrize("granted", [0, 1, 2, 3])
def test_pipelines_without_threads(threads: Threads, granted: int) -> None:
    """Pipelines whose threads cannot start flush and close on the thread of the caller."""
    from inferspan.export.shutdown import Pipeline, Pipelines

    done: list[str] = []

    def pipeline(name: str) -> Pipeline:
        def flush(seconds: float) -> bool:
            done.append(f"flush {name}")
            return True

        def close(seconds: float) -> None:
            done.append(f"close {name}")

        return Pipeline(name, flush, close)

    threads.granted = granted
    pipelines = Pipelines()
    for name in ("a", "b"):
        pipelines.add(pipeline(name))
    sources: list[Callable[[], None]] = [lambda: done.append("source")]
    pipelines.flush_first(sources[0])
    assert pipelines.force_flush(30)
    assert sorted(done) == ["flush a", "flush b", "source"]
    done.clear()
    assert pipelines.shutdown(30)
    assert sorted(done) == ["close a", "close b", "source"]
