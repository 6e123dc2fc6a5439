"""Pieces of text -> a file that readers never see incomplete, and that only its owner may read."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

__all__ = ["is_stream", "write_text"]

_STDOUT = Path("/dev/stdout")


def write_text(path: Path, pieces: Iterable[str]) -> None:
    """Write a file; an existing one, or a link, is replaced. A pipe or a device, such as ``/dev/stdout``, is written to.

    Args:
        path: file to write.
        pieces: its text.

    Raises:
        OSError: the file cannot be written.
    """
    if path == _STDOUT:
        _print(pieces)
        return
    if is_stream(path):
        with open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
            stream.writelines(piece.encode("utf-8", "replace") for piece in pieces)
        return
    # mkstemp creates the file exclusively, with an unpredictable name and mode 0600, so no link can be planted there.
    handle, temporary = tempfile.mkstemp(prefix=".inferspan-", suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.writelines(piece.encode("utf-8", "replace") for piece in pieces)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _print(pieces: Iterable[str]) -> None:
    """Write to standard output as this process has it: it may be a socket, which cannot be opened by its path."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(_STDOUT))
    sys.stdout.flush()
    for piece in pieces:
        sys.stdout.buffer.write(piece.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def is_stream(path: Path) -> bool:
    """Whether a path names something that is written to and cannot be replaced: a pipe, a device, or a link of the system's to one.

    A link elsewhere is not followed.
    """
    if str(path.parent) in ("/dev", "/dev/fd", "/proc/self/fd"):
        return True
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False
    return kind not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)
