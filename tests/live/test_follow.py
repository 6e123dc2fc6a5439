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

from inferspan.live.follow import EARLIER_END, MOST_EARLIER, follow
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


def test_what_was_there_before_is_marked(tmp_path: Path) -> None:
    """A list of requests as they end can leave out those of yesterday."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(_line(1))
    lines = _following(path, from_start=False)
    assert _numbers(itertools.takewhile(lambda line: line is not EARLIER_END, lines)) == [1]
    with path.open("ab") as file:
        file.write(_line(2))
    assert _numbers(lines) == [2]
    assert EARLIER_END not in list(itertools.islice(lines, 5))


def test_much_that_was_there_before_is_passed_over(tmp_path: Path) -> None:
    """It is not read for nothing, and the reader hears of it; the end of a line that is being written is no bad line."""
    path = tmp_path / "s.jsonl"
    with path.open("wb") as file:
        file.write(_line(1))
        file.seek(MOST_EARLIER)
        file.write(b'{"resourceSpans": [')
    told: list[str] = []
    lines = follow(path, from_start=False, wait=lambda _: None, told=told.append)
    assert _numbers(lines) == []
    with path.open("ab") as file:
        file.write(b"]}\n" + _line(2))
    assert _numbers(lines) == [2]
    assert told == [f"what {path} holds already (64 MiB) is not shown; --from-start shows it"]


def test_a_file_that_does_not_exist_is_told(tmp_path: Path) -> None:
    """Also where its folder does not, which may be a slip; and when it has come."""
    path = tmp_path / "none" / "s.jsonl"
    told: list[str] = []
    lines = follow(path, from_start=True, wait=lambda _: None, told=told.append)
    assert _numbers(lines) == []
    assert told == [f"waiting for {path}, which does not exist yet; its folder {path.parent} does not exist either"]
    path.parent.mkdir()
    path.write_bytes(b"")
    assert _numbers(lines) == []
    assert told[1:] == [f"reading {path}"]


@pytest.mark.parametrize("content", [b"hello\nworld\n", b"hello", b"\x89PNG\r\n\x1a\n\0\0", b'{"a": 1}\n', b"[1, 2]"])
def test_a_file_of_something_else_is_refused(content: bytes, tmp_path: Path) -> None:
    """Nothing would ever be shown."""
    path = tmp_path / "s.txt"
    path.write_bytes(content)
    with pytest.raises(SessionFileError, match="holds no OTLP JSON lines: expected one object with resourceSpans"):
        _numbers(_following(path))


def test_a_last_line_without_its_end_is_read(tmp_path: Path) -> None:
    """Where nobody goes on writing, it would never come."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(_line(1) + _line(2).rstrip())
    lines = _following(path)
    assert _numbers(lines) == [1, 2]
    with path.open("ab") as file:
        file.write(b"\n" + _line(3))
    assert _numbers(lines) == [3]


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
    told: list[str] = []
    assert _numbers(follow(path, from_start=True, wait=lambda _: None, told=told.append)) == [1, 2]
    assert told == [f"{path} has lines that are not OTLP JSON; they are left out"]


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
        found = [line for line in _following(Path(f"/dev/fd/{read}")) if line]
    finally:
        os.close(read)
    assert len(found) == 1


def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    """It cannot grow; the error names the command that reads it."""
    path = tmp_path / "s.jsonl.gz"
    path.write_bytes(gzip.compress(_line(1)))
    with pytest.raises(SessionFileError, match="inferspan report"):
        next(_following(path))
