"""The command ``report``: makes a page or a table of a session file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .failure import Failure

__all__ = ["add_report"]

_STREAM_FOLDERS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))


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
    report.add_argument("file", metavar="FILE", type=Path, help="session file, or - for standard input")
    report.add_argument(
        "-o", "--output", metavar="HTML", type=Path, help="file to write; default: FILE with the suffix .html, of a pipe session.html"
    )
    report.add_argument("--title", help="heading of the report; default: the names of the models")
    report.add_argument("--text", action="store_true", help="print the table of requests and write no file")
    report.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from inferspan.report.html import is_stream, write_report
    from inferspan.report.quantities import counted
    from inferspan.report.session import SessionFileError, read_session
    from inferspan.report.terminal import summary

    file: Path = Path("/dev/stdin") if str(arguments.file) == "-" else arguments.file
    try:
        session = read_session(file)
    except SessionFileError as error:
        raise Failure(str(error)) from None
    if arguments.text:
        print(summary(session, colour=sys.stdout.isatty()))
        return
    output: Path = arguments.output or _beside(file)
    if _same_file(file, output) and not is_stream(output):
        raise Failure(f"the report would overwrite the session file {output}: give another name with -o")
    try:
        write_report(session, output, title=arguments.title)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise Failure(f"cannot write report {output}: {reason}; give another path with -o") from None
    failed = sum(request.span.failed for request in session.requests)
    # A page on standard output must not be followed by a text about it.
    told = sys.stderr if is_stream(output) else sys.stdout
    print(f"wrote {output}: {counted(len(session.requests), 'request')}, {failed} failed, {len(session.series)} metric series", file=told)
    for note in session.notes:
        print(f"note: {note}", file=told)


def _beside(file: Path) -> Path:
    """Default path of the page: beside the session file, of a pipe or a device into the current folder."""
    return file.with_suffix(".html") if file.is_file() and file.parent not in _STREAM_FOLDERS else Path("session.html")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False
