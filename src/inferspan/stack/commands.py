"""``inferspan stack up``, ``down``, ``status``, ``logs`` and ``inferspan bundle``: what they do.

In come parsed arguments; out come text and an exit code. A fault raises ``StackError``.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from inferspan import bundles
from inferspan.stack import state as states
from inferspan.stack.errors import StackError
from inferspan.stack.explain import log_end
from inferspan.stack.plan import Plan, make_plan
from inferspan.stack.ports import busy_ports
from inferspan.stack.processes import Reference, end, is_alive, members
from inferspan.stack.state import Lock, State, is_held, read_state, supervisor_of
from inferspan.stack.supervisor import module_command, supervise
from inferspan.stack.terminal import Progress, addresses, command, short, status_lines
from inferspan.stack.views import follow_logs, look, print_logs

__all__ = ["run"]

_POLL = 0.05
# The supervisor outlives this process. Dropped, its object would warn about that.
_started: list[subprocess.Popen[bytes]] = []


def run(arguments: argparse.Namespace) -> int:
    """Run one command.

    Returns:
        The exit code.

    Raises:
        StackError: it cannot work; the text says why.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a folder's name may have letters that the terminal has not
    if arguments.command == "bundle":
        return _bundle(arguments.folder, force=arguments.force)
    table: dict[str, Callable[[Path, argparse.Namespace], int]] = {"up": _up, "down": _down, "status": _status, "logs": _logs}
    folder: Path = arguments.dir or states.default_folder(os.environ)
    try:
        folder = folder.absolute()
        return table[arguments.command](folder, arguments)
    except BrokenPipeError:
        raise  # the reader of our output has seen enough
    except OSError as error:
        reason = error.strerror or error
        raise StackError(f"{error.filename or folder} cannot be used: {reason}; choose another folder with --dir") from None


def _up(folder: Path, arguments: argparse.Namespace) -> int:
    with ExitStack() as held:
        lock = Lock(folder)
        held.callback(lock.release)
        if not lock.take():
            return _join(folder, arguments)
        state = read_state(folder)
        if supervisor_of(state) is not None:
            return _join(folder, arguments)
        if state is not None and not state.ended:
            left = end([each.process for each in state.programs], grace=0)
            print(f"cleaned up after a stack that was killed{f', {len(left)} processes were left' if left else ''}")
        plan = make_plan(
            arguments.mode or "dev",
            folder,
            os.environ,
            free_ports=arguments.free_ports,
            bundle=arguments.bundle,
            grace=arguments.stop_timeout,
        )
        (folder / "state.json").unlink(missing_ok=True)
        if arguments.fresh and (folder / "data").exists():
            shutil.rmtree(folder / "data")
        for each in plan.commands:
            # A server does not make the folders above its own.
            for path in (Path(each.log).parent, folder / "data" / each.name):
                path.mkdir(parents=True, exist_ok=True)
        if arguments.foreground:
            return _foreground(plan, arguments.timeout)
        return _background(plan, arguments.timeout, lock)


def _join(folder: Path, arguments: argparse.Namespace) -> int:
    """A stack runs there, or another `up` is starting it: wait until it is ready, and say where it is."""
    deadline = time.monotonic() + arguments.timeout
    while (state := read_state(folder)) is None or supervisor_of(state) is None or state.phase in (states.STARTING, states.STOPPING):
        if time.monotonic() > deadline:
            raise StackError(f"another command is at work in {folder} and has not come to an end in {arguments.timeout:g} s")
        time.sleep(_POLL)
    if arguments.mode not in (None, state.mode):
        raise StackError(f"a stack runs already, in mode {state.mode}: stop it first, with `inferspan stack down{_dir_option(folder)}`")
    print(f"The stack runs already, in mode {state.mode}, {look(state).summary}.")
    print("\n".join(addresses(state, _dir_option(folder))))
    return 0


def _foreground(plan: Plan, timeout: float) -> int:
    progress = Progress(stop="Ctrl-C")
    code = supervise(plan, timeout=timeout, observe=progress.show)
    if progress.problem:
        raise StackError(progress.problem)
    print("All programs have stopped.")
    return code


def _background(plan: Plan, timeout: float, lock: Lock) -> int:
    folder = Path(plan.folder)
    log = folder / "logs" / "supervisor.log"
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            module_command("supervise"),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            **_detached(lock),
        )
    _started.append(supervisor)
    progress = Progress(stop=command(f"stack down{_dir_option(folder)}"))
    try:
        assert supervisor.stdin is not None
        with supervisor.stdin as order:
            order.write(json.dumps({"plan": plan.to_json(), "timeout": timeout}).encode())
        while True:
            over = supervisor.poll() is not None
            state = read_state(folder)
            if state is not None:
                progress.show(state)
                if state.phase == states.READY:
                    return 0
            if over:
                break
            time.sleep(_POLL)
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait(_longest(plan.grace, len(plan.commands)))
        raise
    if state is not None and state.phase == states.STOPPED:
        raise StackError("the stack was stopped while it was starting")
    said = log_end(log, 8) or [f"it wrote nothing to {log}"]
    raise StackError(progress.problem or "\n".join([f"the supervisor ended (code {supervisor.returncode}):", *said]))


def _detached(lock: Lock) -> dict[str, Any]:
    """A session of its own, so that the end of the terminal is not its end; it keeps the lock."""
    if os.name == "posix":
        return {"start_new_session": True, "pass_fds": [lock.descriptor]}
    flags = ("CREATE_NEW_PROCESS_GROUP", "DETACHED_PROCESS")
    return {"creationflags": sum(getattr(subprocess, name) for name in flags)}


def _down(folder: Path, arguments: argparse.Namespace) -> int:
    state = _settled(folder)
    supervisor = supervisor_of(state)
    if state is None or state.ended:
        print(f"No stack runs in {short(folder)}.")
        return 0
    if supervisor is not None:
        _ask(supervisor)
        _wait_for_end(folder, supervisor, deadline=_longest(state.grace, len(state.programs)))
    else:
        print("The supervisor was killed; cleaning up.")
    state = read_state(folder) or state
    leaders = [each.process for each in state.programs]
    killed = end(leaders, grace=0)
    state.phase = state.phase if state.ended else states.STOPPED
    states.write_state(state)
    _prove(state, leaders)
    for pid in killed:
        print(f"  process {pid} had to be killed")
    print("Stopped: no process is left and all ports are free.")
    print(f"Metrics are kept in {short(folder / 'data')}; the traces were in Jaeger's memory.")
    return 0


def _settled(folder: Path) -> State | None:
    """The state, once no process is about to write it: an `up` that has just begun must not be overlooked."""
    until = time.monotonic() + 10
    while supervisor_of(state := read_state(folder)) is None and is_held(folder) and time.monotonic() < until:
        time.sleep(_POLL)
    return state


def _longest(grace: float, programs: int) -> float:
    """Seconds after which a supervisor must have ended: one program after the other, each killed in the end, and some air."""
    return (grace + 5) * programs + 10


def _ask(supervisor: Reference) -> None:
    try:
        os.kill(supervisor.pid, signal.SIGTERM)
        if os.name == "posix":
            os.kill(supervisor.pid, signal.SIGCONT)  # one that is suspended hears nothing
    except PermissionError:
        raise StackError(f"the supervisor (pid {supervisor.pid}) belongs to another user") from None
    except OSError:
        pass  # it has just ended


def _wait_for_end(folder: Path, supervisor: Reference, deadline: float) -> None:
    until = time.monotonic() + deadline
    progress = Progress(stop="", only_stops=True)
    while is_alive(supervisor):
        state = read_state(folder)
        if state is not None:
            progress.show(state)
        if time.monotonic() > until:
            print(f"The supervisor (pid {supervisor.pid}) does not end and is killed.")
            os.kill(supervisor.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
            until = float("inf")
        time.sleep(_POLL)
    state = read_state(folder)
    if state is not None:
        progress.show(state)


def _prove(state: State, leaders: list[Reference]) -> None:
    """Nothing of the stack is left: neither a process nor a port."""
    until = time.monotonic() + 5
    while True:
        left = [pid for leader in leaders for pid in members(leader)]
        busy = busy_ports(state.ports())
        if not left and not busy:
            return
        if time.monotonic() > until:
            break
        time.sleep(_POLL)
    if left:
        raise StackError(f"processes {', '.join(map(str, left))} cannot be ended")
    raise StackError("stopped, but other processes have its ports now:\n" + "\n".join(busy))


def _status(folder: Path, arguments: argparse.Namespace) -> int:
    state = read_state(folder)
    seen = look(state) if state is not None else None
    if arguments.json:
        empty = {"running": False, "healthy": False, "folder": str(folder), "programs": []}
        print(json.dumps(seen.to_json() if seen else empty, indent=2))
    elif seen is None:
        print(f"No stack was started in {short(folder)}.\nStart one: {command(f'stack up{_dir_option(folder)}')}")
    else:
        print("\n".join(status_lines(seen, _dir_option(folder))))
    return 0 if seen and seen.healthy else 1


def _logs(folder: Path, arguments: argparse.Namespace) -> int:
    state = read_state(folder)
    if state is None:
        raise StackError(f"no stack was started in {folder}, so there are no logs")
    logs = {**{each.name: Path(each.log) for each in state.programs}, "supervisor": folder / "logs" / "supervisor.log"}
    if arguments.program is not None and arguments.program not in logs:
        raise StackError(f"there is no program {arguments.program!r} in this stack; it has {', '.join(logs)}")
    chosen = {name: path for name, path in logs.items() if arguments.program in (None, name)}
    if arguments.follow:
        follow_logs(chosen, arguments.lines, lambda: supervisor_of(read_state(folder)) is not None)
    else:
        print_logs(chosen, arguments.lines)
    return 0


def _bundle(folder: Path, *, force: bool) -> int:
    try:
        written = bundles.write(folder, force=force)
    except FileExistsError as error:
        files = "\n".join(f"  {path}" for path in error.args[0])
        raise StackError(
            f"these files are there and differ, nothing was written:\n{files}\nOverwrite them with --force, or name another folder."
        ) from None
    except OSError as error:
        raise StackError(f"cannot write to {error.filename or folder}: {error.strerror or error}; name another folder") from None
    for path in written:
        print(path)
    total = len(bundles.bundled_files())
    files = "file" if len(written) == 1 else "files"
    print(f"{len(written)} {files} written{f', {total - len(written)} were there already' if total > len(written) else ''}.")
    print(f"Run the stack with them: {command(f'stack up --bundle {shlex.quote(str(folder))}')}")
    return 0


def _dir_option(folder: Path) -> str:
    try:
        default = folder == states.default_folder(os.environ).absolute()
    except StackError:  # there is none
        default = False
    return "" if default else f" --dir {shlex.quote(str(folder))}"
