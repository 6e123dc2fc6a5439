"""Containment of our own errors: telemetry may fail, the user's program may not.

Every function that torch, transformers, OpenTelemetry or a thread of ours calls is wrapped here, once, at the boundary. An
``Exception`` of ours is logged once per place and kind, counted, and dropped. The model's own exceptions never pass through
guarded code, and ``BaseException`` (Ctrl-C, exit, cancellation) is never caught. Nor is what a signal handler of the program raises, such
as a time limit: Python runs handlers between any two instructions, ours too, so ``pass_on`` tells it from an error of ours.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "Swallowed", "ask", "contain", "count", "error_counts", "guarded", "has_attribute", "observe", "pass_on", "read_attribute",
    "read_attributes", "report",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("inferspan")
_lock = threading.Lock()
_counts: dict[str, int] = {}
_logged: set[tuple[str, str]] = set()
_observers: list[Callable[[Swallowed], None]] = []
_MISSING = object()
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_RAISED_BY_OTHERS = sys.stdlib_module_names | {
    "google", "grpc", "inferspan", "numpy", "opentelemetry", "psutil", "pynvml", "requests", "safetensors", "tokenizers", "torch",
    "transformers", "triton", "urllib3",
}  # fmt: skip
"""Packages whose exceptions a line of ours may raise without a frame of theirs: what is called there is code in C."""


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
        error: the exception, which is handled now.
        reason: text for the log where the exception's own text may be shown.

    Raises:
        Exception: ``error`` itself, if it is none of ours: see ``pass_on``.
    """
    pass_on(error)
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


def pass_on(error: BaseException) -> None:
    """Raise an exception that has only come through our code: of a signal handler of the program, or one that another thread has put here.

    A handler is known by its code, or by an argument that is the frame it has interrupted. What ``PyThreadState_SetAsyncExc`` raises leaves
    no frame; it is taken for that where a line of ours raises a class that nothing called from there has.

    Raises:
        BaseException: ``error`` itself.
    """
    trace, last = error.__traceback__, None
    if trace is None:
        return
    on_main = threading.current_thread() is threading.main_thread()
    handlers = _handlers() if on_main else frozenset()
    while trace is not None:
        last = trace.tb_frame
        if on_main and (last.f_code in handlers or _took_its_caller(last)):
            raise error
        trace = trace.tb_next
    package = type(error).__module__.partition(".")[0]
    if last is not None and last.f_code.co_filename.startswith(_PACKAGE) and package not in _RAISED_BY_OTHERS:
        raise error


def _handlers() -> frozenset[CodeType]:
    """The code of the signal handlers that the program has installed."""
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if callable(handler):
            handler = handler.func if isinstance(handler, functools.partial) else handler
            # Of a function, a method or an object with ``__call__``.
            for function in (handler, getattr(handler, "__func__", None), vars(type(handler)).get("__call__")):
                code = getattr(function, "__code__", None)
                if isinstance(code, CodeType) and not code.co_filename.startswith(_PACKAGE):
                    found.add(code)
    return frozenset(found)


def _took_its_caller(frame: FrameType) -> bool:
    """Whether an argument of a function is the frame that has called it: what Python gives a signal handler."""
    caller, code = frame.f_back, frame.f_code
    if caller is None or code.co_filename.startswith(_PACKAGE):
        return False
    given = code.co_varnames[: code.co_argcount + bool(code.co_flags & 4)]
    values = [frame.f_locals.get(name) for name in given]
    return any(value is caller or (isinstance(value, tuple) and any(one is caller for one in value)) for value in values)


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
        report(self._place, error)  # raises what is none of ours
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
    except Exception as error:
        pass_on(error)
        return default


def read_attributes(owner: Any, *names: str) -> tuple[Any, ...]:
    """Several attributes in one call, as ``read_attribute`` reads each: ``None`` for one that cannot be read."""
    found = []
    for name in names:
        try:
            found.append(getattr(owner, name, None))
        except Exception as error:
            pass_on(error)
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
    except Exception as error:
        pass_on(error)
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
