"""The command ``report``: makes a page, a JSON report or a table of session files."""

from __future__ import annotations

import argparse
import contextlib
import gc
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .failure import Failure
from .paths import STDOUT, one_on_stdout, output, source

if TYPE_CHECKING:
    from inferspan.report.session import Session

__all__ = ["add_report"]

_MOST_OPERATIONS = 6
"""Of each kind, as text; the page has all."""
_STREAM_FOLDERS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))


def add_report(commands: Any) -> None:
    """Add ``report`` to a parser's commands."""
    report = commands.add_parser(
        "report",
        help="make a report of session files, as HTML, JSON or text",
        description="Read files of OTLP JSON lines (of inferspan, or of the OpenTelemetry collector's file\n"
        "exporter, also gzipped), of one or several processes, and write one self-contained HTML\n"
        "file, one JSON file, or both.",
        epilog="examples:\n  inferspan report session.jsonl -o report.html --title 'nightly run'\n"
        "  inferspan report rank*.jsonl -o report.html --json report.json --open\n"
        "  inferspan report runs/ --trace-url 'http://localhost:16686/trace/{trace_id}'\n"
        "  inferspan report session.jsonl --text",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("files", metavar="FILE", type=source, nargs="+", help="session file, folder of them, or - for standard input")
    report.add_argument(
        "-o", "--output", metavar="HTML", type=output,
        help="page to write, or - for standard output; default, without --json: FILE with the suffix .html, of a folder session.html",
    )  # fmt: skip
    report.add_argument("--json", metavar="JSON", type=output, help="JSON report to write, or - for standard output; alone or with -o")
    report.add_argument("--title", help="heading of the report; default: the names of the models")
    report.add_argument("--text", action="store_true", help="print requests, summary and operations; writes no file of itself")
    report.add_argument("--open", action="store_true", help="open the page in a browser")
    report.add_argument(
        "--trace-url", metavar="URL", help="address of a trace in Jaeger or Tempo, such as 'http://localhost:16686/trace/{trace_id}'"
    )
    report.add_argument("--graph", metavar="SVG", type=source, help="put this picture of 'inferspan trace-graph MODEL --svg' into the page")
    report.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from inferspan.report.files import session_files
    from inferspan.report.html import is_stream
    from inferspan.report.session import SessionFileError, read_sessions
    from inferspan.settings import Settings

    given: list[Path] = arguments.files
    page, figures = arguments.output, arguments.json
    if page is None and figures is None and not arguments.text:
        page = _beside(given[0])
    one_on_stdout([("-o", page), ("--json", figures)], text=arguments.text)
    if arguments.open and (page is None or is_stream(page)):
        raise Failure("--open needs a page: give its path with -o")
    if arguments.graph is not None and page is None:
        raise Failure("--graph needs a page: give its path with -o")
    picture = _picture(arguments.graph)
    try:
        files = session_files(given)
        for path in (page, figures):
            for file in files if path is not None and not is_stream(path) else ():
                if _same_file(file, path):
                    raise Failure(f"the report would overwrite the session file {path}: give another name with -o")
        with _without_collections():
            session = read_sessions(files, points=Settings.resolve().max_data_points)
            if arguments.text:
                _print(session)
            written = _write(session, page, figures, picture, arguments)
    except SessionFileError as error:
        raise Failure(str(error)) from None
    if written:
        _tell(session, written)
    if arguments.open and page is not None:
        import webbrowser

        webbrowser.open(page.absolute().as_uri())


def _picture(path: Path | None) -> str | None:
    """The text of an SVG file."""
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read the picture {path}: {error}") from None
    if "<svg" not in text[:1000]:
        raise Failure(f"{path} is no SVG: 'inferspan trace-graph MODEL --svg FILE' writes one")
    return text


def _write(
    session: Session, page: Path | None, figures: Path | None, picture: str | None, arguments: argparse.Namespace
) -> list[Path]:
    from inferspan.report.figures.document import write_document
    from inferspan.report.html import write_report

    written, option, path = [], "-o", page
    try:
        if page is not None:
            write_report(session, page, title=arguments.title, trace_url=arguments.trace_url, graph=picture)
            written.append(page)
        if figures is not None:
            option, path = "--json", figures
            write_document(session, figures)
            written.append(figures)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        hint = "" if isinstance(error, ValueError) and arguments.trace_url else f"; give another path with {option}"
        raise Failure(f"cannot write report {path}: {reason}{hint}") from None
    return written


def _tell(session: Session, written: list[Path]) -> None:
    from inferspan.report.html import is_stream
    from inferspan.text.numbers import counted

    failed = sum(request.span.failed for request in session.requests)
    # A page on standard output must not be followed by a text about it.
    told = sys.stderr if any(is_stream(path) for path in written) else sys.stdout
    names = " and ".join("standard output" if path == STDOUT else str(path) for path in written)
    print(f"wrote {names}: {counted(len(session.requests), 'request')}, {failed} failed, {len(session.series)} metric series", file=told)
    for note in session.notes:
        print(f"note: {note}", file=told)


def _print(session: Session) -> None:
    """Requests first, then what the time went into, then the number of events; in the width of the terminal, or 80 characters."""
    from inferspan.explain.text import explanation_lines
    from inferspan.report.figures.explained import explanation_of
    from inferspan.report.figures.memory import memory_of
    from inferspan.report.figures.summary import summary_of
    from inferspan.report.terminal import clean, events_lines, summary
    from inferspan.summaries.table import plain_table, rich_table

    # There is none where the caller has closed it.
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size((80, 24)).columns
    print(summary(session, colour=terminal, width=width))
    figures, rows = summary_of(session), session.tally.operations.rows()
    if rows:
        drawn = rich_table(rows, most=_MOST_OPERATIONS, width=width) if terminal else None
        if drawn is None:
            print("", plain_table(rows, _MOST_OPERATIONS, width), sep="\n")
        else:
            import importlib

            importlib.import_module("rich.console").Console().print("", drawn, sep="\n")
    print("", *events_lines(figures, width), sep="\n")
    explained = explanation_of(session)
    if explained.causes:
        print("", "why it takes its time ('inferspan explain' has more):", *explanation_lines(explained, width, full=False), sep="\n")
    memory = memory_of(session)
    if memory.device is not None or memory.shortages:
        print("", *(clean(line) for line in str(memory).splitlines()), sep="\n")


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Millions of objects without a cycle are made: looking for cycles among them would take half of the time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _beside(file: Path) -> Path:
    """Default path of the page: beside the session file, of a pipe or a device into the current folder."""
    return file.with_suffix(".html") if file.is_file() and file.parent not in _STREAM_FOLDERS else Path("session.html")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False
