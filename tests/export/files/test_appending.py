"""The session file itself: lines stay whole whatever happens to the disk, and nobody else reads them or chooses where they go."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferspan.export.files.appending import LIMITS, SessionFile
from inferspan.settings import SettingsError

resource = pytest.importorskip("resource", reason="limits and modes of POSIX")


@pytest.fixture
def disk_limit() -> Iterator[None]:
    """Lets a test limit the size of files, which fails like a full disk; the limit is taken back at the end."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, previous)


def leave_room(size: int) -> None:
    """Limit the size of files to this number of bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def make_room() -> None:
    """Take the limit back."""
    leave_room(resource.getrlimit(resource.RLIMIT_FSIZE)[1])


def test_a_line_after_a_torn_tail_begins_anew(tmp_path: Path) -> None:
    """Half a line that a killed process left costs itself only."""
    path = tmp_path / "s.jsonl"
    path.write_text('{"a":1}\n{"b"')
    file = SessionFile(path)
    file.append('{"c":3}')
    file.close()
    assert path.read_text() == '{"a":1}\n{"b"\n{"c":3}\n'


def test_a_whole_tail_gets_no_empty_line(tmp_path: Path) -> None:
    """A file that ends as it should is continued without a gap."""
    path = tmp_path / "s.jsonl"
    path.write_text('{"a":1}\n')
    file = SessionFile(path)
    file.append('{"c":3}')
    file.close()
    assert path.read_text() == '{"a":1}\n{"c":3}\n'


def test_a_torn_tail_of_another_exporter_is_seen(tmp_path: Path) -> None:
    """Two objects write to one file; what tore between two lines of one of them does not take the second."""
    path = tmp_path / "s.jsonl"
    file = SessionFile(path)
    file.append("1")
    with path.open("a") as stream:
        stream.write("torn")
    file.append("2")
    file.close()
    assert path.read_text() == "1\ntorn\n2\n"


def test_a_torn_tail_of_a_file_that_may_not_be_read(tmp_path: Path, disk_limit: None) -> None:
    """Where the last byte cannot be looked at, a line that this process could not finish is remembered."""
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = tmp_path / "s.jsonl"
    path.touch(0o200)
    file = SessionFile(path)
    leave_room(4)
    file.append("torn line")
    make_room()
    file.append("whole")
    file.close()
    path.chmod(0o600)
    assert path.read_text() == "torn\nwhole\n"


def test_a_full_disk_is_a_failure(tmp_path: Path, disk_limit: None) -> None:
    """A line of which only a part fits is not written."""
    file = SessionFile(tmp_path / "s.jsonl")
    leave_room(10)
    assert file.append("x" * 20) is False
    file.close()


def test_writing_recovers_by_itself(tmp_path: Path, disk_limit: None) -> None:
    """As soon as there is room, lines are whole again."""
    path = tmp_path / "s.jsonl"
    file = SessionFile(path)
    leave_room(5)
    file.append("x" * 20)
    make_room()
    assert file.append("whole") is True
    file.close()
    assert path.read_text() == "xxxxx\nwhole\n"


def test_a_full_disk_is_one_line_in_the_log(tmp_path: Path, disk_limit: None, caplog: pytest.LogCaptureFixture) -> None:
    """Three exporters of one file that fail again and again, with room in between, warn once."""
    files = [SessionFile(tmp_path / "s.jsonl") for _ in range(3)]
    for _ in range(3):
        leave_room(5)
        for file in files:
            file.append("x" * 20)
        make_room()
        files[0].append("x")
    for file in files:
        file.close()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "cannot write to session file" in record.getMessage()


def test_the_log_says_what_was_lost(tmp_path: Path, disk_limit: None, caplog: pytest.LogCaptureFixture) -> None:
    """When writing works again, an informative line has the number of records that were lost."""
    caplog.set_level(logging.INFO, logger="inferspan")
    file = SessionFile(tmp_path / "s.jsonl")
    leave_room(5)
    file.append("x" * 20, records=4)
    make_room()
    file.append("x")
    file.close()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.INFO] == [
        f"inferspan writes to session file {str(tmp_path / 's.jsonl')!r} again; records lost meanwhile: 4"
    ]


def test_a_deleted_file_begins_anew(tmp_path: Path) -> None:
    """What is written after somebody has deleted the file can be read at the same place, by all exporters, with the same mode."""
    path = tmp_path / "session.jsonl"
    spans, metrics = SessionFile(path), SessionFile(path)
    assert spans.append("{}")
    path.unlink()
    assert spans.append('{"spans":1}')
    assert metrics.append('{"metrics":1}')
    assert path.read_text().splitlines() == ['{"spans":1}', '{"metrics":1}']
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_deleted_folder_is_a_failure(tmp_path: Path) -> None:
    """Where no new file can be made, the record is refused, until there is a folder again."""
    folder = tmp_path / "folder"
    folder.mkdir()
    file = SessionFile(folder / "session.jsonl")
    shutil.rmtree(folder)
    assert not file.append("{}")
    folder.mkdir()
    assert file.append("{}")
    assert (folder / "session.jsonl").read_text() == "{}\n"


def test_a_closed_file_refuses(tmp_path: Path) -> None:
    """Lines that come after the end are not written."""
    file = SessionFile(tmp_path / "s.jsonl")
    file.close()
    file.close()
    assert file.append("x") is False
    assert (tmp_path / "s.jsonl").read_bytes() == b""


def test_a_new_file_is_for_its_owner(tmp_path: Path) -> None:
    """Prompts and outputs may stand in it, so nobody else may read it, whatever the umask."""
    previous = os.umask(0)
    try:
        SessionFile(tmp_path / "s.jsonl").close()
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "s.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize("exists", [True, False], ids=["to a file", "dangling"])
def test_a_planted_link_is_not_followed(tmp_path: Path, exists: bool) -> None:
    """A link at the place of the file is refused, and what it points to is not touched."""
    target = tmp_path / "precious"
    if exists:
        target.write_text("precious")
    (tmp_path / "s.jsonl").symlink_to(target)
    with pytest.raises(SettingsError, match="it is a symbolic link, and those are not followed; use the path of a file"):
        SessionFile(tmp_path / "s.jsonl")
    assert (target.read_text() if exists else target.exists()) == ("precious" if exists else False)


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    """A link to itself is one clear error."""
    (tmp_path / "s.jsonl").symlink_to(tmp_path / "s.jsonl")
    with pytest.raises(SettingsError, match="it is a symbolic link"):
        SessionFile(tmp_path / "s.jsonl")


def test_a_loop_of_links_on_the_way_is_refused(tmp_path: Path) -> None:
    """A folder that is a link to itself is one clear error."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(SettingsError, match="Too many levels of symbolic links"):
        SessionFile(tmp_path / "loop" / "s.jsonl")


@pytest.mark.parametrize("reader", [True, False], ids=["with a reader", "without a reader"])
def test_a_named_pipe_is_refused_at_once(tmp_path: Path, reader: bool) -> None:
    """A pipe that nobody reads would block the program for ever."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if reader else None
    found: list[str] = []

    def attempt() -> None:
        try:
            SessionFile(path)
        except SettingsError as error:
            found.append(str(error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(60)
    if end is not None:
        os.close(end)
    assert ["it is a named pipe" in text for text in found] == [True]


def test_a_socket_is_refused(tmp_path: Path) -> None:
    """The path of a socket is one clear error."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(SettingsError, match="it is a socket"):
            SessionFile(tmp_path / "s")


def test_a_path_with_a_zero_byte_is_refused() -> None:
    """What the system cannot take as a path is the same error as any other path that does not work."""
    with pytest.raises(SettingsError, match="null byte"):
        SessionFile("a\0b")


def test_standard_output_may_be_a_pipe() -> None:
    """``/dev/stdout`` is a link of the system's to a pipe that is open already."""
    code = "from inferspan.export.files.appending import SessionFile; SessionFile('/dev/stdout').append('line')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "line\n"


def test_processes_that_run_out_of_room_together_keep_lines_apart(tmp_path: Path) -> None:
    """Several processes tear lines and go on; every line that was written whole can be read."""
    path = tmp_path / "s.jsonl"
    code = """
import os, resource, signal, sys
from inferspan.export.files.appending import LIMITS, SessionFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file, written = SessionFile(sys.argv[1]), 0
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for number in range(200):
    size = os.path.getsize(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50 if number % 3 == 0 else hard, hard))
    written += file.append(sys.argv[2] * 100)
print(written)
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(path), sign], stdout=subprocess.PIPE, text=True) for sign in "abc"
    ]
    written = sum(int(process.communicate(timeout=300)[0]) for process in processes)
    whole = [line for line in path.read_text().splitlines() if line in {sign * 100 for sign in "abc"}]
    assert len(whole) == written


def test_a_forked_child_goes_on_with_the_file(tmp_path: Path) -> None:
    """A child of fork() that was made while a line was being written does not wait for a lock that nobody holds."""
    path = tmp_path / "s.jsonl"
    code = """
import os, sys
from inferspan.export.files.appending import LIMITS, SessionFile
file, write = SessionFile(sys.argv[1]), os.write
def fork_first(descriptor, data):
    os.write = write
    child = os.fork()
    if not child:
        os._exit(0 if file.append("child") else 1)
    assert os.waitpid(child, 0)[1] == 0
    return write(descriptor, data)
os.write = fork_first
file.append("parent")
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=300)
    assert path.read_text() == "child\nparent\n"


def test_each_process_writes_its_own_file(tmp_path: Path) -> None:
    """With its number in the path, a forked child does not write into its parent's."""
    file = SessionFile(tmp_path / "s-{pid}.jsonl")
    file.append("parent")
    child = os.fork()
    if not child:
        os._exit(0 if file.append("child") else 1)
    assert os.waitpid(child, 0)[1] == 0
    file.append("parent again")
    assert (tmp_path / f"s-{os.getpid()}.jsonl").read_text() == "parent\nparent again\n"
    assert (tmp_path / f"s-{child}.jsonl").read_text() == "child\n"


def test_a_renamed_file_is_followed_by_a_new_one(tmp_path: Path) -> None:
    """As tools that rotate files expect it."""
    path = tmp_path / "s.jsonl"
    file = SessionFile(path)
    file.append("1")
    path.rename(tmp_path / "old")
    file.append("2")
    assert (path.read_text(), (tmp_path / "old").read_text()) == ("2\n", "1\n")


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Path]:
    """A path whose file is put aside before it has more than 100 bytes."""
    path = tmp_path / "s.jsonl"
    LIMITS[str(path)] = 100
    yield path
    del LIMITS[str(path)]


def test_a_file_over_its_limit_is_put_aside(limited: Path) -> None:
    """Lines stay whole, the newest are in the file, those before them in the one beside it."""
    files = [SessionFile(limited) for _ in range(3)]
    for number in range(40):
        files[number % 3].append(f"line {number:04}")
    found = limited.with_name("s.jsonl.1").read_text() + limited.read_text()
    lines = [int(line.split()[1]) for line in found.splitlines()]
    assert lines == list(range(lines[0], 40))
    assert limited.stat().st_size <= 100


def test_a_line_over_the_limit_is_written(limited: Path) -> None:
    """Alone in its file: a limit costs no record."""
    file = SessionFile(limited)
    assert file.append("x" * 500)
    assert file.append("y" * 500)
    assert limited.read_text() == "y" * 500 + "\n"


def test_processes_put_a_file_aside_together(limited: Path) -> None:
    """None of them goes on in the file that was put aside, and no line is torn."""
    LIMITS[str(limited)] = 4000
    file = SessionFile(limited)
    children = []
    for name in "abc":
        child = os.fork()
        if not child:
            os._exit(0 if all(file.append(f"{name} {number:03} {'x' * 20}") for number in range(200)) else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    text = limited.read_text()
    assert len(text) <= 4000
    assert all(len(line) == 26 for line in text.splitlines())
    last = {line[0]: int(line[2:5]) for line in (limited.with_name("s.jsonl.1").read_text() + text).splitlines()}
    assert max(last.values()) == 199


def test_the_next_file_has_a_log_line_of_its_own(tmp_path: Path, disk_limit: None, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the system gives it the inode of one that was deleted a moment ago."""
    for _ in range(3):
        file = SessionFile(tmp_path / "s.jsonl")
        leave_room(5)
        file.append("x" * 20)
        make_room()
        file.close()
        del file
        (tmp_path / "s.jsonl").unlink()
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 3
