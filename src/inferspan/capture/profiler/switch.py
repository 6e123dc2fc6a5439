"""Switches that open profiler windows in a running service: a setting for the first requests, and a signal.

The signal's handler is put in place on the main thread, over a handler of Python's, which it calls in turn; it only sets a flag, and the
next forward pass does the rest. It holds the model's windows weakly, and goes with ``uninstrument()``.
"""

from __future__ import annotations

import logging
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from inferspan.guard import contain
from inferspan.settings import Settings

from .window import Window, Windows

__all__ = ["install_switches"]

_log = logging.getLogger("inferspan")
STEPS = 3
"""Passes of a window that a signal opens, unless a setting says otherwise."""


class _Handler:
    """A signal handler that opens a window; see the module."""

    def __init__(self, number: int, windows: Windows, make: Callable[[], Window]) -> None:
        self._number = number
        self._windows = weakref.ref(windows)
        self._make = make
        self._previous: Any = signal.getsignal(number)
        signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Called by Python between two instructions of the main thread."""
        windows = self._windows()
        if windows is None or windows.is_shut:
            self.remove()
        else:
            with contain("profiler signal"):
                windows.ask(self._make)
        if callable(self._previous):
            self._previous(number, frame)

    def remove(self) -> None:
        """Put the previous handler back; where that cannot be done now, the next signal does it, and opens no window."""
        current: Any = signal.getsignal(self._number)
        if threading.current_thread() is threading.main_thread() and current is self:
            signal.signal(self._number, self._previous)


def install_switches(windows: Windows, settings: Settings) -> Callable[[], None]:
    """Open a window at once, or whenever the signal of the settings comes; returns what takes the switch off.

    Args:
        windows: those of the model.
        settings: ``profile_steps``, ``profile_signal`` and ``profile_cpu_ops``.
    """
    cpu_ops = settings.profile_cpu_ops
    if settings.profile_signal is None:
        if settings.profile_steps:
            windows.open(Window(windows, settings.profile_steps, cpu_ops=cpu_ops, skip_first=True))
        return lambda: None
    number = signal.Signals[settings.profile_signal]
    steps = settings.profile_steps or STEPS
    if threading.current_thread() is not threading.main_thread():
        _log.warning("profile_signal=%s has no effect: only the main thread can wait for signals", settings.profile_signal)
        return lambda: None
    if signal.getsignal(number) is None:
        _log.warning("profile_signal=%s has no effect: something outside of Python handles it", settings.profile_signal)
        return lambda: None
    # Of the windows only a weak reference is kept: a handler lives as long as the process.
    reference = weakref.ref(windows)
    return _Handler(number, windows, lambda: Window(reference(), steps, cpu_ops=cpu_ops)).remove
