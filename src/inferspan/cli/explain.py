"""The command ``explain``: why a recording took its time, and what to change next."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .failure import Failure
from .paths import source

if TYPE_CHECKING:
    from inferspan.report.session import Session

__all__ = ["add_explain"]

_JAEGER = "http://localhost:16686"


def add_explain(commands: Any) -> None:
    """Add ``explain`` to a parser's commands."""
    command = commands.add_parser(
        "explain",
        help="why requests take their time: causes, what shows them, what to change and the gain to expect",
        description="Look for the causes of the time that requests took: each with its share of the time, the spans that\n"
        "show it, the next thing to change and the gain to expect. What the recording cannot tell is named, with the\n"
        "setting that records it. Reads session files, or one trace of a running Jaeger (which has no metrics).",
        epilog="examples:\n  inferspan explain session.jsonl\n  inferspan explain session.jsonl --json > causes.json\n"
        "  inferspan explain session.jsonl --trace 4bf92f3577b34da6a3ce929d0e0e4736\n"
        "  inferspan explain --trace 4bf92f3577b34da6a3ce929d0e0e4736 --jaeger http://localhost:16686\n\n"
        "exit status: 0, also if nothing is found; 2 if there is nothing to read",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("files", metavar="FILE", type=source, nargs="*", help="session file, folder of them, or - for standard input")
    command.add_argument("--trace", metavar="ID", help="only the trace with this id; without files it is asked of Jaeger")
    command.add_argument("--jaeger", metavar="URL", default=_JAEGER, help="address of Jaeger (default: %(default)s)")
    command.add_argument("--json", action="store_true", help="print everything as JSON instead")
    command.add_argument("--brief", action="store_true", help="print the causes alone")
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from inferspan.explain.text import explanation_lines
    from inferspan.report.figures.explained import explanation_document, explanation_of
    from inferspan.report.stream import SessionFileError

    try:
        session = _session(arguments)
    except SessionFileError as error:
        raise Failure(str(error)) from None
    found = explanation_of(session, at_these_times=arguments.trace is not None)
    if arguments.json:
        print(json.dumps(explanation_document(found), indent=1, allow_nan=False))
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        for line in explanation_lines(found, width, full=not arguments.brief):
            print(line)
    for note in session.notes:
        print(f"note: {note}", file=sys.stderr if arguments.json else sys.stdout)


def _session(arguments: argparse.Namespace) -> Session:
    from inferspan.report.files import session_files
    from inferspan.report.remote.jaeger import trace_id_of, write_trace
    from inferspan.report.session import read_sessions

    files: list[Path] = arguments.files
    trace = None
    if arguments.trace is not None:
        try:
            trace = trace_id_of(arguments.trace)
        except ValueError as error:
            raise Failure(str(error)) from None
    if not files and trace is None:
        raise Failure("give a session file, or the id of a trace with --trace")
    if not files and trace is not None:
        with tempfile.TemporaryDirectory() as folder:
            return read_sessions([write_trace(arguments.jaeger, trace, Path(folder))])
    session = read_sessions(session_files(files), trace=trace)
    if trace is not None and not session.tally.levels:
        raise Failure(f"no span of the trace {trace} is in {session.name}: check the id, or give the file that has it")
    return session
