"""A session file that grows -> its lines as they are written, also over rotation, and before the file exists.

In comes a path; out come decoded OTLP JSON objects, and ``None`` whenever there is nothing new. A line that is longer than a session's
lines may be is skipped without being held; a torn line waits for its end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from inferspan.report.otlp_lines import SessionFileError, decode_line
from inferspan.report.stream import LONGEST_LINE

__all__ = ["follow"]

_PIECE = 1 << 20


class _Lines:
    """Whole lines out of pieces of a file."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False
        self.bad = 0

    def clear(self) -> None:
        """Forget the torn line of a file that is gone."""
        self._rest, self._skipping = b"", False

    def take(self, piece: bytes) -> Iterator[Mapping[str, Any]]:
        """The decoded lines that this piece completes."""
        *lines, rest = (self._rest + piece).split(b"\n")
        self._rest = rest
        for line in lines:
            if self._skipping:
                self._skipping = False
                continue
            text = line.strip().removeprefix(b"\xef\xbb\xbf")
            decoded = decode_line(text) if text else None
            if decoded:
                yield decoded
            else:
                self.bad += bool(text)
        if len(self._rest) > LONGEST_LINE:
            self.bad += not self._skipping
            self._rest, self._skipping = b"", True


def follow(
    path: Path, *, from_start: bool, wait: Callable[[float], object] = time.sleep, interval: float = 0.2
) -> Iterator[Mapping[str, Any] | None]:
    """Read a file for as long as the caller asks for more.

    Args:
        path: session file, which need not exist yet; a pipe is read to its end.
        from_start: whether what is in the file already counts, or only what is written from now on.
        wait: called with the seconds between two looks.
        interval: seconds between two looks.

    Returns:
        Decoded lines; ``None`` for each look that found nothing new.

    Raises:
        SessionFileError: the path is a directory, may not be read, or holds compressed bytes.
    """
    lines = _Lines()
    opened: IO[bytes] | None = None
    try:
        while True:
            if opened is None:
                opened = _open(path)
                if opened is not None and not from_start and opened.seekable():
                    opened.seek(0, os.SEEK_END)
                from_start = True  # a file that appears later is new from its first line on
            piece = opened.read(_PIECE) if opened is not None else b""
            if piece:
                yield from lines.take(piece)
                continue
            yield None
            if opened is not None and not opened.seekable():
                return
            if opened is not None and _is_another(path, opened):
                opened.close()
                opened = None
                lines.clear()
                continue
            wait(interval)
    finally:
        if opened is not None:
            opened.close()


def _open(path: Path) -> IO[bytes] | None:
    try:
        opened = path.open("rb", buffering=0)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SessionFileError(f"cannot read session file {path}: {reason}. Give the path of a file of OTLP JSON lines") from None
    if opened.seekable():
        head = opened.read(2)
        opened.seek(0)
        if head == b"\x1f\x8b":
            opened.close()
            raise SessionFileError(f"session file {path} is compressed: it does not grow. Use inferspan report {path} --text")
    return opened


def _is_another(path: Path, opened: IO[bytes]) -> bool:
    """Whether the path names another file by now, or the file was cut off below what was read."""
    try:
        there, here = path.stat(), os.fstat(opened.fileno())
    except OSError:
        return False  # it was moved away; a new one may come
    return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) or there.st_size < opened.tell()
