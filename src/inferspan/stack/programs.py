"""The programs that the stack runs, their names, and where to get them.

In: an environment. Out: the path of each program, from its variable or from PATH. All that are missing are named in one
``StackError``; Grafana is optional, and a note says what is missing without it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from inferspan.stack.errors import StackError

__all__ = ["GRAFANA", "GRAFANA_HOME", "JAEGER", "OTELCOL", "PROGRAMS", "PROMETHEUS", "Program", "find_grafana", "find_programs"]


@dataclass(frozen=True)
class Program:
    """A program of another project.

    Attributes:
        what: its name in a sentence, with the version that is needed.
        names: commands to look for on PATH, the best first.
        variable: environment variable that holds the path of another one.
        project: where its releases are.
    """

    what: str
    names: tuple[str, ...]
    variable: str
    project: str


OTELCOL = Program(
    "OpenTelemetry Collector, distribution contrib, 0.157 or later",
    ("otelcol-contrib", "otelcol"),
    "INFERSPAN_STACK_OTELCOL",
    "github.com/open-telemetry/opentelemetry-collector-releases/releases",
)
JAEGER = Program("Jaeger 2", ("jaeger",), "INFERSPAN_STACK_JAEGER", "github.com/jaegertracing/jaeger/releases")
PROMETHEUS = Program("Prometheus 3", ("prometheus",), "INFERSPAN_STACK_PROMETHEUS", "github.com/prometheus/prometheus/releases")
GRAFANA = Program("Grafana 12 or later", ("grafana", "grafana-server"), "INFERSPAN_STACK_GRAFANA", "github.com/grafana/grafana/releases")
PROGRAMS = (PROMETHEUS, JAEGER, OTELCOL, GRAFANA)

_WAY_OUT = "Download the release for your system, unpack it, and put the program on PATH or name it by its variable."
GRAFANA_HOME = "INFERSPAN_STACK_GRAFANA_HOME"
"""Variable with the folder that holds Grafana's ``conf`` and ``public``."""


def find_programs(wanted: Iterable[Program], environ: Mapping[str, str]) -> dict[Program, str]:
    """The path of each program.

    Raises:
        StackError: some are missing; all of them are named.
    """
    found = {program: _find(program, environ) for program in wanted}
    missing = [program for program, path in found.items() if path is None]
    if missing:
        head = "a program is missing" if len(missing) == 1 else f"{len(missing)} programs are missing"
        raise StackError(f"{head}:\n{''.join(_describe(each, environ) for each in missing)}{_WAY_OUT}")
    return {program: path for program, path in found.items() if path is not None}


def _describe(program: Program, environ: Mapping[str, str]) -> str:
    given = environ.get(program.variable, "").strip()
    reason = f"{program.variable}={given} is no program that can be run" if given else f"{' or '.join(program.names)} is not on PATH"
    return f"  {reason}\n      {program.what}\n      {program.project}\n      {program.variable}=FILE names another one\n"


def find_grafana(environ: Mapping[str, str]) -> tuple[str, Path] | str:
    """Grafana's program and home folder, or a note that says why the stack goes without it."""
    program = _find(GRAFANA, environ)
    if program is None and environ.get(GRAFANA.variable, "").strip():
        raise StackError(f"{GRAFANA.variable}={environ[GRAFANA.variable]} is no program that can be run: give the path of {GRAFANA.what}")
    if program is None:
        return f"not found, so no dashboards: {GRAFANA.project},\nor {GRAFANA.variable}=FILE"
    given = environ.get(GRAFANA_HOME, "").strip()
    binary = Path(program).resolve()
    # An unpacked archive has bin/ beside conf/; packages of distributions put the rest under share/.
    places = [Path(given)] if given else [binary.parent.parent, binary.parent.parent / "share" / "grafana", Path("/usr/share/grafana")]
    home = next((place for place in places if (place / "conf" / "defaults.ini").is_file()), None)
    if home is None:
        if given:
            raise StackError(f"{GRAFANA_HOME}={given} holds no conf/defaults.ini: give the folder of Grafana that has conf and public")
        return f"{program} is there, its conf and public folders are not:\nset {GRAFANA_HOME}"
    return program, home


def _find(program: Program, environ: Mapping[str, str]) -> str | None:
    given = environ.get(program.variable, "").strip()
    if not given:
        found = (shutil.which(name, path=environ.get("PATH")) for name in program.names)
        return next((str(Path(path).absolute()) for path in found if path), None)
    path = shutil.which(os.path.expanduser(given), path=environ.get("PATH"))
    return str(Path(path).absolute()) if path else None
