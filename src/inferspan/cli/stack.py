"""The command ``stack`` with commands of its own. Nothing of the stack is imported before one of them runs."""

from __future__ import annotations

import argparse
from typing import Any

from .paths import file_or_folder

__all__ = ["add_stack", "run_command"]

_RAW = argparse.RawDescriptionHelpFormatter
_UP = """\
Start the OpenTelemetry Collector, Jaeger, Prometheus and, if there is one,
Grafana with the configurations of the package, wait until all are healthy, and
print where they are. No containers. Everything listens on 127.0.0.1.

programs, found on PATH or named by a variable:
  otelcol-contrib, otelcol   INFERSPAN_STACK_OTELCOL     contrib, 0.157 or later
  jaeger                     INFERSPAN_STACK_JAEGER      2
  prometheus                 INFERSPAN_STACK_PROMETHEUS  3
  grafana, grafana-server    INFERSPAN_STACK_GRAFANA     12 or later; optional
      its folder with conf and public: INFERSPAN_STACK_GRAFANA_HOME

modes:
  dev      the collector pushes metrics to Prometheus (dev.yaml)
  scrape   Prometheus fetches them instead (dev.yaml and dev-scrape.yaml)
  fleet    agent and gateway with queues on disk (agent.yaml, gateway.yaml);
           of requests that are neither slow nor failed it keeps 5 % of the
           traces, with OTELCOL_BASELINE_PERCENT=100 all; a trace is shown
           10 to 30 s after its request
"""
_UP_END = """\
ports, each with the variable for another one:
  OTELCOL_GRPC_PORT 4317                  OTELCOL_HTTP_PORT 4318
  OTELCOL_HEALTH_PORT 13133               OTELCOL_METRICS_PORT 8888
  OTELCOL_SCRAPE_PORT 8889 (scrape)       JAEGER_QUERY_PORT 16686
  JAEGER_QUERY_GRPC_PORT 16685            JAEGER_HEALTH_PORT 13134
  JAEGER_GRPC_PORT 14317                  JAEGER_HTTP_PORT 14318
  INFERSPAN_STACK_PROMETHEUS_PORT 9090    INFERSPAN_STACK_GRAFANA_PORT 3000
 in fleet also
  INFERSPAN_STACK_GATEWAY_GRPC_PORT 24317
  INFERSPAN_STACK_GATEWAY_HTTP_PORT 24318
  INFERSPAN_STACK_GATEWAY_HEALTH_PORT 23133
  INFERSPAN_STACK_GATEWAY_METRICS_PORT 28888
The other variables of the configurations are read as well: the README in
collector-config lists them.

If a program ends, the end of its log is shown and the others are stopped.
Metrics stay in the folder from one `up` to the next; traces are in Jaeger's
memory.

exit codes: 0 all healthy, or it ran already; 2 it cannot run

examples:
  inferspan stack up
  inferspan stack up --mode fleet --foreground     until Ctrl-C
  inferspan stack up --free-ports --dir /scratch/$USER/stack
                                                   on a shared machine; the
                                                   others need the same --dir
  inferspan bundle ./stack && inferspan stack up --bundle ./stack
                                                   configurations of your own
"""
_STATUS_END = """\
exit codes: 0 running and healthy, 1 not running or not healthy, 2 the state cannot be read
"""
_STACK_END = """\
examples:
  inferspan stack up          start, and print where to look
  inferspan stack status      which programs run, and their health
  inferspan stack logs jaeger -f
                              the log of one program, until Ctrl-C
  inferspan stack down        stop everything
"""


def add_stack(commands: Any) -> None:
    """Add ``stack`` with its own commands to a parser's commands."""
    stack = commands.add_parser(
        "stack",
        help="run collector, Jaeger, Prometheus and Grafana, no containers",
        description="Run the OpenTelemetry Collector, Jaeger, Prometheus and, if there is one,\nGrafana on this machine.",
        epilog=_STACK_END,
        formatter_class=_RAW,
    )
    parts = stack.add_subparsers(metavar="command", required=True)

    up = _part(parts, "up", "start everything and wait until it is healthy", description=_UP, epilog=_UP_END)
    up.add_argument("--mode", choices=("dev", "scrape", "fleet"), help="which configurations; default: dev")
    up.add_argument("--free-ports", action="store_true", help="take a free port for each that no variable names")
    up.add_argument("--bundle", metavar="DIR", type=file_or_folder, help="use the files in a folder that `inferspan bundle` wrote")
    up.add_argument("--fresh", action="store_true", help="delete the metrics and queues of earlier runs first")
    up.add_argument("--foreground", action="store_true", help="stay, and stop everything at Ctrl-C")
    up.add_argument("--timeout", metavar="S", type=_seconds, default=60.0, help="seconds until all must be healthy; default: 60")
    up.add_argument(
        "--stop-timeout", metavar="S", type=_seconds, default=10.0, help="seconds each program has to stop before it is killed; default: 10"
    )

    _part(parts, "down", "stop everything", description="Stop everything, the last started first, and check that no process is left.")

    status = _part(
        parts, "status", "show which programs run and their health",
        description="Show which programs run, and whether they are healthy.", epilog=_STATUS_END,
    )  # fmt: skip
    status.add_argument("--json", action="store_true", help="as JSON, for programs")

    logs = _part(parts, "logs", "print the programs' logs", description="Print the end of the programs' logs.")
    logs.add_argument("program", metavar="PROGRAM", nargs="?", help="one of them, such as otelcol or jaeger; default: all")
    logs.add_argument("-n", "--lines", metavar="N", type=_count, default=20, help="lines of each; default: 20")
    logs.add_argument("-f", "--follow", action="store_true", help="continue with new lines, until Ctrl-C")


def _part(parts: Any, name: str, what: str, **texts: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = parts.add_parser(name, help=what, formatter_class=_RAW, **texts)
    where = "default: inferspan/stack in $XDG_STATE_HOME or ~/.local/state; on Windows in LOCALAPPDATA"
    parser.add_argument("--dir", metavar="DIR", type=file_or_folder, help=f"folder of state, logs and data; {where}")
    parser.set_defaults(run=run_command, command=name)
    return parser


def run_command(arguments: argparse.Namespace) -> int:
    """Run a command of the stack, or ``bundle``."""
    from inferspan.stack import commands

    return commands.run(arguments)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, more than 0 and less than a day")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 0 or more")
    return int(text)
