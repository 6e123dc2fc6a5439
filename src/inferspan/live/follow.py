"""A session file that grows -> its lines as they are written, also over rotation, and before the file exists.

In comes a path; out come decoded OTLP JSON objects, and ``None`` whenever there is nothing new. A line that is longer than a session's
lines may be is skipped without being held; a torn line waits for its end. What a person should know, such as that the file does not exist
yet, is told in sentences.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from inferspan.report.otlp_lines import SessionFileError, decode_line, no_otlp_lines
from inferspan.report.stream import LONGEST_LINE

__all__ = ["EARLIER_END", "follow"]

EARLIER_END: Mapping[str, Any] = MappingProxyType({})
"""Comes once after the lines that were in the file when it was opened."""
MOST_EARLIER = 64 << 20
"""Bytes that are read although they are not to be shown; more are passed over."""
_PIECE = 1 << 20


class _Lines:
    """Whole lines out of pieces of a file."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False
        self.good = self.bad = 0

    def clear(self) -> None:
        """Forget the torn line of a file that is gone."""
        self._rest, self._skipping = b"", False
        self.good = self.bad = 0

    def begin_inside(self) -> None:
        """What comes first may be the rest of a line."""
        self._skipping = True

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
                self.good += 1
                yield decoded
            else:
                self.bad += bool(text)
        if len(self._rest) > LONGEST_LINE:
            self.bad += not self._skipping
            self._rest, self._skipping = b"", True

    def last(self) -> Iterator[Mapping[str, Any]]:
        """The last line, if it is whole although nothing ends it: nobody goes on writing there."""
        if not self._skipping and self._rest.rstrip().endswith(b"}") and (decoded := decode_line(self._rest.strip())):
            self._rest = b""
            self.good += 1
            yield decoded

    @property
    def hopeless(self) -> bool:
        """Whether this is a file of something else: none of its lines is OTLP JSON, nor can the one be that is being written."""
        torn = self._rest.lstrip().removeprefix(b"\xef\xbb\xbf")
        return not self.good and (self.bad > 0 or (bool(torn) and not torn.startswith(b"{")))


def follow(
    path: Path,
    *,
    from_start: bool,
    wait: Callable[[float], object] = time.sleep,
    interval: float = 0.2,
    told: Callable[[str], object] = lambda _: None,
) -> Iterator[Mapping[str, Any] | None]:
    """Read a file for as long as the caller asks for more.

    Args:
        path: session file, which need not exist yet; a pipe is read to its end.
        from_start: whether the caller wants what is in the file already. If not, more than 64 MiB of it are passed over; less comes, for
            a request may have begun there.
        wait: called with the seconds between two looks.
        interval: seconds between two looks.
        told: called with sentences for the reader.

    Returns:
        Decoded lines; ``EARLIER_END`` once, after those that were there at the beginning; ``None`` for each look that found nothing new.

    Raises:
        SessionFileError: the path is a directory, may not be read, holds compressed bytes, or lines of something else.
    """
    lines = _Lines()
    opened: IO[bytes] | None = None
    earlier: int | None = None
    waits = noted = False
    try:
        while True:
            if opened is None:
                opened = _open(path)
                if opened is None and not waits:
                    waits = True
                    told(f"waiting for {path}, which does not exist yet{_folder_note(path)}")
                if opened is not None and waits:
                    waits = False
                    told(f"reading {path}")
                if earlier is None or earlier > 0:
                    earlier = _earlier(opened, path, lines, from_start, told) if earlier is None else 0
            if earlier is not None and earlier >= 0 and (opened is None or not earlier or opened.tell() >= earlier):
                earlier = -1
                yield EARLIER_END
            piece = opened.read(_PIECE) if opened is not None else b""
            yield from lines.take(piece) if piece else lines.last()
            if lines.bad and lines.good and not noted:
                noted = True
                told(f"{path} has lines that are not OTLP JSON; they are left out")
            if piece:
                continue
            if lines.hopeless:
                raise SessionFileError(no_otlp_lines(path))
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


def _earlier(opened: IO[bytes] | None, path: Path, lines: _Lines, from_start: bool, told: Callable[[str], object]) -> int:
    """Where the lines end that were there at the beginning; 0 if there are none that are read."""
    if opened is None or not opened.seekable():
        return 0
    size = os.fstat(opened.fileno()).st_size
    if not size:
        told(f"{path} is empty so far")
    if not from_start and size > MOST_EARLIER:
        opened.seek(size)
        lines.begin_inside()
        told(f"what {path} holds already ({size >> 20:,} MiB) is not shown; --from-start shows it")
        return 0
    return size


def _folder_note(path: Path) -> str:
    return "" if path.parent.is_dir() else f"; its folder {path.parent} does not exist either"


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
