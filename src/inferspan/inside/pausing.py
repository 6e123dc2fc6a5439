"""Pause and resume of an instrumented model: the part of a handle that switches recording, and the state that handles share.

In: calls of the program, from any thread. Out: the switch of ``capture``, and the recorder of stages taken out of those in use.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inferspan import composition
from inferspan.guard import contain
from inferspan.summaries.recording import Counts, Recording

if TYPE_CHECKING:
    from inferspan.capture.target import Target

__all__ = ["PausableHandle", "Pauses"]

_log = logging.getLogger("inferspan")


class Pauses:
    """Whether one model is recorded; its handles share it.

    Args:
        recording: of the model's requests.
        add: puts the recorder of stages among those in use, and returns what takes it out.
    """

    def __init__(self, recording: Recording, add: Callable[[], Callable[[], None]]) -> None:
        self._recording = recording
        self._add = add
        # Reentrant: a collected request may end at any instruction.
        self._lock = threading.RLock()
        self._begin = Counts()
        self._target: Target | None = None
        self._closed = False
        self._remove: Callable[[], None] | None = add()

    def watch(self, target: Target) -> None:
        """Switch this instrumentation from now on."""
        before, self._target = self._target, target
        target.pausing.changed = self._settle
        if before is not None and before.pausing.paused:
            target.pausing.switch(paused=True)

    @property
    def paused(self) -> bool:
        """Whether new requests are not recorded."""
        return self._target is not None and self._target.pausing.paused

    def pause(self) -> Counts:
        """Record no new requests; returns what was recorded since the last ``resume``."""
        target = self._target
        with self._lock:
            first = target is not None and not target.pausing.paused and not self._closed
            if first and target is not None:
                with contain("pause"):
                    target.pausing.switch(paused=True)
        composition.hand_over()
        found = self.counts()
        if first:
            _log.info("paused: %s recorded since the last start", found)
        return found

    def resume(self) -> None:
        """Record new requests again."""
        if not self.paused:
            return
        composition.hand_over()
        target = self._target
        with self._lock, contain("pause"):
            if target is not None and target.pausing.paused:
                self._begin = self._recording.counts()
                target.pausing.switch(paused=False)

    def counts(self) -> Counts:
        """What was recorded since the last ``resume``."""
        return self._recording.counts().since(self._begin)

    def _settle(self) -> None:
        with self._lock:
            wanted = not self._closed and (self._target is None or not self._target.pausing.quiet)
            if wanted and self._remove is None:
                self._remove = self._add()
            elif not wanted and self._remove is not None:
                self._remove()
                self._remove = None

    def close(self) -> None:
        """The model is not instrumented any more."""
        self._closed = True
        self._settle()

    def forked(self) -> None:
        """Called in a forked child, where a thread that held the lock does not run."""
        self._lock = threading.RLock()


class PausableHandle:
    """Base of ``Handle``: pause and resume."""

    _instrumentation: Any
    _pauses: Pauses | None

    @property
    def recording(self) -> bool:
        """Whether the next request on the model is recorded: it is instrumented, and not paused."""
        instrumentation = self._instrumentation
        return instrumentation is not None and bool(instrumentation.target.is_open) and not instrumentation.pauses.paused

    def pause(self) -> Counts:
        """Record no requests on this model from the next one on, for all its handles; a second call changes nothing.

        Requests that run are recorded to their end. Then nothing is on the model, and ``inferspan.stage()`` and ``inferspan.event()`` do
        nothing unless something else is recorded. Samplers go on; settings and totals stay. Has what waits handed over, for 2 s at most.

        Returns:
            The requests, spans and events that were recorded since the last ``resume()``, or since ``instrument()``.
        """
        return Counts() if self._pauses is None else self._pauses.pause()

    def resume(self) -> None:
        """Record requests again from the next one on; a second call changes nothing."""
        if self._instrumentation is not None:
            self._instrumentation.pauses.resume()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause inside a block; after it the model is recorded as before, so a block in a block or in a pause resumes nothing."""
        was = self.recording
        self.pause()
        try:
            yield
        finally:
            if was:
                self.resume()
