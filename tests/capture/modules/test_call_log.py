"""The log of a request in C and in Python: the same rows whatever happens, and nothing kept longer than needed."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from inferspan.records import ModuleColumns
from tests.capture.modules.recorders import IMPLEMENTATIONS, IN_C_CODE, IN_PYTHON, INFOS, Implementation, Thing, answer_of, in_c, rows_of


def _told(log: Any, seed: int) -> list[Any]:
    """What 400 random calls of a log return, and its state after each."""
    draw, seen, moment = random.Random(seed), [], 0
    for _ in range(400):
        moment += draw.randrange(1, 9)
        info, now = draw.choice(INFOS), moment
        shape = (draw.choice(((1, 2), (3,))), "float")
        calls: list[tuple[int, Callable[[], Any]]] = [
            (12, lambda info=info, now=now, shape=shape: log.enter(info, (shape,), now)),  # type: ignore[misc]
            (10, lambda now=now, shape=shape: log.leave(now, (shape,), None, draw.choice((None, 0, 7)))),  # type: ignore[misc]
            (2, lambda now=now: log.leave(now, failure="ValueError")),  # type: ignore[misc]
            (3, lambda info=info, now=now: log.reach(info, now)),  # type: ignore[misc]
            (1, lambda info=info, now=now: log.reach(info, now, "OSError")),  # type: ignore[misc]
            (1, lambda now=now: log.begun_before(now - draw.randrange(200))),  # type: ignore[misc]
            (1, lambda: rows_of(log)),
            (1, log.discard),
        ]
        (call,) = draw.choices([call for _, call in calls], [weight for weight, _ in calls])
        seen.append((answer_of(call), log.calls_left, log.missed, log.count, log.open_calls, log.recorded))
    return [*seen, rows_of(log)]


@in_c
@pytest.mark.parametrize("seed", range(20))
def test_both_logs_do_the_same(seed: int) -> None:
    """Entries, exits, failures and cuts in any order, unbalanced ones as well."""
    assert _told(IN_C_CODE.log(), seed) == _told(IN_PYTHON.log(), seed)


INNER = (1, 0, INFOS[1], 2**40, 2**40 + 7, (), ("out",), None, 3)
OUTER = (0, -1, INFOS[0], 10, 2**62, ("in",), (), "KeyError", None)


def _log_of_two_calls(implementation: Implementation) -> Any:
    """A log with two ended calls, ``INNER`` inside ``OUTER``, and room for three more."""
    log = implementation.log()
    log.calls_left = 5
    log.enter(INFOS[0], ("in",), 10)
    log.enter(INFOS[1], (), 2**40)
    log.leave(2**40 + 7, ("out",), None, 3)
    log.leave(2**62, failure="KeyError")
    return log


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rows_come_in_the_order_in_which_calls_ended(implementation: Implementation) -> None:
    """The rows of a pass have the fields of ``ModuleCall``."""
    calls = _log_of_two_calls(implementation).cut()
    assert [*calls.rows()] == [INNER, OUTER]
    assert len(calls) == 2


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_columns_are_one_list_for_each_field(implementation: Implementation) -> None:
    """The columns of a pass are named, and lists."""
    columns = _log_of_two_calls(implementation).cut().columns()
    assert columns == ModuleColumns(*map(list, zip(INNER, OUTER, strict=True)))
    assert type(columns) is ModuleColumns


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_log_counts_its_calls(implementation: Implementation) -> None:
    """Each call takes one of the places that the pass has, and gets the next number."""
    log = _log_of_two_calls(implementation)
    assert (log.calls_left, log.count, log.recorded, log.open_calls) == (3, 2, 2, 0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_log_that_was_cut_begins_anew(implementation: Implementation) -> None:
    """The calls of a pass are handed out once; a pass without calls has no rows and empty columns."""
    log = _log_of_two_calls(implementation)
    log.cut()
    assert log.recorded == 0
    nothing = log.cut()
    assert [*nothing.rows()] == []
    assert nothing.columns() == ModuleColumns(*([] for _ in INNER))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_exit_without_an_entry_raises(implementation: Implementation) -> None:
    """The log goes on after it."""
    log = implementation.log()
    assert answer_of(lambda: log.leave(1)) is IndexError
    log.enter(INFOS[0], (), 1)
    log.leave(2)
    assert [row[2] for row in rows_of(log)] == [INFOS[0]]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_call_that_is_not_open_cannot_be_reached(implementation: Implementation) -> None:
    """Nothing is ended then."""
    log = implementation.log()
    assert log.reach(INFOS[0], 1) == -1
    log.enter(INFOS[0], (), 1)
    assert log.reach(INFOS[1], 2) == -1
    assert log.open_calls == 1


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nothing_is_kept_by_a_log(implementation: Implementation) -> None:
    """Descriptions go with the pass, whether it was cut, discarded or never ended; a log in a cycle is collected."""
    things = [Thing() for _ in range(6)]
    seen = [weakref.ref(thing) for thing in things]
    log = implementation.log()
    for thing in things[:3]:
        log.enter(INFOS[0], (thing,), 1)
    log.leave(2, (things[3],))
    calls = log.cut()
    things[4].around = log  # type: ignore[attr-defined]
    log.engine, log.clock = things[4], things[5]
    del things, thing
    assert all(reference() is not None for reference in seen)
    del calls
    assert [reference() is None for reference in seen] == [False, False, True, True, False, False]
    log.discard()
    assert [reference() is None for reference in seen] == [True] * 4 + [False] * 2
    del log
    gc.collect()
    assert all(reference() is None for reference in seen)
