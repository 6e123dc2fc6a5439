"""Taking entries off ``sys.meta_path`` without harm to imports that run."""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import FrameType

__all__ = ["take_off"]


def take_off(importer: object) -> None:
    """Remove an entry of ours, unless an import is asking the importers now, on any thread: it would skip the one that comes next.

    An entry that stays must do nothing, and be taken off the next time.
    """
    if not _asks_importers():
        # An interpreter that exits has no importers any more.
        with contextlib.suppress(ValueError, AttributeError):
            sys.meta_path.remove(importer)  # type: ignore[arg-type]


def _asks_importers() -> bool:
    """Whether some thread iterates over ``sys.meta_path``."""
    code = getattr(getattr(getattr(importlib, "_bootstrap", None), "_find_spec", None), "__code__", None)
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code is code:
                return True
            frame = frame.f_back
    return False
