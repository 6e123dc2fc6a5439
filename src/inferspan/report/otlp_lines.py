"""Lines of a session file -> plain Python values: the first half of reading a session.

In comes a file of OTLP JSON lines, as the OpenTelemetry collector's file exporter and inferspan write it, plain or gzipped.
Out come one decoded object per line and attribute mappings of plain values. A line that cannot be read is counted and skipped; only
a file that holds nothing usable raises, and the error says what to do.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from inferspan.report.quantities import counted

__all__ = ["LineCounts", "SessionFileError", "Value", "attributes_of", "integer", "number", "objects", "read_lines"]

Value = bool | int | float | str | tuple["Value", ...] | dict[str, "Value"]
"""An attribute value after decoding; arrays are tuples, maps are dicts."""

_SIGNALS = ("resourceSpans", "resourceMetrics", "resourceLogs")
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SHARED_TEXT = 200


class SessionFileError(Exception):
    """The file cannot be used as a session; the message says why and what to do."""


@dataclass(slots=True)
class LineCounts:
    """How the lines of a file went; ``torn`` says that the last line, or the compressed stream, broke off."""

    read: int = 0
    bad: int = 0
    first_bad: int | None = None
    torn: bool = False


def read_lines(path: Path, counts: LineCounts) -> Iterator[Mapping[str, Any]]:
    """Decode a session file line by line, filling ``counts`` on the way.

    Args:
        path: file of OTLP JSON lines, plain or gzipped.
        counts: filled while the lines are read.

    Raises:
        SessionFileError: the file is missing, unreadable, empty, or holds no line of OTLP JSON.
    """
    try:
        with _open(path) as stream:
            yield from _decode(stream, counts)
    except OSError as error:
        raise SessionFileError(f"cannot read session file {path}: {error.strerror or error}. {_hint(error)}") from None
    if counts.read == 0:
        raise SessionFileError(_nothing(path, counts))


def _open(path: Path) -> IO[bytes]:
    if path.is_dir():
        raise IsADirectoryError(21, "it is a directory", str(path))
    with path.open("rb") as probe:
        magic = probe.read(4)
    # The collector's zstd files hold length-prefixed messages, so the magic bytes may follow a length of four bytes.
    if magic == _ZSTD or _has_zstd_after_length(path):
        raise SessionFileError(f"session file {path} is zstd-compressed: write it without `compression: zstd`, or unpack it first")
    return cast(IO[bytes], gzip.open(path, "rb")) if magic.startswith(_GZIP) else path.open("rb")


def _has_zstd_after_length(path: Path) -> bool:
    with path.open("rb") as probe:
        return probe.read(8)[4:] == _ZSTD


def _decode(stream: IO[bytes], counts: LineCounts) -> Iterator[Mapping[str, Any]]:
    number_of_line = 0
    while True:
        try:
            line = stream.readline()
        except (EOFError, zlib.error, gzip.BadGzipFile):
            counts.torn = True
            return
        if not line:
            return
        number_of_line += 1
        text = line.strip().removeprefix(b"\xef\xbb\xbf")
        if not text:
            continue
        try:
            decoded = json.loads(text)
        except (ValueError, RecursionError):
            decoded = None
        if isinstance(decoded, dict) and any(isinstance(decoded.get(signal), list) for signal in _SIGNALS):
            counts.read += 1
            yield decoded
        elif decoded is None and not line.endswith(b"\n"):
            counts.torn = True
        else:
            counts.bad += 1
            counts.first_bad = counts.first_bad or number_of_line


def _hint(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "Check the path; a session file is written with INFERSPAN_SESSION_FILE=session.jsonl or Settings(session_file=...)"
    if isinstance(error, PermissionError):
        return "Check the permissions of the file"
    return "Give the path of a file of OTLP JSON lines"


def _nothing(path: Path, counts: LineCounts) -> str:
    if counts.bad == 0 and not counts.torn:
        return (
            f"session file {path} is empty: nothing was recorded yet. Telemetry is written when a batch is full, on"
            " inferspan.flush() and when the process ends"
        )
    if counts.torn and counts.bad == 0:
        return (
            f"session file {path} is truncated: it breaks off before its first line is complete (the process was killed, is still"
            " writing, or the copy is not whole), so there is nothing to show"
        )
    cut = "; the last one is cut off" if counts.torn else ""
    return (
        f"session file {path} holds no OTLP JSON lines ({counted(counts.bad, 'other line')}{cut}): expected one object with resourceSpans,"
        " resourceMetrics or resourceLogs a line, as inferspan's session_file and the collector's file exporter (format: json) write"
    )


def objects(parent: Mapping[str, Any], *keys: str) -> Iterator[Mapping[str, Any]]:
    """The objects of the first list found under one of ``keys``; anything else there counts as no objects."""
    for key in keys:
        found = parent.get(key)
        if isinstance(found, list):
            yield from (item for item in found if isinstance(item, dict))
            return


def integer(value: object) -> int:
    """An int64 of OTLP JSON, which may be text or a number; 0 where it is absent or malformed."""
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return 0


def number(value: object) -> float | None:
    """A finite double of OTLP JSON; ``None`` where it is absent, malformed or not finite."""
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def attributes_of(holder: Mapping[str, Any], known: dict[Value, Value]) -> dict[str, Value]:
    """The ``attributes`` of an OTLP object as a mapping.

    Args:
        holder: span, event, data point, log record or resource.
        known: values seen so far; equal texts and arrays of a file are kept once, which halves the memory of module spans.
    """
    found: dict[str, Value] = {}
    for item in objects(holder, "attributes"):
        key, raw = item.get("key"), item.get("value")
        if isinstance(key, str) and isinstance(raw, dict):
            value = _value(raw)
            if value is not None:
                found[sys.intern(key)] = _shared(value, known)
    return found


def _shared(value: Value, known: dict[Value, Value]) -> Value:
    if isinstance(value, str) and len(value) <= _SHARED_TEXT:
        return known.setdefault(value, value)
    if isinstance(value, tuple) and len(value) <= 8 and all(isinstance(part, str) for part in value):
        return known.setdefault(value, value)
    return value


def _value(raw: Mapping[str, Any], depth: int = 0) -> Value | None:
    for kind, content in raw.items():
        if kind in ("stringValue", "bytesValue"):
            return content if isinstance(content, str) else None
        if kind == "boolValue":
            return content is True
        if kind == "intValue":
            return integer(content)
        if kind == "doubleValue":
            return number(content)
        if depth < 8 and isinstance(content, dict):
            if kind == "arrayValue":
                return tuple(part for item in objects(content, "values") if (part := _value(item, depth + 1)) is not None)
            if kind == "kvlistValue":
                return {
                    str(item.get("key")): part
                    for item in objects(content, "values")
                    if isinstance(item.get("value"), dict) and (part := _value(item["value"], depth + 1)) is not None
                }
    return None
