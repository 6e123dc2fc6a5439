"""The span budget of a request: what it grants, thins and counts."""

from __future__ import annotations

import pytest

from inferspan.capture.budget import Budget


def test_steps_up_to_nine_tenths_then_every_second_fourth_eighth() -> None:
    """All steps get a span up to nine tenths of the budget, then with doubling gaps, and none beyond it."""
    budget = Budget(320)
    taken = [step for step in range(2000) if budget.take_step()]
    whole = 320 * 9 // 10 - 3
    assert taken[:whole] == list(range(whole))
    gaps = [after - before for before, after in zip(taken[whole:], taken[whole + 1 :], strict=False)]
    assert gaps[:6] == [2, 4, 4, 8, 8, 16]
    assert budget.spent + budget.dropped == 3 + 2000 and budget.spent <= 320


@pytest.mark.parametrize("total", [1, 2, 3, 4, 5, 9, 10, 100])
def test_never_exceeded(total: int) -> None:
    """Whatever is asked for, no more than the budget is granted, request and phases apart."""
    budget = Budget(total)
    for _ in range(50):
        room = budget.modules_allowed(7)
        budget.take_step()
        budget.spend(min(room, 7))
    assert budget.spent <= max(total, 3)


def test_first_pass_shows_what_fits_and_later_ones_are_whole() -> None:
    """The first pass gets the room there is, a later one all of its modules or none."""
    budget = Budget(20)
    assert budget.modules_allowed(100) == 20 * 9 // 10 - 3 - 1
    budget.take_step()
    budget.spend(5)
    assert budget.modules_allowed(8) == 8
    assert budget.modules_allowed(9) == 0


def test_plain_forward() -> None:
    """A plain forward pass has one span of its own and the rest for its modules."""
    budget = Budget(10, steps=False)
    assert budget.modules_allowed(50, whole=False) == 9
    budget.spend(9)
    budget.leave_out(41)
    assert (budget.spent, budget.dropped) == (10, 41)
