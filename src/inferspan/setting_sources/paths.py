"""Checks of settings that are paths."""

from __future__ import annotations

import os
import re

from inferspan.setting_checks import PLACES, fail

__all__ = ["path", "path_of_process"]


def path(name: str, value: object) -> str:
    """The path of a file, as text."""
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(found, str) and found.strip() and "\0" not in found:
        if found.strip() == "-":
            raise fail(name, value, "use the path of a file; that of standard output is /dev/stdout, and ./- is a file of that name")
        return found.strip() if isinstance(value, str) else found
    raise fail(name, value, f"use the path of a {'folder' if name.startswith('report_dir') else 'file'}")


def path_of_process(name: str, value: object) -> str:
    """A path, which may have the process in it: ``{rank}``, ``{pid}`` and so on."""
    found = path(name, value)
    for word in re.findall(r"\{[A-Za-z_]*\}", found):
        if not re.fullmatch(PLACES, word):
            raise fail(name, value, f"{word} is unknown; use {{rank}}, {{local_rank}}, {{world_size}}, {{pid}} or {{host}}")
    if not os.path.isabs(found) and not _is_somewhere():
        raise fail(name, value, "the working directory no longer exists; use an absolute path")
    return found


def _is_somewhere() -> bool:
    """Whether a relative path means a place: the working directory of a service may have been removed under it."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True
