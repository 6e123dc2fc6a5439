"""The state of a stack, in a file of its folder: its processes, start, ports, and how it ended.

Written by the supervisor alone, each time as a whole; read by every command. The lock that goes with it is held by the supervisor for
as long as it lives. Fails with ``StackError`` where the folder cannot be used or the file cannot be read.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from inferspan.stack.errors import StackError
from inferspan.stack.processes import Reference, is_alive

__all__ = [
    "FAILED",
    "READY",
    "STARTING",
    "STOPPED",
    "STOPPING",
    "Lock",
    "Running",
    "State",
    "default_folder",
    "is_held",
    "read_state",
    "supervisor_of",
    "write_state",
]

STARTING, READY, STOPPING, STOPPED, FAILED = "starting", "ready", "stopping", "stopped", "failed"
_FILE, _LOCK = "state.json", "stack.lock"


@dataclass
class Running:
    """A program of a stack; ``ready_after`` is in seconds, None while it is not ready."""

    name: str
    process: Reference
    health: str
    address: str
    ports: dict[str, str]
    log: str
    ready_after: float | None = None
    exit_code: int | None = None


@dataclass
class State:
    """A stack. ``phase`` is one of starting, ready, stopping, stopped, failed; ``problem`` says why it failed."""

    folder: str
    mode: str
    phase: str
    supervisor: Reference
    addresses: list[tuple[str, str]]
    endpoint: str
    notes: list[tuple[str, str]]
    grace: float = 10.0
    programs: list[Running] = field(default_factory=list)
    problem: str = ""
    host: str = field(default_factory=platform.node)
    started: float = field(default_factory=time.time)

    def ports(self) -> dict[str, str]:
        """All ports, by the variable of each."""
        return {variable: text for each in self.programs for variable, text in each.ports.items()}

    @property
    def ended(self) -> bool:
        """Whether the supervisor said that it was over."""
        return self.phase in (STOPPED, FAILED)


def default_folder(environ: Mapping[str, str], system: str = sys.platform) -> Path:
    """The folder of this user's stack: where the system keeps state of programs.

    Raises:
        StackError: nothing says where that is.
    """
    given = environ.get("XDG_STATE_HOME", "")
    try:
        return _default_folder(environ, system, given if os.path.isabs(given) else "")
    except RuntimeError:
        raise StackError("this user has no home folder: name a folder with --dir, or set HOME") from None


def _default_folder(environ: Mapping[str, str], system: str, given: str) -> Path:
    if system == "win32":
        return Path(environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "inferspan" / "stack"
    if system == "darwin":
        return Path.home() / "Library" / "Application Support" / "inferspan" / "stack"
    return Path(given or Path.home() / ".local" / "state") / "inferspan" / "stack"


def write_state(state: State) -> None:
    """Replace the file as a whole, so that a reader never sees half of it."""
    target = Path(state.folder) / _FILE
    new = target.with_suffix(".new")
    new.write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
    os.replace(new, target)


def read_state(folder: Path) -> State | None:
    """The state of a folder; None if there never was a stack.

    Raises:
        StackError: the file is not one of ours.
    """
    file = folder / _FILE
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        values["supervisor"] = Reference(**values["supervisor"])
        values["programs"] = [Running(**{**each, "process": Reference(**each["process"])}) for each in values["programs"]]
        for name in ("addresses", "notes"):
            values[name] = [(pair[0], pair[1]) for pair in values[name]]
        # Another version of ours may have written it, with more or fewer of the fields that have a default.
        return State(**{each.name: values[each.name] for each in fields(State) if each.name in values})
    except FileNotFoundError:
        return None
    except PermissionError:
        raise StackError(f"{file} cannot be read, it may be that of another user: choose another folder with --dir") from None
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise StackError(f"{file} cannot be read ({type(error).__name__}): delete it, and end programs that still run by hand") from None


def supervisor_of(state: State | None) -> Reference | None:
    """The supervisor, if this very process still runs.

    Raises:
        StackError: the stack may run on another machine that shares this folder.
    """
    if state is None or state.ended:
        return None
    if is_alive(state.supervisor):
        return state.supervisor
    if state.host != platform.node():
        raise StackError(
            f"{state.folder} belongs to a stack on the machine {state.host!r}, this is {platform.node()!r}.\n"
            f"Stop it there, or choose another folder with --dir; if it is gone for good, delete {Path(state.folder) / _FILE}."
        )
    return None


def is_held(folder: Path) -> bool:
    """Whether an `up` or a supervisor has the folder. Never on Windows, and where there are no locks."""
    try:
        import fcntl

        with (folder / _LOCK).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        pass
    return False


class Lock:
    """Held by who starts a stack in a folder, and then by its supervisor, which inherits it. Without effect on Windows.

    Raises:
        StackError: the folder cannot be used, or it holds other files.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The stack deletes the files that it writes there: `--dir .` must not cost a user a folder called data or grafana.
            if any(folder.iterdir()) and not ((folder / _LOCK).exists() or (folder / _FILE).exists()):
                raise StackError(f"{folder} holds files that are not of a stack: choose an empty or a new folder with --dir")
            self.descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StackError(f"the folder {folder} cannot be used: {error.strerror}; choose another one with --dir") from None

    def take(self, tries: int = 5) -> bool:
        """Take it, if no process has it."""
        try:
            import fcntl
        except ImportError:
            return True
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if tries > 1:  # `is_held` has it for a moment
                time.sleep(0.02)
                return self.take(tries - 1)
            return False
        except OSError:
            pass  # some network file systems have no locks: the state file alone must do
        return True

    def release(self) -> None:
        """Let this process's hold go."""
        os.close(self.descriptor)
