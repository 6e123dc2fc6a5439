"""The stack of calls on a thread, and exceptions reduced to text."""

from __future__ import annotations

import threading
import weakref

import torch

from inferspan.capture.budget import Budget
from inferspan.capture.call import Call, current
from inferspan.capture.failures import MAX_MESSAGE, error_type, failure_of
from inferspan.records import ModuleBatch, Phase, RequestEnd, Step


class Scope:
    """A request that keeps nothing."""

    recording = True

    def detail(self, records: list[Phase | Step | ModuleBatch]) -> None:
        """Forget them."""

    def end(self, end: RequestEnd) -> None:
        """Forget it."""


def _call() -> Call:
    call = Call(Scope(), start=0, offset=0, budget=Budget(10), outer=current.call)  # type: ignore[arg-type]
    call.push()
    return call


def _innermost() -> Call | None:
    return current.call


def test_stack_by_thread() -> None:
    """Calls nest on their thread; another thread sees none of them; popping takes what was left open above along."""
    outer, inner = _call(), _call()
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(current.call))
    thread.start()
    thread.join()
    assert seen == [None]
    assert [_innermost(), inner.outer] == [inner, outer]
    outer.pop(1)
    assert _innermost() is None
    inner.pop(2)
    assert _innermost() is None


class Odd(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_types() -> None:
    """Built-in classes are bare, others qualified."""
    assert [error_type(error) for error in (ValueError(), KeyboardInterrupt(), torch.OutOfMemoryError(), Odd())] == [
        "ValueError",
        "KeyboardInterrupt",
        "torch.OutOfMemoryError",
        f"{__name__}.Odd",
    ]


def test_text_without_values() -> None:
    """Printed tensors and lists of numbers, which are content, are cut out unless content may be recorded; the rest is bounded."""
    error = ValueError(f"bad {torch.arange(5)} and {list(range(9))} for layer 3")
    kept, cut = failure_of(error, content=True), failure_of(error, content=False)
    assert "0, 1, 2" in kept.message
    assert cut.message == "bad <values left out> and <values left out> for layer 3"
    assert len(failure_of(ValueError("x" * 10_000), content=True).message) == MAX_MESSAGE
    assert "cannot be read" in failure_of(Odd(), content=False).message


def test_nothing_is_kept() -> None:
    """The text holds neither the exception nor its frames."""
    tensor = torch.ones(2)
    reference = weakref.ref(tensor)
    try:
        held = tensor
        raise ValueError(held.shape)
    except ValueError as error:
        failure = failure_of(error, content=False)
    del tensor, held
    assert reference() is None and "test_nothing_is_kept" in failure.stacktrace
