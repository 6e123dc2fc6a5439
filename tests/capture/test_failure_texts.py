"""What an exception's text may say when content capture is off."""

from __future__ import annotations

import time

import pytest

from inferspan.capture.failures import MAX_MESSAGE, failure_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ids [101, 102, 103, 104]", "ids <values left out>"),
        ("ids (101, 102, 103, 104)", "ids <values left out>"),
        ("ids 101 102 103 104", "ids <values left out>"),
        ("rows [[44  3 48]\n [1 2 3]]", "rows [<values left out>"),
        ("got tensor([[1, 2]], device='cuda:0')", "got <values left out>"),
        ("got tensor([[1, 2", "got <values left out>"),
        ("shapes (3x4 and 5x6), size 3 at dimension 1", "shapes (3x4 and 5x6), size 3 at dimension 1"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
    ],
)
def test_values_are_cut_out(text: str, expected: str) -> None:
    """Printed tensors and rows of numbers are cut out of message and stack trace, shapes and sentences stay."""
    failure = failure_of(ValueError(text), content=False)
    assert (failure.type, failure.message) == ("ValueError", expected)
    assert failure.stacktrace.rstrip().endswith(expected)
    assert failure_of(ValueError("ids [1, 2, 3, 4]"), content=True).message == "ids [1, 2, 3, 4]"


@pytest.mark.parametrize("text", [" " * 10**6, "1" * 10**6, "tensor(" * 10**5, "1 1 1 " + ", " * 10**6, "[ " * 10**6, "1 " * 10**6])
def test_long_texts_cost_little(text: str) -> None:
    """No text makes the search slow, and what is kept is bounded."""
    began = time.perf_counter()
    failure = failure_of(ValueError(text), content=False)
    # A search that goes back for each character would take hours.
    assert time.perf_counter() - began < 60
    assert len(failure.message) <= MAX_MESSAGE
