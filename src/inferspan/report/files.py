"""Paths of the command line -> session files: a folder stands for those in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inferspan.report.stream import SessionFileError

__all__ = ["session_files"]

_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.1")
_PERHAPS = (".json", ".json.gz")
"""The collector's file exporter is often told to write these; so are reports."""
_SIGNALS = (b'"resourceSpans"', b'"resourceMetrics"', b'"resourceLogs"')
_MOST = 10_000


def session_files(paths: Sequence[Path]) -> list[Path]:
    """The files, with those of each folder in order of their names.

    Raises:
        SessionFileError: a folder holds no session file, or cannot be read.
    """
    found: list[Path] = []
    for path in paths:
        found.extend(_inside(path) if path.is_dir() else [path])
    return list(dict.fromkeys(found))


def _inside(folder: Path) -> list[Path]:
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())[:_MOST]
    except OSError as error:
        raise SessionFileError(f"cannot read folder {folder}: {error.strerror or error}. Check its permissions") from None
    chosen = [path for path in files if path.name.endswith(_SUFFIXES) or (path.name.endswith(_PERHAPS) and _holds_telemetry(path))]
    if not chosen:
        raise SessionFileError(f"folder {folder} holds no session file: name the files, or write them as *.jsonl")
    return chosen


def _holds_telemetry(path: Path) -> bool:
    if path.name.endswith(".gz"):
        return True
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError:
        return False
    return any(signal in head for signal in _SIGNALS)
