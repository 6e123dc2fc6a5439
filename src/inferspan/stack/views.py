"""A stack as it is now: which programs live, answer, and what they use; and their logs.

In: the state file's content. Out: ``Seen`` rows for a table or JSON, and lines of logs. A program that cannot be looked at has no
memory and no uptime, never 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from inferspan.stack import state as states
from inferspan.stack.explain import log_end
from inferspan.stack.processes import is_alive, members
from inferspan.stack.state import Running, State, supervisor_of
from inferspan.stack.supervisor import answers

__all__ = ["PROTOCOL", "Seen", "SeenProgram", "follow_logs", "look", "print_logs"]

_POLL = 0.2
PROTOCOL = "http/protobuf"
"""Of the endpoint that is shown."""


@dataclass(frozen=True)
class SeenProgram:
    """A program now; ``health`` is one of healthy, starting, unhealthy, ended."""

    name: str
    pid: int
    health: str
    address: str
    uptime_s: float | None
    memory_bytes: int | None
    log: str


@dataclass(frozen=True)
class Seen:
    """A stack now."""

    running: bool
    healthy: bool
    state: State
    programs: list[SeenProgram]

    @property
    def summary(self) -> str:
        """How it is, in a few words."""
        bad = [f"{each.name} is {each.health}" for each in self.programs if each.health != "healthy"]
        return ", ".join(bad) if bad else "all healthy"

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        state = self.state
        return {
            "running": self.running,
            "healthy": self.healthy,
            "phase": state.phase if self.running or state.ended else "killed",
            "problem": state.problem,
            "mode": state.mode,
            "folder": state.folder,
            "started": state.started,
            "addresses": dict(state.addresses),
            "environment": {"OTEL_EXPORTER_OTLP_ENDPOINT": state.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": PROTOCOL},
            "programs": [asdict(each) for each in self.programs],
        }


def look(state: State) -> Seen:
    """Ask every program of a stack how it is."""
    running = supervisor_of(state) is not None
    with ThreadPoolExecutor(max(1, len(state.programs))) as pool:
        programs = list(pool.map(_look_at, state.programs))
    healthy = running and state.phase == states.READY and bool(programs) and all(each.health == "healthy" for each in programs)
    return Seen(running, healthy, state, programs)


def print_logs(logs: Mapping[str, Path], lines: int) -> None:
    """The end of each log; with a heading if there are several."""
    for name, path in logs.items():
        found = log_end(path, lines)
        if len(logs) > 1:
            print(f"==> {name}  {path}")
        print("\n".join(found) if found else "(empty)")
        if len(logs) > 1:
            print()


def follow_logs(logs: Mapping[str, Path], lines: int, goes_on: Callable[[], bool]) -> None:
    """The end of each log and then what comes, until the stack ends or Ctrl-C; each line with its program if there are several."""
    width = max(map(len, logs))
    prefix = {name: f"{name:<{width}} | " if len(logs) > 1 else "" for name in logs}
    positions = {name: path.stat().st_size if path.exists() else 0 for name, path in logs.items()}
    for name, path in logs.items():
        for line in log_end(path, lines):
            print(prefix[name] + line)
    try:
        alive = True
        while alive:
            alive = goes_on()
            for name, path in logs.items():
                positions[name] = _print_new(path, positions[name], prefix[name])
            if alive:
                time.sleep(_POLL)
    except KeyboardInterrupt:
        pass  # that is how one stops it


def _print_new(path: Path, position: int, prefix: str) -> int:
    try:
        with path.open("rb") as file:
            file.seek(position if position <= path.stat().st_size else 0)
            new = file.read()
            # Half a line waits for its other half.
            whole = new[: new.rfind(b"\n") + 1]
            position = file.tell() - len(new) + len(whole)
    except OSError:
        return position
    for line in whole.decode("utf-8", "replace").splitlines():
        print(prefix + line, flush=True)
    return position


def _look_at(running: Running) -> SeenProgram:
    alive = is_alive(running.process)
    health = "ended"
    if alive:
        health = "healthy" if answers(running.health) else "starting" if running.ready_after is None else "unhealthy"
    memory = uptime = None
    if alive:
        try:
            uptime = max(0.0, time.time() - psutil.Process(running.process.pid).create_time())
            memory = sum(psutil.Process(pid).memory_info().rss for pid in members(running.process))
        except psutil.Error:
            pass  # it ended in between
    return SeenProgram(running.name, running.process.pid, health, running.address, uptime, memory, running.log)
