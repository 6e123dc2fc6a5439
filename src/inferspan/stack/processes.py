"""Processes that are still the ones we started: found again by number and start mark, ended with all that they have forked.

A process number is given again by the system; together with the mark of its start it is not. A program leads a session of its own,
so that its forks can be found after it is gone. Nothing here raises where a process has ended in between.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Reference", "end", "is_alive", "listening_ports", "members", "reference"]

_POSIX = os.name == "posix"
_AFTER_KILL = 5.0


@dataclass(frozen=True)
class Reference:
    """One process: its number and a mark of its start that no later process has."""

    pid: int
    mark: str


def reference(pid: int) -> Reference:
    """The reference of a running process; the mark is empty if it has ended."""
    return Reference(pid, _mark(pid))


def is_alive(process: Reference) -> bool:
    """Whether this very process still runs."""
    return bool(process.mark) and _mark(process.pid) == process.mark and not _is_zombie(process.pid)


def members(leader: Reference) -> list[int]:
    """Numbers of the processes of a program: itself and what it has started, also when it has itself ended."""
    if _mark(leader.pid) not in ("", leader.mark) or not leader.mark:
        return []  # another process has the number now
    if not _POSIX:
        try:
            process = psutil.Process(leader.pid)
            return [leader.pid, *(child.pid for child in process.children(recursive=True))]
        except psutil.Error:
            return []
    return [pid for pid in psutil.pids() if _session(pid) == leader.pid and not _is_zombie(pid)]


def end(
    leaders: Iterable[Reference], *, grace: float, reap: Callable[[], object] = lambda: None, hurry: Callable[[], bool] = lambda: False
) -> list[int]:
    """End programs with all that they have forked: ask, wait, then kill.

    Args:
        leaders: the programs.
        grace: seconds between asking and killing; 0 kills at once.
        reap: called while waiting, to collect children that have ended.
        hurry: becomes true when there is no more waiting.

    Returns:
        Numbers of the processes that had to be killed.
    """
    leaders = list(leaders)
    if grace > 0:
        for leader in leaders:
            for pid in members(leader):
                _signal(pid, signal.SIGTERM)
                if _POSIX:
                    _signal(pid, signal.SIGCONT)  # one that is suspended hears nothing
        _wait(leaders, grace, reap, hurry)
    killed: list[int] = []
    deadline = time.monotonic() + _AFTER_KILL
    # Repeated: a process may fork between being listed and being killed.
    while (left := [pid for leader in leaders for pid in members(leader)]) and time.monotonic() < deadline:
        for pid in left:
            _signal(pid, signal.SIGKILL if _POSIX else signal.SIGTERM)
        killed += [pid for pid in left if pid not in killed]
        reap()
        time.sleep(0.02)
    return killed


def listening_ports(pid: int) -> set[int]:
    """The TCP ports that a process listens on; empty if it cannot be looked at."""
    try:
        process = psutil.Process(pid)
        # The name of this method changed in psutil 6.
        look = getattr(process, "net_connections", None) or process.connections
        return {entry.laddr.port for entry in look(kind="tcp") if entry.status == psutil.CONN_LISTEN and entry.laddr}
    except (psutil.Error, OSError):
        return set()


def _wait(leaders: list[Reference], seconds: float, reap: Callable[[], object], hurry: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while any(members(leader) for leader in leaders) and time.monotonic() < deadline and not hurry():
        reap()
        time.sleep(0.05)


def _mark(pid: int) -> str:
    """A value that no later process with this number has. On Linux not the time of day, which changes when the clock is set."""
    try:
        if (boot := Path("/proc/sys/kernel/random/boot_id")).exists():
            return f"{boot.read_text().strip()}/{_stat(pid)[19]}"
        return f"{psutil.Process(pid).create_time():.3f}"
    except (psutil.Error, OSError, IndexError):
        return ""


def _stat(pid: int) -> list[str]:
    # The second field, a name in brackets, may itself hold spaces and brackets.
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it has ended
