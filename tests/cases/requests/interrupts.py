"""Interrupts at the places in our own code where Python looks for signals."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

__all__ = ["Interrupts", "codes_of"]


def _interrupt() -> None:
    raise KeyboardInterrupt


class Interrupts:
    """Interrupts one of the places in the code of some functions where Python would run a handler of signals.

    Those are the start of a function and the return from C code, as of Python 3.11; its jumps back in loops are left out.

    Args:
        codes: of these functions.
        place: which one of the places that a run comes through; -1 counts them only.
        act: interrupts.
        kind: what it raises.
    """

    def __init__(
        self, codes: set[CodeType], place: int = -1, act: Callable[[], None] = _interrupt, kind: type[BaseException] = KeyboardInterrupt
    ) -> None:
        self._codes, self._place, self._act, self._kind = codes, place, act, kind
        self.count = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Called by Python at calls and returns."""
        if event not in ("call", "c_return") or frame.f_code not in self._codes:
            return
        self.count += 1
        if self.count == self._place + 1:
            sys.setprofile(None)
            self.where = f"{frame.f_code.co_name}:{frame.f_lineno} {event}"
            self._act()

    def run(self, function: Callable[[], Any]) -> bool:
        """Call a function; whether it was interrupted."""
        sys.setprofile(self)
        try:
            function()
        except self._kind:
            return True
        finally:
            sys.setprofile(None)
        return False


def codes_of(*functions: Any) -> set[CodeType]:
    """The code of functions, below their decorators."""
    return {inspect.unwrap(function).__code__ for function in functions}
