"""Session files of one process one after the other: a file that nothing is recorded for any more is closed before another one begins.

In: who records for a file, and the parts that write it. Out: files whose last user has gone are taken off their providers, written to their
end and closed, when a model is instrumented for another file or for none. Until then a file still gets the spans of the program that stand
around its requests. Files of ``configure()``, of automatic reports and of ``inferspan run`` are those of the process: they are never closed
before it ends. So is a file of a provider whose parts cannot be taken off. Nothing raises.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from inferspan.export.older_sdk import leave
from inferspan.export.providers import SETUP, FilePart, current_provider
from inferspan.guard import contain
from inferspan.settings import Settings

__all__ = ["close_unused", "hold"]

CLOSING = 2.0
"""Longest time in seconds that closing a file takes."""
_users: dict[str, int] = {}
"""How many record for a file, by its path; absent before the first of them."""
_lock = threading.Lock()


def hold(settings: Settings) -> Callable[[], None]:
    """Something records for the session file of the settings; returns what is called when it has ended."""
    if settings.session_file is None:
        return lambda: None
    path = os.path.abspath(settings.session_file)
    if settings.report is not None:
        SETUP.kept_files.add(path)
    with _lock:
        _users[path] = _users.get(path, 0) + 1

    def release() -> None:
        with _lock:
            _users[path] -= 1

    return release


def close_unused(*begun: Settings | None) -> None:
    """Close the session files whose last user has gone, except those of the settings that export is set up with now."""
    wanted = {os.path.abspath(one.session_file) for one in begun if one is not None and one.session_file is not None}
    with _lock:
        # One that is set up anew is not closed before something records for it.
        gone = {path for path, users in _users.items() if not users and path not in wanted | SETUP.kept_files}
        for path in gone:
            del _users[path]
    if not gone:
        return
    with SETUP.lock:
        parts = [part for part in SETUP.file_parts if part.path in gone]
    for part in parts:
        with contain("end of a session file"):
            _close(part)


def _close(part: FilePart) -> None:
    provider = part.provider or current_provider(part.signal)
    take_off = leave(provider, part.signal)
    if take_off is None:
        return
    if part.signal != "metrics":  # what waits in its queue is written when it is closed
        take_off(part.part)
    SETUP.pipelines.close((part.pipeline,), CLOSING)
    if part.signal == "metrics":  # it reads the provider once more when it is closed
        take_off(part.part)
    with SETUP.lock:
        SETUP.forget(part)


def _forked() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
