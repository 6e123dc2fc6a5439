"""Lines of a session file -> plain Python values: the first half of reading a session.

In comes a file of OTLP JSON lines, as the OpenTelemetry collector's file exporter and inferspan write it, plain or gzipped.
Out come one decoded object per line and attribute mappings of plain values. A line that cannot be read is counted and skipped; only
a file that holds nothing usable raises, and the error says what to do. A value that OTLP cannot hold is absent, never 0.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inferspan.report.stream import LONGEST_LINE, LineCounts, SessionFileError, lines_of, open_stream
from inferspan.text.numbers import counted

__all__ = [
    "LineCounts", "SessionFileError", "Value", "attributes_of", "count_of", "decode_line", "hint_for", "moment", "no_otlp_lines", "number",
    "objects", "read_lines", "record_after_a_torn_one", "text_of", "whole_number",
]  # fmt: skip

Value = bool | int | float | str | tuple["Value", ...] | dict[str, "Value"]
"""An attribute value after decoding; arrays are tuples, maps are dicts."""

_SIGNALS = ("resourceSpans", "resourceMetrics", "resourceLogs")
_STARTS = tuple(f'{{"{signal}"'.encode() for signal in _SIGNALS)
_SHARED_TEXT = 200
_MOST_SHARED = 500_000
_MOST_CONTAINERS = 1_500_000
"""Objects and arrays of one line; an empty one takes 60 bytes or more of memory for two bytes of text."""
_LONGEST_NUMBER = 40
_WHOLE = re.compile(r"-?[0-9]{1,20}")


def read_lines(path: Path, counts: LineCounts) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Decode a session file line by line, and fill ``counts``.

    Args:
        path: file of OTLP JSON lines, plain or gzipped; a pipe or a device as well.
        counts: filled while the lines are read.

    Returns:
        Each decoded line with its length in bytes.

    Raises:
        SessionFileError: the file is missing, unreadable, empty, or holds no line of OTLP JSON.
    """
    try:
        with open_stream(path) as stream:
            for number_of_line, line in lines_of(stream, counts):
                text = line.strip().removeprefix(b"\xef\xbb\xbf")
                decoded = decode_line(text)
                if not decoded:
                    cut_off = decoded is None and not line.endswith(b"\n")
                    decoded = record_after_a_torn_one(text) if decoded is None else None
                    if cut_off and not decoded:
                        counts.torn = True
                        continue
                    counts.bad += 1
                    counts.first_bad = counts.first_bad or number_of_line
                if decoded:
                    counts.read += 1
                    yield decoded, len(line)
    except OSError as error:
        raise SessionFileError(f"cannot read session file {path}: {error.strerror or error}. {hint_for(error)}") from None
    if counts.read == 0:
        raise SessionFileError(_nothing(path, counts))


def decode_line(text: bytes) -> Mapping[str, Any] | None:
    """The object of a line, an empty one if it is JSON of something else, ``None`` if it is not JSON."""
    if not text.startswith(b"{"):
        return None
    if len(text) > LONGEST_LINE // 8 and text.count(b"{") + text.count(b"[") > _MOST_CONTAINERS:
        return None
    try:
        decoded = json.loads(text)
    except RecursionError:
        return None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError | UnicodeError):
            return None
        # Python refuses to convert integers of thousands of digits; one of them must not cost the line.
        try:
            decoded = json.loads(text, parse_int=_short_integer)
        except (ValueError, RecursionError):
            return None
    usable = isinstance(decoded, dict) and any(isinstance(decoded.get(signal), list) for signal in _SIGNALS)
    return decoded if usable else {}


def _short_integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= _LONGEST_NUMBER else None


def record_after_a_torn_one(text: bytes) -> Mapping[str, Any] | None:
    """The record at the end of a line that begins with a torn one: some writers go on in the line that a killed process left."""
    start = max(text.rfind(mark) for mark in _STARTS)
    return decode_line(text[start:]) if start > 0 else None


def hint_for(error: OSError) -> str:
    """What to do where a session file cannot be read."""
    if isinstance(error, FileNotFoundError):
        return "Check the path; a session file is written with INFERSPAN_SESSION_FILE=session.jsonl or Settings(session_file=...)"
    if isinstance(error, PermissionError):
        return "Check the permissions of the file"
    return "Give the path of a file of OTLP JSON lines"


def _nothing(path: Path, counts: LineCounts) -> str:
    if counts.too_long or counts.given_up:
        reason = f"; reading stopped because {counts.given_up}" if counts.given_up else ""
        long, other = counted(counts.too_long, "line is", "lines are"), counted(counts.bad, "line is", "lines are")
        return (
            f"session file {path} holds no line that can be read: {long} longer than {LONGEST_LINE >> 20} MiB, {other} not OTLP JSON"
            f"{reason}. Check that it is a file of OTLP JSON lines"
        )
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
    return no_otlp_lines(path, f" ({counted(counts.bad, 'other line')}{cut})")


def no_otlp_lines(path: Path, found: str = "") -> str:
    """The reason why a file is no session file, with what was found instead."""
    return (
        f"session file {path} holds no OTLP JSON lines{found}: expected one object with resourceSpans, resourceMetrics or resourceLogs a"
        " line, as inferspan's session_file and the collector's file exporter (format: json) write"
    )


def objects(parent: Mapping[str, Any], *keys: str) -> Iterator[Mapping[str, Any]]:
    """The objects of the first list found under one of ``keys``; anything else there counts as no objects."""
    for key in keys:
        found = parent.get(key)
        if isinstance(found, list):
            yield from (item for item in found if isinstance(item, dict))
            return


def text_of(value: object) -> str:
    """A string of OTLP JSON; empty where it is absent or something else."""
    return value if isinstance(value, str) else ""


def whole_number(value: object, least: int = -(2**63), most: int = 2**63 - 1) -> int | None:
    """An integer of OTLP JSON, which may be text or a number; ``None`` where it is absent, malformed or out of range."""
    if isinstance(value, str):
        found = int(value) if _WHOLE.fullmatch(value) else None
    elif isinstance(value, float):
        found = int(value) if value.is_integer() else None
    else:
        found = value if isinstance(value, int) and not isinstance(value, bool) else None
    return found if found is not None and least <= found <= most else None


def count_of(value: object) -> int | None:
    """A number of things, at most 64 bits and not negative; ``None`` where it is absent or malformed."""
    return whole_number(value, 0, 2**64 - 1)


def moment(value: object) -> int:
    """Nanoseconds since the Unix epoch; 0, which is how OTLP says unknown, where they are absent or malformed."""
    if type(value) is str and len(value) <= 19 and value.isascii() and value.isdecimal():
        return int(value)
    return count_of(value) or 0


def number(value: object) -> float | None:
    """A finite double of OTLP JSON; ``None`` where it is absent, malformed or not finite."""
    if isinstance(value, bool) or (isinstance(value, str) and len(value) > _LONGEST_NUMBER):
        return None
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def attributes_of(holder: Mapping[str, Any], known: dict[Value, Value], only: frozenset[str] | None = None) -> dict[str, Value]:
    """The ``attributes`` of an OTLP object as a mapping.

    Args:
        holder: span, event, data point, log record or resource.
        known: values seen so far; equal texts and arrays of a file are kept once, which halves the memory of module spans.
        only: keys that are wanted; default all.
    """
    found: dict[str, Value] = {}
    items = holder.get("attributes")
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict):
            continue
        key, raw = item.get("key"), item.get("value")
        if isinstance(key, str) and isinstance(raw, dict) and (only is None or key in only):
            value = _common_value(raw)
            if value is None:
                value = _value(raw)
            if value is not None:
                found[sys.intern(key)] = _shared(value, known)
    return found


def _common_value(raw: Mapping[str, Any]) -> Value | None:
    """The value as ``_value`` gives it, if it is of the kinds that nearly all are; these take half the time of reading a file."""
    if len(raw) != 1:
        return None
    for kind, content in raw.items():
        if kind == "stringValue":
            return content if type(content) is str else None
        if kind == "intValue":
            return int(content) if type(content) is str and len(content) < 16 and _WHOLE.fullmatch(content) else None
        if kind == "doubleValue":
            return content if type(content) is float and -math.inf < content < math.inf else None
        if kind == "arrayValue":
            values = content.get("values") if type(content) is dict else None
            if type(values) is not list or len(values) > 64:
                return None
            parts: tuple[Any, ...] = tuple([part.get("stringValue") if type(part) is dict and len(part) == 1 else None for part in values])
            return parts if all([type(part) is str for part in parts]) else None
    return None


def _shared(value: Value, known: dict[Value, Value]) -> Value:
    kind = type(value)
    if kind is float or kind is int or kind is bool:
        return value
    if isinstance(value, str) and len(value) <= _SHARED_TEXT:
        return _once(value, known)
    if isinstance(value, tuple) and len(value) <= 8 and all(isinstance(part, str) for part in value):
        return _once(value, known)
    return value


def _once(value: Value, known: dict[Value, Value]) -> Value:
    return known.setdefault(value, value) if len(known) < _MOST_SHARED else known.get(value, value)


def _value(raw: Mapping[str, Any], depth: int = 0) -> Value | None:
    for kind, content in raw.items():
        if kind in ("stringValue", "bytesValue"):
            return content if isinstance(content, str) else None
        if kind == "boolValue":
            return content if isinstance(content, bool) else None
        if kind == "intValue":
            return whole_number(content)
        if kind == "doubleValue":
            return number(content)
        if depth < 8 and isinstance(content, dict):
            if kind == "arrayValue":
                return tuple(part for item in objects(content, "values") if (part := _value(item, depth + 1)) is not None)
            if kind == "kvlistValue":
                return {
                    text_of(item.get("key")): part
                    for item in objects(content, "values")
                    if isinstance(item.get("value"), dict) and (part := _value(item["value"], depth + 1)) is not None
                }
    return None
