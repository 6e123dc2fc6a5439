"""Setting ``live``: figures of this process on standard error at an interval, while something is instrumented.

In come functions that return the newest readings and totals, and the sessions that are open. Out goes a block of text: a header with the
session's name and id, requests, a line for each GPU, one for the CPU; in a frame of rich on a terminal, where rich is installed, else as
plain lines. Blocks follow each other: to redraw one in place would erase lines that the program prints. The thread ends with the last one
who shows something; a forked child has none. Nothing raises.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TextIO

from inferspan.guard import contain
from inferspan.metrics.summary import Totals
from inferspan.records import Sample

from .machine import cleaned, machine_lines, machine_of

__all__ = ["Display"]

_MOST_MODELS = 8

Readings = Callable[[], Sequence[Sample]]
_displays: weakref.WeakSet[Display] = weakref.WeakSet()


class Display:
    """The display of one process.

    Args:
        out: where it prints; default standard error as it is at the moment.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._sessions: dict[object, tuple[str, str]] = {}
        self._reset()
        _displays.add(self)
        atexit.register(self._stop)

    def _reset(self) -> None:
        """At first, and in a forked child, where the thread does not exist and the lock may be held for ever."""
        self._lock = threading.Lock()
        self._shown: dict[object, tuple[Readings | None, Callable[[], Totals] | None]] = {}
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, interval: float, readings: Readings | None, totals: Callable[[], Totals] | None) -> Callable[[], None]:
        """Show something; returns what ends that.

        Args:
            interval: seconds between two prints; that of the first one who shows something counts.
            readings: returns the newest readings of the machine without waiting.
            totals: returns the totals of the requests on a model.
        """
        key = object()
        with self._lock:
            self._shown[key] = (readings, totals)
            if self._thread is None:
                self._done = done = threading.Event()
                thread = threading.Thread(target=self._run, args=(interval, done), name="inferspan-display", daemon=True)
                with contain("live display"):
                    thread.start()
                    self._thread = thread

        def end() -> None:
            self._stop(key)

        return end

    def session(self, name: str, identity: str) -> Callable[[], None]:
        """A session has begun; returns what is called when it has ended. The one that is open longest is in the header."""
        key = object()
        self._sessions[key] = (name, identity)

        def ended() -> None:
            self._sessions.pop(key, None)

        return ended

    def text(self) -> str:
        """What is printed: the header, and a line each of models, GPUs and the CPU."""
        now = time.strftime("%H:%M:%S")
        session = next(iter(list(self._sessions.values())), None)
        what = f"pid {os.getpid()}" if session is None else f"session {cleaned(session[0])} ({session[1]})"
        with self._lock:
            shown = list(self._shown.values())
        lines = [f"inferspan {now} {what}"]
        found = [totals() for _, totals in shown if totals is not None]
        lines += [f"requests: {each}" for each in found[:_MOST_MODELS] if each.requests or each.forwards]
        sources = [readings for readings, _ in shown if readings is not None]
        if sources:  # all of them read the one cache of the process
            lines += machine_lines(machine_of("", [(sample.metric, sample.value, sample.attributes) for sample in sources[-1]()]))
        return "\n  ".join(lines) + "\n"

    def _run(self, interval: float, done: threading.Event) -> None:
        while not done.wait(interval):
            with contain("live display"):
                out = sys.stderr if self._out is None else self._out
                if out is not None:
                    # One call: lines of other threads come before or after it.
                    out.write(_for_terminal(self.text(), out) if out.isatty() else self.text())
                    out.flush()

    def _stop(self, key: object = None) -> None:
        """End the thread if nothing else is shown; at exit in any case: one that writes then would stop the interpreter from ending."""
        with self._lock:
            self._shown.pop(key, None)
            if key is not None and self._shown:
                return
            thread, self._thread = self._thread, None
            self._done.set()
        if thread is not None and thread is not threading.current_thread():
            with contain("live display"):
                thread.join(1.0)


def _for_terminal(text: str, out: TextIO) -> str:
    """The text in a frame as wide as the terminal; as it is where rich is not installed."""
    try:
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text
    except ImportError:
        return text
    title, *lines = text.splitlines()
    console = Console(file=out)
    with console.capture() as drawn:  # figures are text, not markup
        console.print(Panel(Text("\n".join(line.strip() for line in lines) or "nothing yet"), title=Text(title), border_style="cyan"))
    return drawn.get()


def _forked() -> None:
    for display in list(_displays):
        display._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
