"""What the first rank tells the others through the store, without a second process: two objects on one store are two ranks."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from torch import distributed

from inferspan import guard
from inferspan.capture.ranks.starts import MOST_MISSES, Starts

SECOND = 10**9
PATIENT = 30.0
"""Seconds; what is expected comes much earlier."""


class _Store:
    """A real store that notes which threads use it."""

    def __init__(self) -> None:
        module: Any = distributed
        self._store = module.HashStore()
        self.users: set[int] = set()

    def wait_for_entries(self, count: int) -> None:
        """Wait until the first rank has written so many."""
        until = time.monotonic() + PATIENT
        while not self._store.check(["model/last"]) or int(self._store.get("model/last")) < count:
            assert time.monotonic() < until
            time.sleep(0.01)

    def __getattr__(self, name: str) -> Any:
        self.users.add(threading.get_ident())
        return getattr(self._store, name)


@pytest.fixture
def store() -> _Store:
    """Common to both ranks."""
    return _Store()


@pytest.fixture
def ranks(store: _Store) -> tuple[Starts, Starts]:
    """The first rank, and another one."""
    return Starts(lambda: store, "model"), Starts(lambda: store, "model")


def test_a_rank_gets_the_text_of_the_request_that_runs_at_the_same_time(ranks: tuple[Starts, Starts]) -> None:
    """It began a little earlier."""
    first, other = ranks
    first.publish(10 * SECOND, "a b")
    assert other.expect(11 * SECOND)(PATIENT, 12 * SECOND) == "a b"


def test_the_store_is_used_on_a_thread_of_ours(ranks: tuple[Starts, Starts], store: _Store) -> None:
    """Never on the model's."""
    first, other = ranks
    first.publish(10 * SECOND, "a")(12 * SECOND)
    other.expect(10 * SECOND)(PATIENT, 12 * SECOND)
    assert store.users
    assert threading.get_ident() not in store.users


def test_a_request_that_had_ended_is_passed_over(ranks: tuple[Starts, Starts]) -> None:
    """This rank had not recorded it."""
    first, other = ranks
    first.publish(10 * SECOND, "missed")(12 * SECOND)
    first.publish(13 * SECOND, "a")
    assert other.expect(14 * SECOND)(PATIENT, 15 * SECOND) == "a"


def test_a_request_that_begins_later_is_left_for_the_next(ranks: tuple[Starts, Starts]) -> None:
    """The first rank had not recorded the one that was expected."""
    first, other = ranks
    first.publish(20 * SECOND, "a")
    assert other.expect(10 * SECOND)(0.1, 12 * SECOND) is None
    assert other.expect(19 * SECOND)(PATIENT, 21 * SECOND) == "a"


def test_a_rank_that_was_away_for_long_reads_the_latest(ranks: tuple[Starts, Starts], store: _Store) -> None:
    """Older entries have left the store."""
    first, other = ranks
    for number in range(1, 400):
        first.publish(number * SECOND, f"request {number}")(number * SECOND + SECOND // 2)
        if not number % 50 or number == 399:  # no more waits to be written than that
            store.wait_for_entries(2 * number)
    assert other.expect(399 * SECOND)(PATIENT, 400 * SECOND) == "request 399"


def test_a_store_that_is_gone_ends_it_without_an_error() -> None:
    """The job has ended; nobody waits, and nothing is counted."""

    def gone() -> Any:
        raise distributed.DistStoreError("connection reset") if hasattr(distributed, "DistStoreError") else RuntimeError("connection reset")

    before = dict(guard.error_counts())
    other = Starts(gone, "model")
    assert other.expect(SECOND)(PATIENT, 2 * SECOND) is None
    assert other.expect(3 * SECOND)(PATIENT, 4 * SECOND) is None
    assert dict(guard.error_counts()) == before


def test_after_some_requests_that_did_not_come_nothing_is_waited_for(ranks: tuple[Starts, Starts]) -> None:
    """A first rank that records nothing costs the others no time: the last call would be too long for any test."""
    _, other = ranks
    for number in range(MOST_MISSES):
        other.expect(number * SECOND)(0.05, number * SECOND + 1)
    assert other.expect(100 * SECOND)(3_600.0, 101 * SECOND) is None
