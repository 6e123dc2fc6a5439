"""One line on a terminal that shows that something is being worked on, and for how long; nothing where standard error is no terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["working"]

_EVERY = 0.2
"""Seconds between two drawings."""
_SIGNS = "|/-\\"
_CLEAR = "\r\x1b[K"


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a line while the block runs; it is gone when the block ends.

    Args:
        what: is being worked on.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    drawing = threading.Thread(target=_draw, args=(what, done), name="demo-progress", daemon=True)
    drawing.start()
    try:
        yield
    finally:
        done.set()
        drawing.join()
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()


def _draw(what: str, done: threading.Event) -> None:
    begin, number = time.monotonic(), 0
    while not done.wait(_EVERY):
        sys.stderr.write(f"{_CLEAR}[demo] {_SIGNS[number % len(_SIGNS)]} {what}, {time.monotonic() - begin:.0f} s")
        sys.stderr.flush()
        number += 1
