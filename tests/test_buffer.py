"""The queue between the model's path and the sinks."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable

import pytest

from inferspan import buffer as buffers
from inferspan import guard
from inferspan.buffer import MOST_FIRST, Buffer


def _until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def _held(taken: threading.Event, hold: threading.Event) -> Callable[[int, float | None], None]:
    """A consumer that tells when it has an item, and keeps it until it may go on."""

    def consume(item: int, until: float | None) -> None:
        taken.set()
        hold.wait(120)

    return consume


def test_order_and_waiting() -> None:
    """Items come out in order, on a daemon thread by themselves and on the caller's when it flushes, who is waited for until then."""
    seen: list[tuple[int, float | None, str]] = []
    hold = threading.Event()

    def consume(item: int, until: float | None) -> None:
        seen.append((item, until, threading.current_thread().name))
        if item == 0:
            hold.wait(5)

    buffer: Buffer[int] = Buffer(consume, name="test-buffer")
    assert buffer.put(0, 1) and _until(lambda: len(seen) == 1)
    for item in (1, 2):
        buffer.put(item, 1)
    threading.Timer(0.05, hold.set).start()
    assert buffer.flush(5)
    assert [item for item, _, _ in seen] == [0, 1, 2]
    assert seen[0][1:] == (None, "test-buffer")
    assert next(thread for thread in threading.enumerate() if thread.name == "test-buffer").daemon
    assert buffer.put(3, 1) and buffer.flush(None) and len(seen) == 4
    assert seen[3][1] in (None, math.inf)


def test_bound() -> None:
    """What would exceed the capacity is refused, and accepted again once there is room."""
    hold, taken = threading.Event(), threading.Event()
    buffer: Buffer[int] = Buffer(_held(taken, hold), capacity=10)
    buffer.put(0, 1)
    assert taken.wait(5)
    assert [buffer.put(1, 6), buffer.put(2, 6), buffer.put(3, 4)] == [True, False, True]
    hold.set()
    assert buffer.flush(5) and buffer.put(4, 10)


def test_flush_ends_in_time() -> None:
    """A flush that has to wait for a stuck consumer gives up in its time."""
    hold, taken = threading.Event(), threading.Event()
    buffer: Buffer[int] = Buffer(_held(taken, hold))
    buffer.put(0, 1)
    assert taken.wait(5)
    began = time.monotonic()
    assert not buffer.flush(0.1)
    assert time.monotonic() - began < 60
    hold.set()


def test_failing_consumer(contained: list[guard.Swallowed]) -> None:
    """An item whose consumption fails costs itself only."""
    seen: list[int] = []

    def consume(item: int, until: float | None) -> None:
        if item == 1:
            raise ValueError(item)
        seen.append(item)

    buffer: Buffer[int] = Buffer(consume)
    for item in range(3):
        buffer.put(item, 1)
    assert buffer.flush(5)
    assert seen == [0, 2]
    assert [(error.place, error.kind) for error in contained] == [("span hand-over", "ValueError")]
    contained.clear()


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can start, items wait for the next flush, and a later item tries again."""
    seen: list[int] = []
    buffer: Buffer[int] = Buffer(lambda item, until: seen.append(item))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
        assert buffer.put(0, 1)
    assert buffer.flush(1) and seen == [0]
    assert buffer.put(1, 1) and _until(lambda: seen == [0, 1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork() -> None:
    """A forked child starts empty and works, though the parent was in the middle of an item."""
    hold = threading.Event()
    seen: list[int] = []

    def consume(item: int, until: float | None) -> None:
        seen.append(item)
        if item == 0:
            hold.wait(5)

    buffer: Buffer[int] = Buffer(consume)
    for item in (0, 1):
        buffer.put(item, 1)
    assert _until(lambda: seen == [0])
    child = os.fork()
    if child == 0:
        good = buffer.put(7, 1) and buffer.flush(3) and seen == [0, 7]
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hold.set()
    assert buffer.flush(5) and seen == [0, 1]


def test_a_flush_tells_the_one_at_work() -> None:
    """While ``flush`` waits for the item in progress, its consumer can see that, and only then."""
    seen: list[bool] = []
    begun, go = threading.Event(), threading.Event()

    def consume(item: str, until: float | None) -> None:
        seen.append(buffer.awaited)
        begun.set()
        assert go.wait(30)
        while not buffer.awaited:
            time.sleep(0.001)
        seen.append(buffer.awaited)

    buffer: Buffer[str] = Buffer(consume)
    buffer.put("slow", 1)
    assert begun.wait(30)
    go.set()
    assert buffer.flush(30)
    assert (seen, buffer.awaited) == ([False, True], False)


def test_what_is_first_comes_before_the_rest() -> None:
    """Items put first are consumed in their own order, before all others that wait."""
    seen: list[str] = []
    taken, hold = threading.Event(), threading.Event()

    def consume(item: str, until: float | None) -> None:
        seen.append(item)
        taken.set()
        hold.wait(30)

    buffer: Buffer[str] = Buffer(consume)
    buffer.put("held", 1)
    assert taken.wait(30)
    buffer.put("detail", 1)
    assert buffer.put_first("end 1") and buffer.put_first("end 2")
    hold.set()
    assert buffer.flush(30)
    assert seen == ["held", "end 1", "end 2", "detail"]


def test_nothing_is_put_first_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can start, the caller keeps the item; a full queue refuses it as well."""
    buffer: Buffer[int] = Buffer(lambda item, until: None, capacity=2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
        assert not buffer.put_first(0)
    hold, taken = threading.Event(), threading.Event()
    full: Buffer[int] = Buffer(_held(taken, hold), capacity=2)
    full.put(0, 1)
    assert taken.wait(30)
    assert [full.put_first(number) for number in range(3)] == [True, True, False]
    hold.set()
    assert full.flush(30)


def test_few_wait_first() -> None:
    """What is to come soon does not wait behind many others: the caller keeps it."""
    hold, taken = threading.Event(), threading.Event()
    buffer: Buffer[int] = Buffer(_held(taken, hold))
    buffer.put(0, 1, hurry=True)
    assert taken.wait(30)
    assert sum(buffer.put_first(number) for number in range(100)) == MOST_FIRST
    hold.set()
    assert buffer.flush(30)


def test_a_burst_wakes_the_thread_once() -> None:
    """Items wait for others, so that the thread takes them together; what is in a hurry does not."""
    seen: list[tuple[str, int]] = []

    def consume(item: str, until: float | None) -> None:
        seen.append((item, len(buffer._items)))

    buffer: Buffer[str] = Buffer(consume)
    for number in range(3):
        buffer.put(str(number), 1)
    assert _until(lambda: len(seen) == 3)
    assert seen == [("0", 2), ("1", 1), ("2", 0)]


def test_at_once_not_inside_another_item() -> None:
    """An item is consumed on the calling thread unless another one is being consumed there."""
    consumed: list[str] = []
    buffer: Buffer[str]

    def consume(item: str, until: float | None) -> None:
        consumed.append(f"{item} {threading.current_thread().name}")
        if item == "first":
            assert not buffer.consume_now("inside", 1)

    buffer = Buffer(consume)
    here = threading.current_thread().name
    assert buffer.consume_now("first", 1)
    assert buffer.consume_now("second", 1)
    assert consumed == [f"first {here}", f"second {here}"]


def test_at_once_not_beside_what_another_thread_consumes() -> None:
    """Afterwards again."""
    begun, go_on = threading.Event(), threading.Event()

    def consume_slowly(item: str, until: float | None) -> None:
        begun.set()
        go_on.wait(10)

    buffer: Buffer[str] = Buffer(consume_slowly)
    assert buffer.put("slow", 1)
    assert begun.wait(10)
    assert not buffer.consume_now("later", 1)
    go_on.set()
    assert buffer.flush(10)
    assert buffer.consume_now("now", 1)


def test_at_once_after_a_short_item_that_another_thread_consumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has just woken up, or lost its core while it consumes, does not make others queue what belongs to their call."""
    begun, go_on, consumed = threading.Event(), threading.Event(), []

    def consume(item: str, until: float | None) -> None:
        if item == "short":
            begun.set()
            go_on.wait(10)
        consumed.append(item)

    buffer: Buffer[str] = Buffer(consume)
    assert buffer.put("short", 1)
    assert begun.wait(10)
    monkeypatch.setattr(buffers, "NOW_WAIT", 10.0)
    release = threading.Timer(0.05, go_on.set)
    release.start()
    assert buffer.consume_now("now", 1)
    release.join()
    assert consumed == ["short", "now"]


def test_at_once_after_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order; not at all behind much."""
    monkeypatch.setattr(buffers, "LINGER", 3600.0)
    consumed: list[str] = []
    buffer: Buffer[str] = Buffer(lambda item, until: consumed.append(item))
    assert buffer.put("first", 1)
    assert buffer.consume_now("second", 1)
    assert consumed == ["first", "second"]
    assert buffer.put("much", 1000)
    assert not buffer.consume_now("later", 1)
    assert consumed == ["first", "second"]
    assert buffer.flush(10)
