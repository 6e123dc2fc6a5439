"""Containment of our own errors: telemetry may fail, the user's program may not.

Every function that torch, transformers, OpenTelemetry or a thread of ours calls is wrapped here, once, at the boundary. An
``Exception`` of ours is logged once per place and kind, counted, and dropped. The model's own exceptions never pass through
guarded code, and ``BaseException`` (Ctrl-C, exit, cancellation) is never caught. Nor is what a signal handler of the program raises, such
as a time limit: Python runs handlers between any two instructions, ours too, so ``pass_on`` tells it from an error of ours.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal.getsignal() makes an enum of each answer
import functools
import inspect
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
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
_ASKING = frozenset({"read_attribute", "read_attributes", "ask"})
"""Functions that run code of the program, also by functions in C that raise what it has given them."""
_SIGNALS = frozenset(int(number) for number in signal.valid_signals())
_STARRED = inspect.CO_VARARGS
_FRAMES = 64
"""Frames of a traceback that are looked at; a handler runs right above the code that it has interrupted."""


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
        except Exception as failure:  # of a log handler or filter of the program's
            pass_on(failure)


def pass_on(error: BaseException) -> None:
    """Raise an exception that has only come through our code: of a signal handler of the program, or one that another thread has put here.

    A handler is known by its code, or by its arguments: a signal, and the frame that it has interrupted. What ``PyThreadState_SetAsyncExc``
    raises leaves no frame; it is taken for that where a line of ours raises a class of the program's.

    Raises:
        BaseException: ``error`` itself.
    """
    try:
        foreign = _of_a_handler(error) or _from_a_thread(error)
    except Exception:  # of what the program has put into its handlers and classes
        foreign = False
    if foreign:
        raise error


def _of_a_handler(error: BaseException) -> bool:
    trace = error.__traceback__
    if trace is None or threading.current_thread() is not threading.main_thread():
        return False
    handlers, left = _handlers(), _FRAMES
    while trace is not None and left:
        frame = trace.tb_frame
        if frame.f_code in handlers or _took_a_signal(frame):
            return True
        trace, left = trace.tb_next, left - 1
    return False


def _handlers() -> set[CodeType]:
    """The code of the signal handlers that the program has installed."""
    found = set()
    for number in _SIGNALS:
        handler: Any = _signal.getsignal(number)
        if handler is None or isinstance(handler, int):
            continue
        if isinstance(handler, functools.partial):
            handler = handler.func
        # Of a method, a function or an object that can be called; no attribute of the object itself is asked for.
        function = getattr(handler, "__func__", None) if isinstance(handler, MethodType) else handler
        if not isinstance(function, FunctionType):
            function = getattr(type(function), "__call__", None)  # noqa: B004
        if isinstance(function, FunctionType) and not function.__code__.co_filename.startswith(_PACKAGE):
            found.add(function.__code__)
    return found


def _took_a_signal(frame: FrameType) -> bool:
    """Whether a function was given a signal and the frame that has called it: what Python gives a handler."""
    caller, code = frame.f_back, frame.f_code
    starred = bool(code.co_flags & _STARRED)
    # Not a frame of ours: Python keeps what ``f_locals`` has read with the frame, the exception itself among it.
    if caller is None or code.co_filename.startswith(_PACKAGE) or not (code.co_argcount in (2, 3) or starred):
        return False
    values = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    if starred:
        rest = frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        values += rest if isinstance(rest, tuple) else ()
    number = values[-2] if len(values) > 1 else None
    return isinstance(number, int) and number in _SIGNALS and values[-1] is caller


def _from_a_thread(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = None if trace is None else trace.tb_frame.f_code
    if code is None or not code.co_filename.startswith(_PACKAGE) or code.co_name in _ASKING:
        return False
    name = type(error).__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    # Classes of libraries in C are raised without a frame of theirs.
    of_python = name == "__main__" or (isinstance(file, str) and file.endswith(".py"))
    return of_python and name.partition(".")[0] not in _RAISED_BY_OTHERS


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
