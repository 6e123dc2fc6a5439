"""The plan of a stack: command, environment, ports and health address of each program, computed before anything starts.

In: a mode, an environment, the bundled configurations. Out: a ``Plan``, and copies of the few files that hold addresses and cannot read
the environment. Fails with ``StackError`` for missing programs, taken ports and addresses that cannot be right.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inferspan.stack import programs
from inferspan.stack.configs import check_values, config_folder, write_configs
from inferspan.stack.errors import StackError
from inferspan.stack.grafana import grafana_command_line, grafana_environment
from inferspan.stack.ports import PORTS, Assigned, assign_ports, check_ports, number_of

__all__ = ["MODES", "PROMETHEUS_FLAGS", "Command", "Plan", "child_environment", "make_plan", "plan_from_json"]

# The programs of each mode, in the order of starting, with their configuration files.
MODES: dict[str, dict[str, tuple[str, ...]]] = {
    "dev": {"prometheus": ("prometheus.yml",), "jaeger": ("jaeger.yaml",), "otelcol": ("dev.yaml",)},
    "scrape": {"prometheus": ("prometheus.yml",), "jaeger": ("jaeger.yaml",), "otelcol": ("dev.yaml", "dev-scrape.yaml")},
    "fleet": {
        "prometheus": ("prometheus.yml",),
        "jaeger": ("jaeger.yaml",),
        "gateway": ("gateway.yaml",),
        "agent": ("agent.yaml",),
    },
}
_SAMPLES = "keeps slow and failed traces and a share of the others, OTELCOL_BASELINE_PERCENT (5),\n10 to 30 s after the request"
_PROGRAMS = {
    "prometheus": programs.PROMETHEUS,
    "jaeger": programs.JAEGER,
    "otelcol": programs.OTELCOL,
    "gateway": programs.OTELCOL,
    "agent": programs.OTELCOL,
}
PROMETHEUS_FLAGS = (
    "--web.enable-otlp-receiver",
    "--web.enable-remote-write-receiver",
    "--enable-feature=exemplar-storage,created-timestamp-zero-ingestion",
)
"""Flags that ``prometheus.yml`` requires of Prometheus."""
_OF_CONTAINERS = {"PROMETHEUS_PORT": "INFERSPAN_STACK_PROMETHEUS_PORT", "GRAFANA_PORT": "INFERSPAN_STACK_GRAFANA_PORT"}
"""Variables of docker-compose.yaml that a reader of its table may try here, and those that mean the same."""


@dataclass(frozen=True)
class Command:
    """One program as it is run.

    Attributes:
        name: what it is called in tables and logs.
        argv: program and arguments.
        environment: added to that of the user.
        health: URL that answers 200 when it is ready.
        address: what a user opens or sends to.
        ports: variable of each of its ports, with the number or the text that is none.
        files: the configuration files that it reads.
        cwd: folder that it runs in.
        log: file of its output.
    """

    name: str
    argv: list[str]
    environment: dict[str, str]
    health: str
    address: str
    ports: dict[str, str]
    files: list[str]
    cwd: str
    log: str


@dataclass(frozen=True)
class Plan:
    """All programs in the order of starting, and the lines for the user.

    Attributes:
        mode: ``dev``, ``scrape`` or ``fleet``.
        folder: state, logs and data.
        commands: the programs.
        addresses: name and URL of each place to look at or to send to.
        endpoint: value of ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        grace: seconds that each program has to stop by itself.
        notes: program and remark, printed when all are ready.
    """

    mode: str
    folder: str
    commands: list[Command]
    addresses: list[tuple[str, str]]
    endpoint: str
    grace: float
    notes: list[tuple[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For another process."""
        return asdict(self)


def plan_from_json(values: dict[str, Any]) -> Plan:
    """The plan that ``to_json`` was called on."""
    pairs = {name: [(pair[0], pair[1]) for pair in values[name]] for name in ("addresses", "notes")}
    return Plan(**{**values, **pairs, "commands": [Command(**each) for each in values["commands"]]})


def make_plan(
    mode: str, folder: Path, environ: Mapping[str, str], *, free_ports: bool = False, bundle: Path | None = None, grace: float = 10.0
) -> Plan:
    """Find programs, check values and ports, write the copies.

    Args:
        mode: a key of ``MODES``.
        folder: state folder of the stack.
        environ: of the user.
        free_ports: take free ports in place of the defaults.
        bundle: folder written by ``inferspan bundle``; default: the files of the package.
        grace: seconds that each program has to stop by itself.

    Raises:
        StackError: something is missing, taken or wrong; nothing was started.
    """
    _refuse_misspelt(environ)
    if bundle and bundle.resolve() == folder.resolve():
        raise StackError(f"--bundle and --dir are both {bundle}, and the stack would write over your files: choose another --dir")
    files = MODES[mode]
    source = config_folder(bundle, {name for names in files.values() for name in names})
    binaries = programs.find_programs(dict.fromkeys(_PROGRAMS[name] for name in files), environ)
    grafana = programs.find_grafana(environ)
    running = [*files, *([] if isinstance(grafana, str) else ["grafana"])]
    needed = [port for port in PORTS if set(port.programs) & set(running) and (port.variable != "OTELCOL_SCRAPE_PORT" or mode == "scrape")]
    assigned = assign_ports(needed, environ, free=free_ports)
    check_values([source / name for names in files.values() for name in names], environ)
    check_ports(assigned.values())
    layout = _Layout(mode, folder, source, environ, assigned)
    write_configs(source, folder, mode=mode, url=layout.url, grafana="grafana" in running)
    commands = [layout.command(name, binaries[_PROGRAMS[name]]) for name in files]
    notes = []
    if isinstance(grafana, str):
        notes.append(("grafana", grafana))
    else:
        binary, home = grafana
        commands.append(layout.build("grafana", grafana_command_line(binary, home), "INFERSPAN_STACK_GRAFANA_PORT", "/api/health", []))
    if mode == "fleet":
        notes.append(("gateway", _SAMPLES))
    return Plan(mode, str(folder), commands, layout.addresses(), layout.http("OTELCOL_HTTP_PORT"), grace, notes)


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    """A misspelt variable would be the only wrong one that passes in silence."""
    known = {port.variable for port in PORTS} | {program.variable for program in programs.PROGRAMS} | {programs.GRAFANA_HOME}
    for name in sorted(environ):
        if name.startswith("INFERSPAN_STACK_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise StackError(f"{name} is no variable of the stack{f': did you mean {close[0]}?' if close else ''}")
        # Kubernetes sets such a name to a URL, for a service that is called so.
        if name in _OF_CONTAINERS and number_of(environ[name]) and not environ.get(_OF_CONTAINERS[name], "").strip():
            raise StackError(f"{name} is read by docker-compose.yaml only: set {_OF_CONTAINERS[name]} for this stack, or unset it")


class _Layout:
    """Paths and addresses of one plan, and the commands made of them."""

    def __init__(self, mode: str, folder: Path, source: Path, environ: Mapping[str, str], assigned: Mapping[str, Assigned]) -> None:
        self._mode, self._folder, self._source, self._environ, self._assigned = mode, folder, source, environ, assigned

    def url(self, variable: str) -> str:
        """``host:port`` as a client on this machine writes it; empty if the stack has no such port."""
        if variable not in self._assigned:
            return ""
        each = self._assigned[variable]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}.get(each.host, each.host)
        return f"[{host}]:{each.text}" if ":" in host and not host.startswith("[") else f"{host}:{each.text}"

    def http(self, variable: str) -> str:
        return f"http://{self.url(variable)}"

    def addresses(self) -> list[tuple[str, str]]:
        """Addresses for the user, in the order of interest."""
        table = (
            ("Grafana (dashboards)", "INFERSPAN_STACK_GRAFANA_PORT", ""),
            ("Jaeger (traces)", "JAEGER_QUERY_PORT", ""),
            ("Prometheus (metrics)", "INFERSPAN_STACK_PROMETHEUS_PORT", ""),
            ("OTLP over HTTP", "OTELCOL_HTTP_PORT", ""),
            ("OTLP over gRPC", "OTELCOL_GRPC_PORT", ""),
            ("Collector health", "OTELCOL_HEALTH_PORT", "/"),
        )
        return [(what, self.http(variable) + path) for what, variable, path in table if variable in self._assigned]

    def command(self, name: str, binary: str) -> Command:
        """A program other than Grafana."""
        files = MODES[self._mode][name]
        if name == "prometheus":
            argv = [
                binary,
                # Relative to its folder: the files named in it are patterns, and a bracket in the path would be part of them.
                "--config.file=collector-config/prometheus.yml",
                f"--storage.tsdb.path={self._folder / 'data' / 'prometheus'}",
                f"--web.listen-address={self.url('INFERSPAN_STACK_PROMETHEUS_PORT')}",
                *PROMETHEUS_FLAGS,
            ]
            return self.build(name, argv, "INFERSPAN_STACK_PROMETHEUS_PORT", "/-/ready", [])
        argv = [binary, *(part for file in files for part in ("--config", str(self._source / file)))]
        health, path, address = {
            "jaeger": ("JAEGER_HEALTH_PORT", "/status", "JAEGER_QUERY_PORT"),
            "gateway": ("INFERSPAN_STACK_GATEWAY_HEALTH_PORT", "/", "INFERSPAN_STACK_GATEWAY_GRPC_PORT"),
        }.get(name, ("OTELCOL_HEALTH_PORT", "/", "OTELCOL_HTTP_PORT"))
        return self.build(name, argv, health, path, [str(self._source / file) for file in files], address=address)

    def build(self, name: str, argv: list[str], health: str, path: str, files: list[str], *, address: str = "") -> Command:
        own = {variable: each for variable, each in self._assigned.items() if name in each.port.programs}
        return Command(
            name=name,
            argv=argv,
            environment={**self._connections(name), **{each.port.in_file or name: each.text for name, each in own.items()}},
            health=self.http(health) + path,
            address=self.http(address or health),
            ports={variable: each.text for variable, each in own.items()},
            files=files,
            cwd=str(self._folder),
            log=str(self._folder / "logs" / f"{name}.log"),
        )

    def _connections(self, name: str) -> dict[str, str]:
        """Addresses of the programs, for the configurations; a variable of the user wins, except where two processes need two values."""
        prometheus = self.http("INFERSPAN_STACK_PROMETHEUS_PORT")
        if name == "grafana":
            return grafana_environment(
                self._folder, self.url("INFERSPAN_STACK_GRAFANA_PORT"), prometheus, self.http("JAEGER_QUERY_PORT"), self._environ
            )
        gateway_host, _, gateway_port = self.url("INFERSPAN_STACK_GATEWAY_GRPC_PORT").rpartition(":")
        defaults = {
            "JAEGER_OTLP": self.url("JAEGER_GRPC_PORT"),
            "PROMETHEUS_OTLP": f"{prometheus}/api/v1/otlp",
            "PROMETHEUS_REMOTE_WRITE": f"{prometheus}/api/v1/write",
            "PROMETHEUS_URL": prometheus,
            "JAEGER_UI_CONFIG": str(self._folder / "collector-config" / "jaeger-ui.json"),
            "JAEGER_STORAGE": str(self._folder / "data" / "jaeger"),
        }
        if self._mode == "fleet":
            defaults |= {"GATEWAY": f"{gateway_host}:{gateway_port}", "GATEWAY_DNS": gateway_host, "GATEWAY_PORT": gateway_port}
        storage = Path(self._environ.get("OTELCOL_STORAGE", "").strip() or self._folder / "data" / "otelcol")
        unset = {key: value for key, value in defaults.items() if not self._environ.get(key, "").strip()}
        # The gateway is beside the agent and listens for it alone, wherever the agent listens.
        return {**unset, "OTELCOL_STORAGE": str(storage / name), **({"OTELCOL_HOST": gateway_host} if name == "gateway" else {})}


def child_environment(environ: Mapping[str, str], command: Command) -> dict[str, str]:
    """The environment of a program: the user's, without what steers the telemetry of the user's own programs."""
    kept = {name: value for name, value in environ.items() if not name.startswith("OTEL_")}
    return {**kept, **command.environment, "PWD": command.cwd} if os.name == "posix" else {**kept, **command.environment}
