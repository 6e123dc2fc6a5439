"""Every port that the stack listens on, the variable that moves it, and the process that has it already.

In: an environment, and whether free ports are wanted. Out: a number for each port. Fails with ``StackError`` that names every port
that is taken, the process that has it and the variable, before anything is started.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from inferspan.stack.errors import StackError

__all__ = ["PORTS", "Assigned", "Port", "assign_ports", "busy_ports", "check_ports", "number_of", "port_owner"]

_COLLECTOR = ("otelcol", "agent")
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Port:
    """A port: its program, the variable of the user, the variable in the configuration file, and its purpose."""

    programs: tuple[str, ...]
    variable: str
    default: int
    what: str
    host: str = ""
    in_file: str = ""


@dataclass(frozen=True)
class Assigned:
    """A port with the value it has; ``number`` is None where a user's value is no port, which the program itself will say."""

    port: Port
    host: str
    text: str

    @property
    def number(self) -> int | None:
        """The port as a number."""
        return number_of(self.text)


PORTS = (
    Port(_COLLECTOR, "OTELCOL_GRPC_PORT", 4317, "OTLP over gRPC", "OTELCOL_HOST"),
    Port(_COLLECTOR, "OTELCOL_HTTP_PORT", 4318, "OTLP over HTTP", "OTELCOL_HOST"),
    Port(_COLLECTOR, "OTELCOL_HEALTH_PORT", 13133, "health of the collector", "OTELCOL_HOST"),
    Port(_COLLECTOR, "OTELCOL_METRICS_PORT", 8888, "the collector's own metrics", "OTELCOL_HOST"),
    Port(("otelcol",), "OTELCOL_SCRAPE_PORT", 8889, "metrics that Prometheus scrapes", "OTELCOL_HOST"),
    Port(("jaeger",), "JAEGER_GRPC_PORT", 14317, "OTLP into Jaeger, gRPC", "JAEGER_HOST"),
    Port(("jaeger",), "JAEGER_HTTP_PORT", 14318, "OTLP into Jaeger, HTTP", "JAEGER_HOST"),
    Port(("jaeger",), "JAEGER_QUERY_PORT", 16686, "Jaeger's pages and API", "JAEGER_HOST"),
    Port(("jaeger",), "JAEGER_QUERY_GRPC_PORT", 16685, "Jaeger's gRPC API", "JAEGER_HOST"),
    Port(("jaeger",), "JAEGER_HEALTH_PORT", 13134, "health of Jaeger", "JAEGER_HOST"),
    Port(("prometheus",), "INFERSPAN_STACK_PROMETHEUS_PORT", 9090, "Prometheus"),
    Port(("grafana",), "INFERSPAN_STACK_GRAFANA_PORT", 3000, "Grafana"),
    # The gateway reads the same names as the agent, but has an environment of its own.
    Port(("gateway",), "INFERSPAN_STACK_GATEWAY_GRPC_PORT", 24317, "OTLP into the gateway, gRPC", "", "OTELCOL_GRPC_PORT"),
    Port(("gateway",), "INFERSPAN_STACK_GATEWAY_HTTP_PORT", 24318, "OTLP into the gateway, HTTP", "", "OTELCOL_HTTP_PORT"),
    Port(("gateway",), "INFERSPAN_STACK_GATEWAY_HEALTH_PORT", 23133, "health of the gateway", "", "OTELCOL_HEALTH_PORT"),
    Port(("gateway",), "INFERSPAN_STACK_GATEWAY_METRICS_PORT", 28888, "the gateway's own metrics", "", "OTELCOL_METRICS_PORT"),
)


def number_of(text: str) -> int | None:
    """A port number, or None where the text is none."""
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 65536 else None


def _means_a_port(text: str) -> bool:
    """Whether a server would take it, and listen nobody knows where: 0 is any port, and `http` is 80 or what the system says."""
    if text.strip("0") == "":
        return True
    try:
        return socket.getservbyname(text) > 0
    except (OSError, ValueError):
        return False


def assign_ports(ports: Sequence[Port], environ: Mapping[str, str], *, free: bool) -> dict[str, Assigned]:
    """A number for each port, by the user's variable.

    Args:
        ports: those that are needed.
        environ: a variable that is set wins, also over ``free``.
        free: take ports that the system gives, in place of the defaults.
    """
    given = {port.variable: environ.get(port.variable, "").strip() for port in ports}
    wrong = [
        f"{name}={text}"
        for name, text in given.items()
        if text and number_of(text) is None and (name.startswith("INFERSPAN_") or _means_a_port(text))
    ]
    if wrong:
        raise StackError(f"{', '.join(wrong)}: a port is a number from 1 to 65535")
    unnamed = [port for port in ports if not given[port.variable]]
    numbers = _free_ports(len(unnamed)) if free else [port.default for port in unnamed]
    given.update({port.variable: str(number) for port, number in zip(unnamed, numbers, strict=True)})
    hosts = {port.host: environ.get(port.host, "").strip() or _LOOPBACK for port in ports if port.host}
    return {port.variable: Assigned(port, hosts.get(port.host, _LOOPBACK), given[port.variable]) for port in ports}


def check_ports(assigned: Iterable[Assigned]) -> None:
    """See that no process listens on any of them, and that no two are the same.

    Raises:
        StackError: names every port that is taken, who has it and the variable for another one.
    """
    seen: dict[int, Assigned] = {}
    problems = []
    for each in assigned:
        number = each.number
        if number is None:
            continue
        if number in seen:
            problems.append(f"port {number} is wanted twice: {seen[number].port.variable} and {each.port.variable}")
        elif reason := _unusable(each.host, number):
            problems.append(f"port {number} ({each.port.what}) {reason}: another one with {each.port.variable}")
        seen.setdefault(number, each)
    if problems:
        raise StackError("\n".join([*problems, "Nothing was started. `--free-ports` takes free ones for all that no variable names."]))


def busy_ports(ports: Mapping[str, str]) -> list[str]:
    """A line for each port of the loopback that is in use.

    Args:
        ports: the ports, by variable.
    """
    numbers = {variable: number for variable, text in ports.items() if (number := number_of(text)) is not None}
    found = {number: _unusable(_LOOPBACK, number) for number in numbers.values()}
    return [f"port {number} ({variable}) {found[number]}" for variable, number in numbers.items() if found[number]]


def port_owner(number: int) -> str:
    """The process that listens on a port, in words."""
    import psutil

    from inferspan.stack.processes import listening_ports

    try:
        pids = {
            entry.pid
            for entry in psutil.net_connections(kind="tcp")
            if entry.status == psutil.CONN_LISTEN and entry.laddr and entry.laddr.port == number and entry.pid
        }
    except (psutil.AccessDenied, OSError):
        # Systems that show all connections only to root still show those of the user's own processes.
        pids = {process.pid for process in psutil.process_iter() if number in listening_ports(process.pid)}
    for pid in sorted(pids):
        try:
            return f"{psutil.Process(pid).name()} (pid {pid})"
        except psutil.Error:
            continue
    return "a process of another user"


def _unusable(host: str, number: int) -> str:
    """Why a port cannot be listened on; empty if it can, or if the host itself is wrong, which the program will say."""
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            if os.name == "posix":
                # As the servers do it: connections of an earlier run that are still closing do not count.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, number))
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"is taken by {port_owner(number)}"
        if error.errno == errno.EACCES:
            return "needs rights that you do not have"
    return ""


def _free_ports(count: int) -> list[int]:
    # All are held at once, so that no port is given twice.
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((_LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
