"""Where a session may come from, and how much of it is held: pipes as files, and an end for what has none."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.report.otlp_lines import LineCounts, read_lines
from inferspan.report.session import SessionFileError, read_session
from inferspan.report.stream import LONGEST_LINE
from inferspan.report.terminal import summary

MEBIBYTE = 1024 * 1024


def one_line(name: str, **fields: Any) -> bytes:
    """A line with one request."""
    span = {"traceId": "1" * 32, "spanId": name.encode().hex().ljust(16, "0"), "name": f"forward {name}", **fields}
    line = {"resourceSpans": [{"scopeSpans": [{"scope": {"name": semconv.SCOPE}, "spans": [span]}]}]}
    return json.dumps(line).encode() + b"\n"


def names(path: Path) -> list[str]:
    """The requests of a session file."""
    return [request.span.name for request in read_session(path).requests]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_pipe_reads_as_the_file_does(session_path: Path, tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """Nothing is lost to looking at the first bytes, also when they come one by one."""
    pipe, data = tmp_path / "pipe", pack(session_path.read_bytes())
    os.mkfifo(pipe)

    def feed() -> None:
        with pipe.open("wb", buffering=0) as stream:
            for begin, end in ((0, 1), (1, 3), (3, 9), (9, None)):
                stream.write(data[begin:end])

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    found = summary(read_session(pipe)).splitlines()[1:]
    thread.join(60)
    assert found == summary(read_session(session_path)).splitlines()[1:]


def test_standard_input_reads_as_the_file_does(session_path: Path) -> None:
    """``/dev/stdin`` is a path like any other."""
    code = "from inferspan.report.session import read_session; print(len(read_session('/dev/stdin').requests))"
    done = subprocess.run([sys.executable, "-c", code], input=session_path.read_bytes(), capture_output=True, check=True)
    assert done.stdout == b"3\n"


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    """A link to itself is one clear error."""
    (tmp_path / "s.jsonl").symlink_to(tmp_path / "s.jsonl")
    with pytest.raises(SessionFileError, match=r"Too many levels of symbolic links\. Give the path of a file"):
        read_session(tmp_path / "s.jsonl")


def test_a_name_with_a_zero_byte_is_refused() -> None:
    """What the system cannot take as a name is the same error."""
    with pytest.raises(SessionFileError, match="null byte"):
        read_session("a\0b")


def test_a_line_that_is_too_long_is_left_out(tmp_path: Path) -> None:
    """The lines around it are read, and a note says which one is missing."""
    path = tmp_path / "s.jsonl"
    long = one_line("b", attributes=[{"key": "a", "value": {"stringValue": "x" * LONGEST_LINE}}])
    path.write_bytes(one_line("a") + long + one_line("c"))
    session = read_session(path)
    assert [request.span.name for request in session.requests] == ["forward a", "forward c"]
    assert session.notes == ["Lines longer than 32 MiB, left out: 1; the first is line 2."]


def test_a_line_of_empty_objects_is_left_out(tmp_path: Path) -> None:
    """Two bytes of text that take sixty of memory are not decoded by the million."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(one_line("a") + b'{"resourceSpans":[' + b"{}," * (2 * MEBIBYTE) + b"{}]}\n" + one_line("c"))
    session = read_session(path)
    assert [request.span.name for request in session.requests] == ["forward a", "forward c"]
    assert session.lines.bad == 1


LIMITED = """
import resource, sys
from inferspan.report.session import SessionFileError, read_session
resource.setrlimit(resource.RLIMIT_AS, (600 * 1024 * 1024,) * 2)
try:
    print(read_session(sys.argv[1]).notes)
except SessionFileError as error:
    print(error)
"""


def read_in_little_memory(path: Path | str) -> str:
    """The notes of a session, or the error, of a process that may use 600 MiB of addresses."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=False, timeout=600)
    assert done.stderr == ""
    return done.stdout


def test_an_endless_line_ends() -> None:
    """A device that gives no end of line is given up, in bounded memory."""
    assert "reading stopped because for 1,024 MiB there was no usable line" in read_in_little_memory("/dev/zero")


def test_a_large_attribute_takes_no_memory(tmp_path: Path) -> None:
    """An attribute of 500 MB is passed by, and the next line is read."""
    path = tmp_path / "s.jsonl"
    with path.open("wb") as stream:
        stream.write(one_line("a", attributes=[{"key": "a", "value": {"stringValue": "PLACE"}}]).split(b"PLACE")[0])
        for _ in range(500):
            stream.write(b"x" * MEBIBYTE)
        stream.write(b'"}}]}]}]}]}\n' + one_line("b"))
    assert read_in_little_memory(path) == "['Lines longer than 32 MiB, left out: 1; the first is line 1.']\n"


def test_a_decompression_bomb_is_given_up(tmp_path: Path) -> None:
    """A small packed file that expands without end is not followed; what came before it is read."""
    path = tmp_path / "s.jsonl.gz"
    with gzip.open(path, "wb") as stream:
        stream.write(one_line("a"))
        for _ in range(200):
            stream.write(b"\0" * MEBIBYTE)
    assert read_in_little_memory(path) == (
        "['Lines longer than 32 MiB, left out: 1; the first is line 2.',"
        " 'The rest of the file was not read: it expands more than 150 times, as no telemetry does.']\n"
    )


def test_a_record_after_a_torn_one_is_read(tmp_path: Path) -> None:
    """Other writers go on in the line that a killed process left: the torn record costs itself only."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(one_line("a")[:60] + one_line("b") + one_line("c"))
    assert names(path) == ["forward b", "forward c"]
    assert read_session(path).lines.bad == 1


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_of_many_digits_does_not_cost_the_line(tmp_path: Path, digits: int) -> None:
    """Python converts no integer of more than 4,300 digits; such a value is absent and the rest is there."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(one_line("a", startTimeUnixNano="MANY", endTimeUnixNano=2).replace(b'"MANY"', b"9" * digits))
    (request,) = read_session(path).requests
    assert (request.span.name, request.span.start_ns, request.span.end_ns) == ("forward a", 0, 2)


def test_the_length_of_each_line_is_told(tmp_path: Path) -> None:
    """Readers that bound their memory learn how much text each object came from."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(one_line("a"))
    assert [size for _, size in read_lines(path, LineCounts())] == [len(one_line("a"))]
