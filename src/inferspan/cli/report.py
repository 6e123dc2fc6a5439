"""The command ``report``: makes a page or a table of a session file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .failure import Failure

__all__ = ["add_report"]


def add_report(commands: Any) -> None:
    """Add ``report`` to a parser's commands."""
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
    report.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from inferspan.report.html import write_report
    from inferspan.report.quantities import counted
    from inferspan.report.session import SessionFileError, read_session
    from inferspan.report.terminal import summary

    try:
        session = read_session(arguments.file)
    except SessionFileError as error:
        raise Failure(str(error)) from None
    if arguments.text:
        print(summary(session, colour=sys.stdout.isatty()))
        return
    output: Path = arguments.output or arguments.file.with_suffix(".html")
    if output.resolve() == arguments.file.resolve():
        raise Failure(f"the report would overwrite the session file {output}: give another name with -o")
    try:
        write_report(session, output, title=arguments.title)
    except OSError as error:
        raise Failure(f"cannot write report {output}: {error.strerror or error}; give another path with -o") from None
    failed = sum(request.span.failed for request in session.requests)
    print(f"wrote {output}: {counted(len(session.requests), 'request')}, {failed} failed, {len(session.series)} metric series")
    for note in session.notes:
        print(f"note: {note}")
