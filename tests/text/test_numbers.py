"""Numbers with their nouns."""

import pytest

from inferspan.text.numbers import counted


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0 calls"), (1, "1 call"), (2, "2 calls"), (1_234_567, "1,234,567 calls")],
)
def test_a_noun_gets_an_s_unless_there_is_one_of_it(value: int, expected: str) -> None:
    """One call, and two calls."""
    assert counted(value, "call") == expected


def test_another_plural_can_be_given() -> None:
    """The verb changes with the noun."""
    assert (counted(1, "line is", "lines are"), counted(2, "line is", "lines are")) == ("1 line is", "2 lines are")
