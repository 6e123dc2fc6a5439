"""Values that wait for the hand-over thread or the next collection, whichever comes first."""

from __future__ import annotations

import threading
import time
from typing import Any

from inferspan.metrics.waiting import Waiting


class _Values:
    """What has been recorded, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def record(self, *value: Any) -> None:
        self.seen.append(value)


def _waiting(*, collects: bool = True) -> Waiting:
    waiting = Waiting(lambda: collects)
    waiting.look()
    return waiting


def test_values_wait_in_order() -> None:
    """Nothing is recorded before somebody settles, and then all is, in order."""
    waiting, values = _waiting(), _Values()
    for number in range(70):
        waiting.put(values.record, number)
    assert values.seen == [] and len(waiting) == 70
    waiting.settle()
    assert values.seen == [(number,) for number in range(70)]
    assert len(waiting) == 0


def test_others_can_have_the_interpreter_in_between() -> None:
    """A value that takes long is followed by a pause, unless it was the last one."""
    waiting, values = _waiting(), _Values()

    def slow(number: int) -> None:
        time.sleep(0.001)
        values.record(number)

    for number in range(3):
        waiting.put(slow, number)
    pauses: list[int] = []
    waiting.settle(lambda: pauses.append(len(values.seen)))
    assert pauses == [1, 2]


def test_nothing_waits_where_no_collection_asks() -> None:
    """Values and sums are recorded at once."""
    waiting, values = _waiting(collects=False), _Values()
    waiting.put(values.record, 1)
    waiting.add(values.record, "overhead", 2.0)
    assert values.seen == [(1,), ("overhead", 2.0, {})]


def test_a_collection_records_values_and_sums() -> None:
    """Sums of all requests are one value, which follows the others, and begin anew afterwards."""
    waiting, values = _waiting(), _Values()
    waiting.add(values.record, "overhead", 2.0)
    waiting.put(values.record, 1)
    waiting.add(values.record, "overhead", 3.0)
    waiting.settle()
    assert values.seen == [(1,)]
    waiting.collect()
    waiting.collect()
    assert values.seen == [(1,), ("overhead", 5.0, {})]


def test_a_collection_waits_for_the_thread_that_records() -> None:
    """What another thread has taken and not recorded yet is recorded before the collection goes on."""
    waiting, values = _waiting(), _Values()
    inside, go = threading.Event(), threading.Event()

    def slow(*value: Any) -> None:
        inside.set()
        go.wait(10)
        values.record(*value)

    waiting.put(slow, 1)
    thread = threading.Thread(target=waiting.settle)
    thread.start()
    assert inside.wait(10)
    threading.Timer(0.05, go.set).start()
    waiting.collect()
    assert values.seen == [(1,)]
    thread.join()


def test_a_collection_inside_of_a_value() -> None:
    """Recording may ask for a collection on the same thread: it ends."""
    waiting, values = _waiting(), _Values()

    def collecting(*value: Any) -> None:
        waiting.collect()
        values.record(*value)

    waiting.put(collecting, 1)
    waiting.put(values.record, 2)
    waiting.settle()
    assert values.seen == [(2,), (1,)]


def test_a_forked_child_begins_without_values() -> None:
    """What waited in the parent is the parent's to record."""
    waiting, values = _waiting(), _Values()
    waiting.put(values.record, 1)
    waiting.add(values.record, "overhead", 2.0)
    waiting.renew()
    waiting.collect()
    assert values.seen == []
