"""Runs the programs of a plan: starts them, waits until they are healthy, watches them, stops them in reverse.

If one ends on its own, the others are stopped: half a stack loses data in silence, and a restart would hide the reason. If the
supervisor itself is killed, the kernel (on Linux) and the keeper end everything. In: a plan. Out: the state file, and an exit code.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from inferspan.stack import explain
from inferspan.stack.plan import Command, Plan, child_environment
from inferspan.stack.processes import Reference, end, listening_ports, members, reference
from inferspan.stack.state import FAILED, READY, STARTING, STOPPED, STOPPING, Running, State, write_state

__all__ = ["answers", "module_command", "supervise"]

_PR_SET_CHILD_SUBREAPER = 36
_LAUNCH = Path(__file__).with_name("launch.py")
# A proxy of the environment is for the world outside, not for the programs beside us.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def supervise(
    plan: Plan, *, timeout: float, observe: Callable[[State], None] = lambda _: None, environ: Mapping[str, str] = os.environ
) -> int:
    """Run a plan until it is stopped by a signal or a program ends.

    Must be called in the main thread: it takes over the signals, and on Linux the programs live as long as this thread.

    Args:
        plan: what to run.
        timeout: seconds in which all programs must be ready.
        observe: called with the state after each change.
        environ: environment of the programs.

    Returns:
        0 after it was stopped, 2 after a program failed.
    """
    return _Supervisor(plan, timeout, observe, environ).run()


def answers(url: str) -> bool:
    """Whether a health address answers that all is well."""
    try:
        with _open(url, timeout=2) as answer:
            return bool(200 <= answer.status < 300)
    except (OSError, ValueError, http.client.HTTPException):
        return False


def module_command(what: str) -> list[str]:
    """Command line of a process of ours that finds the package wherever this one has it from.

    Not ``python -m``: that looks into the folder it is started in first, and finds nothing that this process has by a relative path.
    """
    root = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path[:1] = []; sys.path.append({root!r}); from inferspan.stack.__main__ import main; sys.exit(main())"
    return [sys.executable, "-c", code, what]


class _Supervisor:
    def __init__(self, plan: Plan, timeout: float, observe: Callable[[State], None], environ: Mapping[str, str]) -> None:
        self._plan, self._timeout, self._observe, self._environ = plan, timeout, observe, environ
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._signals = 0
        self._unwritten = ""
        self._state = State(
            plan.folder, plan.mode, STARTING, reference(os.getpid()), plan.addresses, plan.endpoint, plan.notes, plan.grace
        )  # fmt: skip

    def run(self) -> int:
        before = self._take_signals()
        self._tell()
        if self._unwritten:
            return 2
        _adopt_orphans()
        keeper = _start_keeper(self._plan.folder)
        problem = "the supervisor failed: see logs/supervisor.log"
        try:
            problem = self._start(keeper) or self._watch()
        finally:
            self._stop(problem)
            _end_strays(keeper, self._plan.grace)
            _tell_keeper(keeper, "done")
            for number, handler in before.items():
                signal.signal(number, handler)
        return 2 if problem else 0

    def _take_signals(self) -> dict[int, Any]:
        def count(number: int, frame: object) -> None:
            self._signals += 1

        names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
        return {number: signal.signal(number, count) for name in names if (number := getattr(signal, name, None)) is not None}

    def _start(self, keeper: subprocess.Popen[bytes]) -> str:
        for command in self._plan.commands:
            try:
                child = _spawn(command, self._environ)
            except OSError as error:
                return f"{command.name} cannot be started: {command.argv[0]}: {error.strerror}"
            running = Running(command.name, reference(child.pid), command.health, command.address, command.ports, command.log)
            self._children[command.name] = child
            self._state.programs.append(running)
            _tell_keeper(keeper, f"{running.process.pid} {running.process.mark or '-'}")
        self._tell()
        return ""

    def _watch(self) -> str:
        """Until a signal comes (no problem) or a program ends (its explanation)."""
        begin = time.monotonic()
        while not self._signals:
            if self._unwritten:
                return self._unwritten
            for command, running in zip(self._plan.commands, self._state.programs, strict=True):
                code = self._children[command.name].poll()
                if code is not None:
                    running.exit_code = code
                    return explain.ended(command, code, self._environ, starting=running.ready_after is None)
                if running.ready_after is None and _is_ready(command, running.process):
                    running.ready_after = time.monotonic() - begin
                    self._tell()
            waiting = [each.name for each in self._state.programs if each.ready_after is None]
            if waiting and time.monotonic() - begin > self._timeout:
                late = next(command for command in self._plan.commands if command.name == waiting[0])
                return explain.not_ready(late, self._timeout, self._environ)
            if not waiting and self._state.phase == STARTING:
                self._state.phase = READY
                self._tell()
            time.sleep(0.05 if waiting else 0.2)
        return ""

    def _stop(self, problem: str) -> None:
        asked = self._signals
        self._state.phase, self._state.problem = STOPPING, problem
        self._tell()
        for running in reversed(self._state.programs):
            child = self._children[running.name]
            # A second signal means that the user does not want to wait.
            end([running.process], grace=self._plan.grace, reap=child.poll, hurry=lambda: self._signals > asked)
            running.exit_code = _exit_code(child) if running.exit_code is None else running.exit_code
            self._tell()
        self._state.phase = FAILED if problem else STOPPED
        self._tell()

    def _tell(self) -> None:
        try:
            write_state(self._state)
        except OSError as error:  # a full disk must not keep the programs from being stopped
            self._unwritten = f"the state cannot be written: {error}"
            print(self._unwritten, file=sys.stderr)
        try:
            self._observe(self._state)
        except (OSError, ValueError):  # the terminal or the reader of our output is gone; the programs are not to suffer
            self._observe = lambda _: None


def _exit_code(child: subprocess.Popen[bytes]) -> int | None:
    try:
        # The first thread of a program may be gone a moment before the rest of it.
        return child.wait(5)
    except subprocess.TimeoutExpired:
        return None


def _spawn(command: Command, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    argv = command.argv
    if sys.platform == "linux":
        argv = [sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), *argv]
    log = Path(command.log)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            argv,
            cwd=command.cwd,
            env=child_environment(environ, command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _is_ready(command: Command, process: Reference) -> bool:
    """Healthy, and it is this program that answers: another one may have taken the port."""
    if not answers(command.health):
        return False
    port = int(command.health.split("/")[2].rpartition(":")[2])
    return any(port in listening_ports(pid) for pid in members(process))


def _adopt_orphans() -> None:
    """Linux: what a program leaves in a session of its own becomes our child and not that of the system, so that it can be ended."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    except (OSError, AttributeError, TypeError):
        pass  # not Linux


def _end_strays(keeper: subprocess.Popen[bytes], grace: float) -> None:
    """End processes that have left their session: programs that went into the background."""
    try:
        strays = [each for each in psutil.Process().children(recursive=True) if each.pid != keeper.pid]
        for ask in (psutil.Process.terminate, psutil.Process.kill):
            for each in strays:
                with suppress(psutil.Error):
                    ask(each)
            _, strays = psutil.wait_procs(strays, timeout=grace)
    except psutil.Error:
        pass  # it cannot be looked at


def _start_keeper(folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        module_command("keep"),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _tell_keeper(keeper: subprocess.Popen[bytes], line: str) -> None:
    assert keeper.stdin is not None
    try:
        keeper.stdin.write(f"{line}\n".encode())
        keeper.stdin.flush()
        if line == "done":
            keeper.stdin.close()
            keeper.wait(5)
    except subprocess.TimeoutExpired:
        keeper.kill()  # it is suspended
        keeper.wait()
    except OSError:
        pass  # it was killed; the kernel still does its part
