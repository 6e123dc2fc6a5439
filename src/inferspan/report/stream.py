"""A path -> the lines of a session file as bytes, from files, pipes and devices, in bounded memory.

In comes a path; out come lines, plain or unpacked from gzip. Nothing is read twice, so a pipe reads as the file does. A line over
``LONGEST_LINE`` is skipped without being held; a stream that gives nothing but such bytes, or that expands like a decompression bomb, is
abandoned. ``LineCounts`` records the omissions.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

__all__ = ["LONGEST_LINE", "LineCounts", "SessionFileError", "lines_of", "open_stream"]

LONGEST_LINE = 32 * 1024 * 1024
"""Bytes; decoded JSON takes some ten times as much. The exporters of this package divide their lines well below it."""
_MOST_SKIPPED = 1024 * 1024 * 1024
_PER_LINE = 1024
"""Bytes that a line counts for besides its length, so that endless empty lines come to an end too."""
_PIECE = 1024 * 1024
_BOMB_SIZE = 128 * 1024 * 1024
_BOMB_RATIO = 150
"""OTLP JSON packs 20 to 90 times; 1,032 is the most that gzip can do."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


class SessionFileError(Exception):
    """The file cannot be used as a session; the message names the reason and the remedy."""


@dataclass(slots=True)
class LineCounts:
    """How the lines of a file went.

    ``torn`` means that the last line, or the compressed stream, breaks off; ``given_up`` is the reason why the rest was not read.
    """

    read: int = 0
    bad: int = 0
    first_bad: int | None = None
    too_long: int = 0
    first_too_long: int | None = None
    torn: bool = False
    given_up: str | None = None


class _Rejoined(io.RawIOBase):
    """A stream including the bytes already read from its start; counts the bytes read."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = head, rest
        self.taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self._head[: len(buffer)] if self._head else self._rest.read1(len(buffer))  # type: ignore[attr-defined]
        self._head = self._head[len(piece) :]
        buffer[: len(piece)] = piece
        self.taken += len(piece)
        return len(piece)

    def close(self) -> None:
        self._rest.close()
        super().close()


class Stream:
    """An open session file. Use it as a context manager."""

    def __init__(self, raw: _Rejoined, packed: bool) -> None:
        self._raw = raw
        plain = io.BufferedReader(raw, _PIECE)
        self._plain = plain
        self._lines = cast(IO[bytes], gzip.GzipFile(fileobj=plain, mode="rb")) if packed else cast(IO[bytes], plain)
        self._packed = packed
        self._given = 0

    def readline(self, limit: int) -> bytes:
        """The next line, or a part of at most ``limit`` bytes of it; nothing at the end."""
        line = self._lines.readline(limit)
        self._given += len(line)
        return line

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes, or fewer at the end."""
        piece = self._lines.read(size)
        self._given += len(piece)
        return piece

    def peek(self) -> bytes:
        """Some of the next bytes, which stay to be read; nothing at the end."""
        return cast(bytes, self._lines.peek(1))  # type: ignore[attr-defined]

    @property
    def taken(self) -> int:
        """Bytes read of the file, packed if it is."""
        return self._raw.taken

    @property
    def expands_like_a_bomb(self) -> bool:
        """Whether the stream is packed far more tightly than any telemetry."""
        return self._packed and self._given > _BOMB_SIZE and self._given > _BOMB_RATIO * self._raw.taken

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self._lines.close()
        self._plain.close()


def open_stream(path: Path) -> Stream:
    """Open a session file.

    Raises:
        OSError: the file cannot be opened or read.
        SessionFileError: its compression is not supported, or the path is not valid.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a directory", str(path))
        opened = path.open("rb")
    except ValueError as error:  # a zero byte in the name
        raise SessionFileError(f"cannot read session file {str(path)!r}: {error}. Give the path of a file of OTLP JSON lines") from None
    try:
        head = opened.read(8)
        # The collector's zstd files hold length-prefixed messages, so the magic bytes may follow a length of four bytes.
        if head.startswith(_ZSTD) or head[4:] == _ZSTD:
            raise SessionFileError(f"session file {path} is zstd-compressed: write it without `compression: zstd`, or unpack it first")
        return Stream(_Rejoined(head, opened), head.startswith(_GZIP))
    except BaseException:
        opened.close()
        raise


def lines_of(stream: Stream, counts: LineCounts, skipped: Callable[[int], object] = lambda number: None) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers from 1 on; lines that are empty or too long are not among them.

    ``skipped`` is called with the number of each line that is too long.

    The consumer counts every line that it can use in ``counts.read``. After ``_MOST_SKIPPED`` bytes without one, reading stops.
    """
    number = unused = used = 0
    while True:
        try:
            line = stream.readline(LONGEST_LINE + 1)
            if not line:
                return
            number += 1
            unused += len(line) + _PER_LINE
            whole = len(line) <= LONGEST_LINE or line.endswith(b"\n")
            if not whole:
                counts.too_long += 1
                counts.first_too_long = counts.first_too_long or number
                skipped(number)
                unused += _skip_line(stream, _MOST_SKIPPED - unused)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            counts.torn = True
            return
        if whole and not line.isspace():
            yield number, line
        if counts.read != used:
            unused, used = 0, counts.read
        if unused >= _MOST_SKIPPED:
            counts.given_up = f"for {_MOST_SKIPPED >> 20:,} MiB there was no usable line"
            return
        if stream.expands_like_a_bomb:
            counts.given_up = f"it expands more than {_BOMB_RATIO} times, as no telemetry does"
            return


def _skip_line(stream: Stream, most: int) -> int:
    """Read to the end of the line, at most about ``most`` bytes; returns how many bytes there were."""
    skipped = 0
    while skipped < most and not stream.expands_like_a_bomb:
        piece = stream.readline(_PIECE)
        skipped += len(piece)
        if not piece or piece.endswith(b"\n"):
            break
    return skipped
