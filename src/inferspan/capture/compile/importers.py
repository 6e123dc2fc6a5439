"""Taking entries off ``sys.meta_path`` without harm to imports that run."""

from __future__ import annotations

import sys

__all__ = ["take_off"]


def take_off(importer: object) -> None:
    """Remove an entry of ours.

    The program gets another list: an import that iterates over the old one, on any thread, would skip the entry after one that leaves it.
    Looking at the frames of other threads, to see whether one does, is not safe while they run.
    """
    # An interpreter that exits has no importers any more.
    old = sys.meta_path
    if old is None or not any(entry is importer for entry in old):
        return
    new = [entry for entry in old if entry is not importer]
    sys.meta_path = new
    # What another thread has added to the old one meanwhile.
    new += [entry for entry in old if entry is not importer and entry not in new]
