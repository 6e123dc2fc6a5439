"""Stopping criteria that report: to the loop they are the user's own list."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList

from inferspan import guard
from inferspan.capture.generate.criteria import observe_criteria
from inferspan.capture.generate.tokens import Loop

IDS = torch.tensor([[5, 6], [5, 2]])


class Own(StoppingCriteria):
    """A criterion of the user's."""

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.tensor([False, True])


class Listener:
    """Takes what is reported."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[list[int]], list[bool]]] = []

    def choose(self, loop: Loop, input_ids: Any, done: Any) -> None:
        """Keep it."""
        self.seen.append((input_ids.tolist(), done.tolist()))


def _observe(*criteria: Any) -> tuple[Any, Loop, Listener]:
    loop, listener = Loop(), Listener()
    return observe_criteria(StoppingCriteriaList(criteria), loop, listener.choose), loop, listener


def test_reports_and_decides_as_before() -> None:
    """The decision is the list's own, and is reported with the ids."""
    observed, loop, listener = _observe(Own())
    assert observed(IDS, None).tolist() == [False, True]
    assert listener.seen == [([[5, 6], [5, 2]], [False, True])] and loop.custom
    assert isinstance(observed, StoppingCriteriaList) and len(observed) == 1


def test_length_and_end_tokens_are_not_custom() -> None:
    """Criteria that the result alone tells need no bookkeeping."""
    observed, loop, _ = _observe(MaxLengthCriteria(9), EosTokenCriteria(torch.tensor([2])))
    assert not loop.custom and observed.max_length == 9
    _, loop, _ = _observe(MaxLengthCriteria(9), Own())
    assert loop.custom


def test_users_list_is_untouched_and_copies_are_plain() -> None:
    """The caller's list stays what it is, and copies and pickles of ours are plain lists."""
    mine = StoppingCriteriaList([Own()])
    observed = observe_criteria(mine, Loop(), Listener().choose)
    assert type(mine) is StoppingCriteriaList and observed is not mine and list(observed) == list(mine)
    assert {type(copy.deepcopy(observed)), type(pickle.loads(pickle.dumps(observed)))} == {StoppingCriteriaList}


def test_anything_else_comes_back() -> None:
    """What is no criteria list is not replaced."""
    odd = [Own()]
    assert observe_criteria(odd, Loop(), Listener().choose) is odd
    assert observe_criteria(None, Loop(), Listener().choose) is None


def test_errors(contained: list[guard.Swallowed]) -> None:
    """A criterion's own error passes; one of ours is contained and the decision stands."""

    class Broken(Own):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            raise LookupError("theirs")

    observed, _, listener = _observe(Broken())
    with pytest.raises(LookupError, match="theirs"):
        observed(IDS, None)
    assert listener.seen == []
    observed, _, listener = _observe(Own())
    listener.seen = None  # type: ignore[assignment]
    assert observed(IDS, None).tolist() == [False, True]
    assert [error.place for error in contained] == ["stopping criteria"]
    contained.clear()
