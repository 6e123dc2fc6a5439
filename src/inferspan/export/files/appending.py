"""A file that whole lines are appended to, by several exporters, threads and processes at the same time.

In come lines; out comes whether each was written. The file is created for its owner only, symbolic links are not followed, and a named
pipe is refused instead of waited for. A line that was cut off, by a full disk or a killed process, costs itself only: the next one begins
on a line of its own. Failures raise nothing: they are counted, and logged once for each time that writing fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import threading
import time
import weakref
from collections.abc import Iterator

from inferspan.ranks import filled
from inferspan.settings import SettingsError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["LIMITS", "SessionFile"]

_log = logging.getLogger("inferspan")

_LOCK_WAIT = 0.5
"""Longest time in seconds to wait for another process that is writing a line; a stopped process must not hold up the others."""
_LOG_INTERVAL = 60.0
_TRIES = 5
"""How often a file is looked up anew because it was replaced at that moment."""
LIMITS: dict[str, int] = {}
"""By absolute path, with its places such as ``{pid}`` not filled in: bytes after which the file is put aside and a new one begun."""
_OWNER_ONLY = 0o600
_STREAM_FOLDERS = ("/dev", "/dev/fd", "/proc/self/fd")
"""Only the system places links here: ``/dev/stdout`` and the pipes of a shell's process substitution."""
_REFUSED_KINDS = {
    stat.S_IFLNK: "it is a symbolic link, and those are not followed",
    stat.S_IFIFO: "it is a named pipe, which blocks until a reader opens it",
    stat.S_IFSOCK: "it is a socket",
    stat.S_IFBLK: "it is a block device",
    stat.S_IFDIR: "it is a directory",
}


class _Shared:
    """State of one file, shared by all exporters of the process that write to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.cut_off = False
        self.failing = False
        self.lost = 0
        self.logged_at: float | None = None

    def failed(self, path: object, records: int, error: OSError) -> None:
        """Note a failure; only the first of a series is logged, and at most one series a minute."""
        self.lost += records
        first, self.failing = not self.failing, True
        now = time.monotonic()
        if not first or (self.logged_at is not None and now - self.logged_at < _LOG_INTERVAL):
            return
        self.logged_at = now
        with contextlib.suppress(Exception):  # of a log handler of the program
            _log.warning(
                "inferspan cannot write to session file %r (%s): telemetry is lost until it can; your program is not affected,"
                " further failures are only counted",
                path, error.strerror or type(error).__name__,
            )  # fmt: skip

    def succeeded(self, path: object) -> None:
        """Note that a line was written."""
        if not self.failing:
            return
        lost, self.failing, self.lost = self.lost, False, 0
        with contextlib.suppress(Exception):
            _log.info("inferspan writes to session file %r again; records lost meanwhile: %d", path, lost)


_registry: weakref.WeakValueDictionary[tuple[int, int], _Shared] = weakref.WeakValueDictionary()
"""By device and inode, while somebody has the file: the system gives the number of a deleted file to another one."""
_registry_lock = threading.Lock()


def _renew_locks() -> None:
    global _registry_lock
    _registry_lock = threading.Lock()
    for shared in [*_registry.values()]:
        shared.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class SessionFile:
    """A file that lines are appended to.

    Args:
        path: a regular file, which is created with mode 0600 if it does not exist, or a device such as ``/dev/stdout``. Its places, such
            as ``{pid}``, are those of the process that writes: a forked child begins its own file.

    Raises:
        SettingsError: the path cannot be opened for writing, or is not a file to append to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given = os.fspath(path)
        self._given = os.path.abspath(given)
        self._limit = LIMITS.get(self._given, sys.maxsize)
        self._path = filled(given, os.environ)
        self._pid = os.getpid()
        self._place = os.path.abspath(self._path)
        self._file: int | None = None
        try:
            self._file = _open(self._path)
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise SettingsError(
                f"inferspan setting 'session_file' cannot be {self._path!r}: {reason}; use the path of a file"
                " that can be written, in a directory that exists"
            ) from None
        status = os.fstat(self._file)
        with _registry_lock:
            self._shared = _registry.setdefault((status.st_dev, status.st_ino), _Shared())

    def append(self, line: str, records: int = 1) -> bool:
        """Write one line.

        Args:
            line: text without line ends.
            records: number of records in the line; the log has the number of those that were lost.

        Returns:
            Whether all of the line was written.
        """
        data = line.encode("utf-8", "replace") + b"\n"
        shared = self._shared
        with shared.lock:
            if self._file is None:
                return False
            try:
                self._write(self._file, data, shared)
            except OSError as error:
                shared.failed(self._path, records, error)
                return False
            shared.succeeded(self._path)
        return True

    def _write(self, file: int, data: bytes, shared: _Shared) -> None:
        if self._is_of_another_process():
            self._path = filled(self._given, os.environ)
            self._place, self._pid = self._path, os.getpid()
            file = self._reopen(file)
        for _ in range(_TRIES):
            if self._was_replaced(file):
                file = self._reopen(file)
            with _locked(file):
                if self._was_replaced(file):  # while this process waited for the lock
                    continue
                size = os.fstat(file).st_size
                if not size or size + len(data) <= self._limit or not self._may_be_replaced(file) or not self._put_aside():
                    _write(file, data, shared)
                    return
        raise OSError(0, "it is replaced again and again")

    def _put_aside(self) -> bool:
        try:
            os.replace(self._place, self._place + ".1")
        except OSError:  # Windows renames no file that is open, and the folder may be read-only: the file grows on
            return False
        return True

    def _is_of_another_process(self) -> bool:
        """Whether this is a forked child, and the path names the process."""
        return "{pid}" in self._given and self._pid != os.getpid()

    def _may_be_replaced(self, file: int) -> bool:
        return stat.S_ISREG(os.fstat(file).st_mode) and os.path.dirname(self._path) not in _STREAM_FOLDERS

    def _was_replaced(self, file: int) -> bool:
        """Whether the file was deleted or renamed: what goes into it would be lost with its last descriptor, or be looked for in vain."""
        if not self._may_be_replaced(file):
            return False
        try:
            there, here = os.lstat(self._place), os.fstat(file)
        except FileNotFoundError:
            return True
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _reopen(self, file: int) -> int:
        """Begin a new file at the same place, or go on in the one that another process has begun."""
        self._file = new = _open(self._place)
        with contextlib.suppress(OSError):
            os.close(file)
        status = os.fstat(new)
        with _registry_lock:
            # One line at a time, also beside an object that is made after this.
            _registry.setdefault((status.st_dev, status.st_ino), self._shared)
        return new

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._shared.lock:
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):  # a network file system reports late errors here
                    os.close(file)


def _open(path: str) -> int:
    follow = os.path.dirname(path) in _STREAM_FOLDERS
    with contextlib.suppress(FileNotFoundError):
        _check_kind(os.stat(path) if follow else os.lstat(path), follow)
    flags = os.O_APPEND | os.O_CREAT
    for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY", "" if follow else "O_NOFOLLOW"):
        flags |= getattr(os, name, 0) if name else 0
    try:
        # Reading is for the last byte of the file: whether its last line is whole.
        file = os.open(path, flags | (os.O_WRONLY if follow else os.O_RDWR), _OWNER_ONLY)
    except PermissionError:
        file = os.open(path, flags | os.O_WRONLY, _OWNER_ONLY)
    try:
        _check_kind(os.fstat(file), follow)  # another file may be there by now
        if hasattr(os, "set_blocking") and hasattr(os, "O_NONBLOCK"):
            os.set_blocking(file, True)
    except BaseException:
        os.close(file)
        raise
    return file


def _check_kind(status: os.stat_result, follow: bool) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind in _REFUSED_KINDS and not (follow and kind == stat.S_IFIFO):
        raise OSError(0, _REFUSED_KINDS[kind])


def _write(file: int, data: bytes, shared: _Shared) -> None:
    left = memoryview(b"\n" + data if _cut_off(file, shared) else data)
    written = 0
    try:
        while left:  # on a full disk one call writes a part, and the next call fails
            count = os.write(file, left)
            written += count
            left = left[count:]
    finally:
        if written:
            shared.cut_off = bool(left)


def _cut_off(file: int, shared: _Shared) -> bool:
    """Whether the last line of the file lacks its line end, including lines of other writers."""
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        return shared.cut_off
    if status.st_size == 0:
        return False
    try:
        if hasattr(os, "pread"):
            return os.pread(file, 1, status.st_size - 1) != b"\n"
        os.lseek(file, -1, os.SEEK_END)
        return os.read(file, 1) != b"\n"
    except OSError:  # a file that may be written and not read
        return shared.cut_off


@contextlib.contextmanager
def _locked(file: int) -> Iterator[None]:
    """Keep other processes of ours from writing; a child of ``fork()`` counts as another one. Without the lock, writing goes on."""
    held = False
    if fcntl is not None:
        deadline = time.monotonic() + _LOCK_WAIT
        while not held:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.001)
            except OSError:  # devices, and file systems without locks
                break
    try:
        yield
    finally:
        if held:
            with contextlib.suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_UN)
