"""Text of the stack for a terminal 80 columns wide: progress while it starts and stops, addresses, the table of programs.

In: states and what was seen. Out: lines. Nothing here fails.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from inferspan.stack import state as states
from inferspan.stack.state import State
from inferspan.stack.views import PROTOCOL, Seen

__all__ = ["Progress", "addresses", "command", "short", "status_lines"]

_GRAPHS = ("hw_gpu_utilization_ratio", "system_cpu_utilization_ratio")


class Progress:
    """Prints each change of a state once.

    Args:
        stop: what the user does to stop it.
        only_stops: leave out the starting.
    """

    def __init__(self, *, stop: str, only_stops: bool = False) -> None:
        self.problem = ""
        self._stop, self._only_stops = stop, only_stops
        self._said: set[tuple[str, str]] = set()

    def show(self, state: State) -> None:
        """Print what is new."""
        self.problem = state.problem
        width = max([len(each.name) for each in state.programs] + [len(name) for name, _ in state.notes] + [10])
        if not self._only_stops:
            if state.programs and self._once("head"):
                print(f"Starting in {short(Path(state.folder))} (mode {state.mode})", flush=True)
            for each in state.programs:
                if each.ready_after is not None and self._once("ready", each.name):
                    print(f"  {each.name:<{width}}  ready in {each.ready_after:.1f} s", flush=True)
            if state.phase == states.READY and self._once("addresses"):
                for name, note in state.notes:
                    print(textwrap.indent(f"{name:<{width}}  {note}", "  ").replace("\n", "\n" + " " * (width + 2)))
                print("\n".join(addresses(state, "", self._stop)), flush=True)
        if state.phase in (states.STOPPING, states.STOPPED, states.FAILED):
            for each in reversed(state.programs):
                if each.exit_code is not None and self._once("stopped", each.name):
                    print(f"  {each.name:<{width}}  {_end(each.exit_code)}", flush=True)

    def _once(self, *key: str) -> bool:
        mark = (key[0], key[-1])
        new = mark not in self._said
        self._said.add(mark)
        return new


def addresses(state: State, dir_option: str, stop: str = "") -> list[str]:
    """Lines with the addresses to open and to send to, and the command to stop."""
    table = dict(state.addresses)
    graphs: list[str] = []
    if not any(name.startswith("Grafana") for name in table):
        # Without dashboards these two are what a user wants to see first.
        links = [f"  {table.get('Prometheus (metrics)')}/query?g0.expr={metric}&g0.tab=graph" for metric in _GRAPHS]
        graphs = ["", "Graphs of GPU and CPU use, once a program has sent something:", *links]
    width = max(len(name) for name, _ in state.addresses)
    return [
        "",
        *(f"{name:<{width}}  {url}" for name, url in state.addresses),
        *graphs,
        "",
        "Send the telemetry of a program there:",
        f"export OTEL_EXPORTER_OTLP_ENDPOINT={state.endpoint}",
        # The default of opentelemetry-instrument is gRPC, whose port is another one.
        f"export OTEL_EXPORTER_OTLP_PROTOCOL={PROTOCOL}",
        "export OTEL_SERVICE_NAME=my-service",
        *_past_the_proxy(state.endpoint),
        "",
        f"Stop it: {stop or command(f'stack down{dir_option}')}",
    ]


def _past_the_proxy(endpoint: str) -> list[str]:
    """Exporters in Python send everything to a proxy of the environment, also what is for this machine."""
    proxies = urllib.request.getproxies_environment()
    host = urlsplit(endpoint).hostname or ""
    if not {"http", "all"} & set(proxies) or urllib.request.proxy_bypass(host):
        return []
    return [f"export no_proxy={shlex.quote(','.join(filter(None, (proxies.get('no'), host))))}  # else it goes to your proxy"]


def status_lines(seen: Seen, dir_option: str) -> list[str]:
    """The table of programs, and how the stack is."""
    state = seen.state
    if not seen.running:
        if not state.ended:
            head = [f"The stack is not running: its supervisor was killed. `{command(f'stack down{dir_option}')}` cleans up."]
        elif state.problem:
            head = ["The stack is not running. It ended because of this:", textwrap.indent(state.problem, "  ")]
        else:
            head = ["The stack is not running: it was stopped."]
        return [*head, f"Start it: {command(f'stack up{dir_option}')}"]
    rows = [("PROGRAM", "PID", "HEALTH", "UPTIME", "MEMORY", "ADDRESS")]
    rows += [
        (each.name, str(each.pid), each.health, _duration(each.uptime_s), _memory(each.memory_bytes), each.address)
        for each in seen.programs
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows),
        "",
        f"Mode {state.mode}, {state.phase}, {seen.summary}. Folder: {short(Path(state.folder))}",
    ]


def command(rest: str) -> str:
    """A command of ours that can be copied: with its path, where the user has called it so and it is not on PATH."""
    called = sys.argv[0]
    name = called if Path(called).name == "inferspan" and shutil.which("inferspan") is None else "inferspan"
    return f"{name} {rest}"


def short(path: Path) -> str:
    """A path as a person writes it."""
    try:
        home = Path.home()
    except RuntimeError:  # a user without one
        return str(path)
    return f"~{os.sep}{path.relative_to(home)}" if path != home and path.is_relative_to(home) else str(path)


def _end(code: int) -> str:
    # A server that has no handler of its own is ended by the signal that asks it to stop.
    return "stopped" if code in (0, -15) else "killed" if code == -9 else f"ended with exit code {code}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _memory(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.0f} MB"
