"""Containment of our own errors: telemetry may fail, the user's program may not.

Every function that torch, transformers, OpenTelemetry or a thread of ours calls is wrapped here, once, at the boundary. An
``Exception`` of ours is logged once per place and kind, counted, and dropped. The model's own exceptions never pass through
guarded code, and ``BaseException`` (Ctrl-C, exit, cancellation) is never caught.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "Swallowed", "ask", "contain", "count", "error_counts", "guarded", "has_attribute", "observe", "read_attribute", "read_attributes",
    "report",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("inferspan")
_lock = threading.Lock()
_counts: dict[str, int] = {}
_logged: set[tuple[str, str]] = set()
_observers: list[Callable[[Swallowed], None]] = []
_MISSING = object()


def _forked() -> None:
    """Reset the counts in a forked child: its metrics cover the child only."""
    global _lock
    _lock = threading.Lock()
    _counts.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Swallowed(Exception):
    """An error of ours that was contained, as text: keeping the exception would keep its frames and their tensors alive."""

    def __init__(self, place: str, kind: str, detail: str) -> None:
        super().__init__(f"{place}: {kind}\n{detail}")
        self.place = place
        self.kind = kind


def report(place: str, error: Exception, *, reason: str = "") -> None:
    """Count a contained error, and log it unless this place has failed in this way before.

    Args:
        place: what failed.
        error: the exception.
        reason: text for the log where the exception's own text may be shown.
    """
    kind = type(error).__name__
    with _lock:
        _counts[place] = _counts.get(place, 0) + 1
        first = (place, kind) not in _logged
        _logged.add((place, kind))
    if _observers:
        swallowed = Swallowed(place, kind, traceback.format_exc())
        for observer in list(_observers):
            observer(swallowed)
    if first:
        # The exception's own text may quote the user's inputs, so it goes to the debug level only.
        label = f"{kind}: {reason}" if reason else kind
        try:
            _log.warning("%s failed (%s); your program is not affected, further failures here are only counted", place, label)
            _log.debug("%s: %s", place, traceback.format_exc())
        except Exception:
            pass  # of a log handler or filter of the program's


def count(place: str) -> None:
    """Count a failure that raised no exception, or that another module has logged."""
    with _lock:
        _counts[place] = _counts.get(place, 0) + 1


class _Containment:
    """See ``contain``. It has no state of a block, so blocks may share one."""

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        report(self._place, error)
        return True


@functools.cache
def contain(place: str) -> _Containment:
    """Run a block of our own code; an ``Exception`` from it is reported under ``place`` and dropped.

    Args:
        place: what fails then, one of few.
    """
    return _Containment(place)


def guarded(place: str) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Decorate a function of ours that third-party code calls; after a contained error it returns ``None``."""

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                report(place, error)
                return None

        return call

    return decorate


def read_attribute(owner: Any, name: str, default: Any = None) -> Any:
    """An attribute of an object of the program's; ``default`` if it has none, or if reading it raises.

    A property of a model or configuration may run any code of the program's. An error in it is no error of ours, so it is not counted.
    """
    try:
        return getattr(owner, name, default)
    except Exception:
        return default


def read_attributes(owner: Any, *names: str) -> tuple[Any, ...]:
    """Several attributes in one call, as ``read_attribute`` reads each: ``None`` for one that cannot be read."""
    found = []
    for name in names:
        try:
            found.append(getattr(owner, name, None))
        except Exception:
            found.append(None)
    return tuple(found)


def has_attribute(owner: Any, name: str) -> bool:
    """Whether an object of the program's has an attribute that can be read."""
    return read_attribute(owner, name, _MISSING) is not _MISSING


def ask(owner: Any, name: str, **arguments: Any) -> Any:
    """What a method of an object of the program's returns; ``None`` if it has none, or if reading or calling it raises."""
    method = read_attribute(owner, name)
    try:
        return method(**arguments) if callable(method) else None
    except Exception:
        return None


def error_counts() -> dict[str, int]:
    """Number of contained errors by place since the process started."""
    with _lock:
        return dict(_counts)


@contextmanager
def observe(observer: Callable[[Swallowed], None]) -> Iterator[None]:
    """Hand every contained error to ``observer`` as well; our tests fail on those that they did not expect."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
