"""Containment: what is dropped, counted and logged, and what passes."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any

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


class _Broken(Exception):
    """A class whose module is no text."""


_Broken.__module__ = None  # type: ignore[assignment]


class _Asked:
    """A handler whose attributes raise."""

    def __call__(self, number: int, frame: Any) -> None:
        raise TimeoutError

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def _given_its_caller(frame: Any) -> None:
    raise ValueError


class _Lazy(asyncio.Future):
    """A property in C that raises what it was given."""

    late = property(asyncio.Future.result)


def _late() -> Any:
    loop = asyncio.new_event_loop()
    lazy = _Lazy(loop=loop)
    lazy.set_exception(_Broken())
    loop.close()
    return guard.read_attribute(lazy, "late", "default")


@pytest.mark.parametrize(
    "fail",
    [lambda: _boom(_Broken()), lambda: _given_its_caller(sys._getframe()), lambda: inspect.getouterframes(sys._getframe(), context="x")],  # type: ignore[arg-type]
    ids=["class without a module", "frame as an argument", "frame for the standard library"],
)
def test_what_is_no_signal(contained: list[guard.Swallowed], fail: Callable[[], object]) -> None:
    """Errors that only look like those of a handler are contained, also with a handler that raises when it is looked at."""
    before = signal.signal(signal.SIGINT, _Asked())
    try:
        with guard.contain("test of signals"):
            fail()
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(contained) == 1
    contained.clear()


def test_attributes_that_raise_from_c() -> None:
    """What a property of the program's raises is its own, whatever its class."""
    assert _late() == "default"
