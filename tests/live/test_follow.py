"""A session file that is read while it is written."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from inferspan.live.follow import follow
from inferspan.report.otlp_lines import SessionFileError
from inferspan.report.stream import LONGEST_LINE


def _line(number: int) -> bytes:
    return json.dumps({"resourceSpans": [{"number": number}]}).encode() + b"\n"


def _numbers(lines: Iterator[Mapping[str, Any] | None]) -> list[int]:
    """Those that are there by now."""
    return [line["resourceSpans"][0]["number"] for line in itertools.takewhile(lambda line: line is not None, lines) if line]


def _following(path: Path, *, from_start: bool = True) -> Iterator[Mapping[str, Any] | None]:
    return follow(path, from_start=from_start, wait=lambda _: None)


def test_lines_come_as_they_are_written(tmp_path: Path) -> None:
    """First those that are there, then the new ones."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(_line(1))
    lines = _following(path)
    assert _numbers(lines) == [1]
    with path.open("ab") as file:
        file.write(_line(2) + _line(3))
    assert _numbers(lines) == [2, 3]


def test_only_what_is_new_from_the_end_on(tmp_path: Path) -> None:
    """A list of requests as they end does not begin with those of yesterday."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(_line(1))
    lines = _following(path, from_start=False)
    assert _numbers(lines) == []
    with path.open("ab") as file:
        file.write(_line(2))
    assert _numbers(lines) == [2]


def test_the_file_need_not_exist_yet(tmp_path: Path) -> None:
    """It is read from its first line on when it comes."""
    path = tmp_path / "s.jsonl"
    lines = _following(path, from_start=False)
    assert _numbers(lines) == []
    path.write_bytes(_line(1))
    assert _numbers(lines) == [1]


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    """It is neither lost nor read in halves."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(_line(1)[:10])
    lines = _following(path)
    assert _numbers(lines) == []
    with path.open("ab") as file:
        file.write(_line(1)[10:])
    assert _numbers(lines) == [1]


def test_a_rotated_file_goes_on_with_the_new_one(tmp_path: Path) -> None:
    """The old one is read to its end first."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(_line(1))
    lines = _following(path)
    assert _numbers(lines) == [1]
    path.rename(tmp_path / "s.jsonl.1")
    path.write_bytes(_line(2))
    assert _numbers(lines) == [2]


def test_a_file_that_was_emptied_is_read_anew(tmp_path: Path) -> None:
    """A second run may write over the first one's file."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(_line(1) + _line(2))
    lines = _following(path)
    assert _numbers(lines) == [1, 2]
    path.write_bytes(_line(3))
    assert _numbers(lines) == [3]


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    """Those around them are read."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(_line(1) + b"{broken\n\xff\xfe\n[]\n" + _line(2))
    assert _numbers(_following(path)) == [1, 2]


def test_an_endless_line_is_not_held(tmp_path: Path) -> None:
    """It is skipped, and the next one is read."""
    path = tmp_path / "s.jsonl"
    with path.open("wb") as file:
        for _ in range(3):
            file.write(b"x" * LONGEST_LINE)
        file.write(b"\n" + _line(1))
    assert _numbers(_following(path)) == [1]


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """Then the lines end, as nothing more can come."""
    read, write = os.pipe()
    os.write(write, _line(1))
    os.close(write)
    try:
        found = [line for line in _following(Path(f"/dev/fd/{read}")) if line is not None]
    finally:
        os.close(read)
    assert len(found) == 1


def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    """It cannot grow; the error names the command that reads it."""
    path = tmp_path / "s.jsonl.gz"
    path.write_bytes(gzip.compress(_line(1)))
    with pytest.raises(SessionFileError, match="inferspan report"):
        next(_following(path))
