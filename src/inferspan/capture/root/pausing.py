"""Whether the requests of one model are recorded: the switch behind ``handle.pause()``.

While it is off no request begins, and nothing is on the model once the requests that were running have ended: these are recorded to their
end, with the requests inside them. Calls of other models are not affected, also where they are inside.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from inferspan.guard import contain

Call = Any
"""A ``Call`` of ``capture``, which imports this file."""

__all__ = ["Pausing"]


class Pausing:
    """The switch of one model.

    Args:
        settle: puts the observers of the model's own calls on or takes them off, as ``quiet`` says.

    Attributes:
        paused: whether no new request is recorded.
        changed: called when ``quiet`` may have changed.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        self.paused = False
        self.changed: Callable[[], None] | None = None
        self._settle = settle
        # Weak: a request that nothing has ended keeps nothing on the model once it has been collected.
        self._running: weakref.WeakSet[Any] = weakref.WeakSet()
        self._waiting: list[Callable[[], None]] = []

    @property
    def quiet(self) -> bool:
        """Whether nothing is to be on the model: it is paused, and no request of it runs."""
        return self.paused and not self._running

    def switch(self, *, paused: bool) -> None:
        """Record no new requests, or do so again."""
        self.paused = paused
        self._look()

    def admits(self, around: Call) -> bool:
        """Whether a request is recorded; ``around`` is the innermost one that runs there."""
        if not self.paused:
            return True
        while around is not None:
            if around in self._running:
                return True
            around = around.outer
        return False

    def begins(self, call: Call) -> None:
        """A request runs from now on."""
        self._running.add(call)
        call.pausing = self
        if self.paused:
            self._look()

    def ends(self, call: Call) -> None:
        """It does not run any more."""
        self._running.discard(call)
        if self.paused:
            self._look()
        if self._waiting and not self._running:
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                with contain("end of a session file"):
                    done()

    def when_idle(self, done: Callable[[], None]) -> None:
        """Call ``done`` once no request runs, at once if none does: a request goes on after ``uninstrument()``."""
        if self._running:
            self._waiting.append(done)
        else:
            done()

    def _look(self) -> None:
        self._settle()
        if self.changed is not None:
            self.changed()
