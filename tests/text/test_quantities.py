"""Numbers with units, and changes."""

from __future__ import annotations

import pytest

from inferspan.text.quantities import bytes_text, change_text, interval_text, seconds_text


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "-"), (0.0, "0 s"), (5.0, "5.00 s"), (0.0123, "12.3 ms"), (2.5e-6, "2.50 us"), (3e-8, "30.0 ns"), (1234.0, "1,234 s")],
)
def test_a_duration_has_three_digits(seconds: float | None, expected: str) -> None:
    """In the unit in which it is 1 or more."""
    assert seconds_text(seconds) == expected


@pytest.mark.parametrize(("size", "expected"), [(None, "-"), (12, "12 B"), (1536, "1.50 KiB"), (5 * 2**40, "5.00 TiB"), (5000 * 2**40, "5,000 TiB")])
def test_an_amount_of_memory_is_in_binary_units(size: float | None, expected: str) -> None:
    """Whole bytes, else three digits."""
    assert bytes_text(size) == expected


@pytest.mark.parametrize(
    ("ratio", "expected"), [(1.033, "+3.3 %"), (0.5, "-50.0 %"), (0.99999, "+0.0 %"), (9.5, "+850.0 %"), (12.0, "x 12.0")]
)
def test_a_ratio_is_a_change_in_percent(ratio: float, expected: str) -> None:
    """A large one is a factor, and none is minus zero."""
    assert change_text(ratio) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.98, 1.03, "-2.0 % to +3.0 %"), (0.0004, 0.0006, "-100.0 % to -99.9 %"), (1.5, 2000.0, "+50.0 % to x 2,000"), (1e-17, 3.9e17, "any change")],
)
def test_an_interval_that_holds_everything_has_no_ends(low: float, high: float, expected: str) -> None:
    """Two changes, unless they are numbers of no use."""
    assert interval_text(low, high) == expected
