"""Files of inferspan and of a collector's file exporter -> messages of OTLP, in bounded memory.

In comes a path: OTLP JSON lines, or protobuf messages with a length of four bytes before each (``format: proto``), plain or gzipped, a
pipe as well. Out come messages. Each line or message that cannot be read is passed to a callback with its place and the reason, and the
rest is read. Only a file that cannot be opened raises.
"""

from __future__ import annotations

import functools
import gzip
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped, unused-ignore]

from inferspan.replay.decoding import MESSAGES, messages_of
from inferspan.report.otlp_lines import decode_line, hint_for, record_after_a_torn_one
from inferspan.report.stream import LONGEST_LINE, LineCounts, SessionFileError, Stream, lines_of, open_stream

__all__ = ["Damage", "Piece", "SessionFileError", "pieces"]

_LENGTH = struct.Struct(">I")
_HIGHEST_FIRST_BYTE = LONGEST_LINE >> 24
"""Of a length; text never begins with such a byte."""
_MOST_DAMAGED = 10_000
"""Damaged messages in a row after which the rest of a file is given up."""


class Piece(NamedTuple):
    """A request read from a file, and how far the file has been read."""

    signal: str
    message: Any
    position: int
    """Bytes of the file."""


Damage = Callable[[int, str], None]
"""Is called with the number of a line or message, and the reason why it, or a part of it, is not sent."""


def pieces(path: Path, damage: Damage) -> Iterator[Piece]:
    """The requests in a file.

    Raises:
        SessionFileError: the file cannot be opened or read, or its compression is not known.
    """
    try:
        with open_stream(path) as stream:
            try:
                first = stream.peek()[:1]
            except (EOFError, zlib.error, gzip.BadGzipFile):
                damage(1, "the compressed file is damaged")
                return
            framed = bool(first) and first[0] <= _HIGHEST_FIRST_BYTE
            yield from _of_frames(stream, damage) if framed else _of_lines(stream, damage)
    except OSError as error:
        raise SessionFileError(f"cannot read {path}: {error.strerror or error}. {hint_for(error)}") from None


def _of_lines(stream: Stream, damage: Damage) -> Iterator[Piece]:
    counts = LineCounts()
    number = 0
    for number, line in lines_of(stream, counts, lambda number: damage(number, f"the line is longer than {LONGEST_LINE >> 20} MiB")):
        text = line.strip().removeprefix(b"\xef\xbb\xbf")
        decoded = decode_line(text)
        if not decoded:
            whole = decoded is not None
            decoded = None if whole else record_after_a_torn_one(text)
            if decoded:
                damage(number, "a record breaks off where another one begins; that one is sent")
            elif whole:
                damage(number, "JSON, but not of OTLP: it has no resourceSpans, resourceMetrics or resourceLogs")
            else:
                damage(number, "not JSON" if line.endswith(b"\n") else "the last line breaks off")
        if decoded:
            counts.read += 1
            for signal, message in messages_of(decoded, functools.partial(damage, number)):
                yield Piece(signal, message, stream.taken)
    if counts.torn:
        damage(number + 1, "the compressed file breaks off")
    if counts.given_up:
        damage(number + 1, f"the rest is not read: {counts.given_up}")


def _of_frames(stream: Stream, damage: Damage) -> Iterator[Piece]:
    number = bad = 0
    while True:
        number += 1
        try:
            head = stream.read(4)
            size = _LENGTH.unpack(head)[0] if len(head) == 4 else 0
            if not head:
                return
            if not 0 < size <= LONGEST_LINE:
                why = "the file breaks off" if len(head) < 4 else f"no message has {size:,} bytes, so the rest cannot be read"
                damage(number, why)
                return
            data = stream.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            damage(number, "the compressed file breaks off")
            return
        found = _decoded(data) if len(data) == size else None
        if found is not None:
            bad = 0
            yield Piece(*found, stream.taken)
            continue
        bad += 1
        damage(number, "the last message breaks off" if len(data) < size else "not a message of OTLP")
        if len(data) < size:
            return
        if bad >= _MOST_DAMAGED or stream.expands_like_a_bomb:
            damage(number + 1, "the rest is not read: it holds nothing usable")
            return


def _decoded(data: bytes) -> tuple[str, Any] | None:
    """Signal and message of bytes that do not tell their signal: it is that whose fields they have."""
    for signal, kind in MESSAGES.items():
        try:
            message = kind.FromString(data)
        except DecodeError:
            continue
        if _fits(signal, message):
            return signal, message
    return None


def _fits(signal: str, message: Any) -> bool:
    """Whether the first item of a message has no field of an unknown type, and ids where they belong."""
    resources = getattr(message, {"traces": "resource_spans", "metrics": "resource_metrics", "logs": "resource_logs"}[signal])
    if not resources or len(UnknownFieldSet(message)):
        return False
    for resource in resources:
        for scope in getattr(resource, {"traces": "scope_spans", "metrics": "scope_metrics", "logs": "scope_logs"}[signal]):
            for item in getattr(scope, {"traces": "spans", "metrics": "metrics", "logs": "log_records"}[signal]):
                if len(UnknownFieldSet(item)):
                    return False
                return signal != "traces" or (len(item.trace_id) == 16 and len(item.span_id) == 8)
    return True
