"""Containment: what is dropped, counted and logged, and what passes."""

from __future__ import annotations

import logging

import pytest

from inferspan import guard


def _boom(error: BaseException) -> None:
    raise error


def test_contained_errors(contained: list[guard.Swallowed], caplog: pytest.LogCaptureFixture) -> None:
    """Errors are counted by place, logged once per place and kind without their text, and handed to observers as text."""
    place = "test of containment"
    with caplog.at_level(logging.DEBUG, "inferspan"):
        for error in (ValueError("secret"), ValueError("secret"), KeyError("secret")):
            with guard.contain(place):
                _boom(error)
        assert guard.guarded(place)(_boom)(OSError("secret")) is None
    assert guard.error_counts()[place] == 4
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.split(";")[0] for text in warnings] == [f"{place} failed ({kind})" for kind in ("ValueError", "KeyError", "OSError")]
    assert not any("secret" in text for text in warnings)
    assert [(error.place, error.kind) for error in contained] == [
        (place, kind) for kind in ("ValueError", "ValueError", "KeyError", "OSError")
    ]
    contained.clear()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_passes(kind: type[BaseException]) -> None:
    """What is no ``Exception`` is never caught, neither by a block nor by a decorated function."""
    with pytest.raises(kind), guard.contain("passing"):
        _boom(kind())
    with pytest.raises(kind):
        guard.guarded("passing")(_boom)(kind())


def test_results() -> None:
    """A decorated function that does not fail returns what it returns, under its own name."""

    def double(number: int) -> int:
        return 2 * number

    wrapped = guard.guarded("doubling")(double)
    assert (wrapped(4), wrapped.__name__) == (8, "double")
