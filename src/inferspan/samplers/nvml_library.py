"""NVML's life in this process: loaded when first needed, one init to one shutdown, tried again with growing pauses.

NVML counts its inits over the whole process, so a shutdown by other code may end ours, and a forked child has
inherited an initialisation that is not its own. Exceptions of NVML end here; callers learn only whether it answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .nvml_devices import Inventory

__all__ = ["GPU_IS_LOST", "UNINITIALIZED", "NvmlLibrary", "Pause"]

_log = logging.getLogger("inferspan")

UNINITIALIZED, GPU_IS_LOST = 1, 15
_LIBRARY_NOT_FOUND = 12
_LONGEST_PAUSE = 60.0


class Pause:
    """A pause after each failure that grows from 1 to 60 seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """End the pause; the next one is short again."""
        self._length = 1.0
        self._until = float("-inf")

    def begin(self) -> None:
        """Pause from now on."""
        self._until = self._clock() + self._length
        self._length = min(2 * self._length, _LONGEST_PAUSE)

    @property
    def over(self) -> bool:
        """Whether it is time to try again."""
        return self._clock() >= self._until


class NvmlLibrary:
    """An initialised NVML, or the attempt at one.

    Args:
        library: a module like ``pynvml``, which is imported at the first attempt if this is ``None``.
        pid: returns our process id.
        clock: monotonic seconds.
    """

    def __init__(self, *, library: ModuleType | None, pid: Callable[[], int], clock: Callable[[], float]) -> None:
        self.library: Any = library
        self.inventory = Inventory(library)
        self.number = 0
        """Rises with every init: handles of an earlier one are void."""
        self._pid = pid
        self._missing = False
        self._owner: int | None = None  # the process that has to shut down
        self._pause = Pause(clock)

    def ready(self) -> bool:
        """Whether NVML answers; initialises it if it is time to."""
        pid = self._pid()
        if self._owner != pid:
            # Never opened, closed, or forked: then the initialisation is the parent's, and so is its shutdown.
            self._owner = None
            if self._missing or not self._pause.over or not self._open(pid):
                return False
        for _ in range(2):
            try:
                self.library.nvmlDeviceGetCount()
                return True
            except Exception as error:
                if getattr(error, "value", None) != UNINITIALIZED:
                    break
            if not self._open(pid):
                return False
        self.fail()
        return False

    @property
    def is_open(self) -> bool:
        """Whether this process has initialised NVML and not shut it down."""
        return self._owner == self._pid()

    def works(self) -> None:
        """Note that a round succeeded."""
        self._pause.reset()

    def fail(self) -> None:
        """Shut down and try again after a pause: NVML, or every device behind it, is gone."""
        self.close()
        self._pause.begin()

    def lapse(self) -> None:
        """Note that another library's shutdown ended our initialisation, so that no shutdown of ours is due."""
        self._owner = None

    def close(self) -> None:
        """Shut NVML down if this process initialised it here."""
        owned, self._owner = self._owner == self._pid(), None
        if owned:
            try:
                self.library.nvmlShutdown()
            except Exception as error:
                _log.debug("nvmlShutdown: %r", error)

    def _open(self, pid: int) -> bool:
        self._owner = None
        try:
            if self.library is None:
                import pynvml

                self.library = pynvml
            self.library.nvmlInit()
        except ImportError:
            self._give_up("the package nvidia-ml-py is not installed")
            return False
        except Exception as error:
            if getattr(error, "value", None) == _LIBRARY_NOT_FOUND:
                self._give_up("this host has no NVIDIA driver")
            self._pause.begin()
            return False
        self._owner = pid
        self.number += 1
        self.inventory = Inventory(self.library)
        return True

    def _give_up(self, reason: str) -> None:
        self._missing = True
        _log.info("GPU readings are off: %s", reason)
