"""The command ``run``: starts a program with zero code, in place of this process.

A new interpreter runs the program, with the folder of a ``sitecustomize`` on ``PYTHONPATH``. Running it in this one (``runpy``) would
leave frames of ours in its tracebacks, this command's modules in its memory and another module behind ``__main__``, and would not reach the
processes that it starts: ``multiprocessing`` (spawn, forkserver), torchrun and debuggers start Python with the same environment. The
process is replaced where the system can do that, so its id, signals, terminal and exit status are the program's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from inferspan.setting_sources.file import FILE_VARIABLE
from inferspan.setting_sources.observe import known_kinds
from inferspan.settings import Settings, SettingsError, environment_name

from .failure import Failure
from .paths import output

__all__ = ["add_run"]

_EXAMPLES = """\
everything before the program's name is for inferspan, everything after it for the program

examples:
  inferspan run app.py --port 8000                               telemetry goes where OTEL_EXPORTER_OTLP_ENDPOINT says
  inferspan run --trace-output session.jsonl app.py              or to a file: inferspan report session.jsonl --text
  inferspan run --config inferspan.yaml -m my_package --verbose  as python -m my_package --verbose
  inferspan run -m torch.distributed.run --nproc-per-node 2 train.py
  inferspan run --observe activation,debug app.py                statistics of activations, NaN and Inf
  inferspan run --include 'my_app.models.*' --exclude 'BertModel' app.py

Models of transformers, diffusers and sentence-transformers are observed from their first call on; others if --include names
their class. Calls in training mode with gradients are not, unless --include names the model. Every setting has an environment
variable (inferspan settings). Processes that the program starts with Python are observed too. The program's arguments, exit
status, output, exceptions and signals are its own.
"""


def add_run(commands: Any) -> None:
    """Add ``run`` to a parser's commands."""
    run = commands.add_parser(
        "run",
        help="run a program with its models observed, without changing it",
        usage="inferspan run [options] (FILE | -m MODULE) [argument ...]",
        description="Run a Python program and record every model that it builds and calls.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("--config", metavar="FILE", type=Path, help=f"YAML file with settings; as {FILE_VARIABLE}")
    run.add_argument(
        "--trace-output",
        metavar="FILE",
        type=output,
        help=f"write telemetry as OTLP JSON lines to this file, or - for standard output; as {environment_name('session_file')}",
    )
    run.add_argument(
        "--include", metavar="PATTERN", action="append", help="classes (or names of models) to observe as well; may be given several times"
    )
    run.add_argument(
        "--exclude", metavar="PATTERN", action="append", help="classes or names of models not to observe; may be given several times"
    )
    kinds = ", ".join(known_kinds([item.name for item in fields(Settings)]))
    run.add_argument("--observe", metavar="KINDS", help=f"figures to switch on, with commas: {kinds}; as {environment_name('observe')}")
    run.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="run a module or package, as python -m does")
    run.add_argument("program", metavar="FILE", nargs="?", help="the program: a file, a folder or a zip file, as python takes them")
    run.add_argument("arguments", metavar="argument", nargs=argparse.REMAINDER, help="arguments of the program")
    run.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.module is not None:
        if not arguments.module:
            raise Failure("run -m needs the name of a module: inferspan run -m my_package")
        program = ["-m", *arguments.module]
    elif arguments.program is not None:
        program = [arguments.program, *arguments.arguments]
    else:
        raise Failure("run needs a program: inferspan run app.py, or inferspan run -m my_package; see inferspan run --help")
    return _start(program, {**os.environ, **_variables(arguments)})


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment variables of the options.

    Raises:
        Failure: the settings file or the output cannot be used. What the command line names is checked before the program starts.
    """
    given: dict[str, str] = {}
    overrides: dict[str, Any] = {}
    if arguments.config is not None:
        given[FILE_VARIABLE] = str(arguments.config.absolute())
    if arguments.trace_output is not None:
        path = given[environment_name("session_file")] = str(arguments.trace_output.absolute())
        overrides["session_file"] = path
        _probe(path)
    if arguments.observe is not None:
        given[environment_name("observe")] = overrides["observe"] = arguments.observe
    for name in ("include", "exclude"):
        patterns = getattr(arguments, name)
        if patterns:
            given[environment_name(name)] = ",".join(patterns)
    try:
        Settings.resolve(overrides, config_file=arguments.config, environ={})
    except SettingsError as error:
        raise Failure(str(error)) from None
    return given


def _probe(path: str) -> None:
    from inferspan.export.files.session_file import SessionFile

    try:
        SessionFile(path).close()
    except SettingsError as error:
        raise Failure(str(error)) from None


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with the folder of our ``sitecustomize`` first on the path of Python."""
    import inferspan.zero_code

    folder = str(Path(inferspan.zero_code.__file__).parent / "bootstrap")
    path = [folder, *(entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != folder)]
    return {**environ, "PYTHONPATH": os.pathsep.join(path)}


def _start(program: Sequence[str], environ: Mapping[str, str]) -> int:
    if not sys.executable:
        raise Failure("run cannot find the Python interpreter")
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise Failure("run works by PYTHONPATH and sitecustomize, which Python leaves out with -I, -E and -S")
    # The options of this interpreter (-X dev, -W error) are those of the program.
    command = [sys.executable, *subprocess._args_from_interpreter_flags(), *program]  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if os.name == "nt":
        # There the new process would not be this one, and the caller would not wait for it.
        return subprocess.run(command, env=_environment(environ), check=False).returncode
    os.execve(sys.executable, command, _environment(environ))
