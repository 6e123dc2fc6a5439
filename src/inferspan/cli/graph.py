"""The command ``graph``: the data flow of a recorded pass as text, JSON or a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .failure import Failure
from .paths import STDOUT, output, source

__all__ = ["add_graph"]

_END = """\
The program needs the setting data_flow: INFERSPAN_DATA_FLOW=operations INFERSPAN_MODULES=all INFERSPAN_SESSION_FILE=session.jsonl

Ignored modules are one box each, with nothing of the inside: paths, globs, names of classes, or 're:' and a regular expression, which is
matched from the start of the path.

examples:
  inferspan graph session.jsonl
  inferspan graph session.jsonl -o graph.svg --ignore 'model.layers.*.mlp' --ignore LlamaAttention
  inferspan graph session.jsonl --format dot | dot -Tpdf -o graph.pdf
  inferspan graph session.jsonl --request 3 --step 1 --format json -o graph.json
"""
_FORMATS = ("text", "json", "dot", "svg")


def add_graph(commands: Any) -> None:
    """Add ``graph`` to a parser's commands."""
    command = commands.add_parser(
        "graph",
        help="how data flowed between the modules of a recorded model",
        description="Show which module's output fed which module's input in a pass of a session file.",
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("files", metavar="FILE", type=source, nargs="+", help="session file, folder of them, or - for standard input")
    command.add_argument("-o", "--output", metavar="OUT", type=output, default=STDOUT, help="file to write; default: standard output")
    command.add_argument("--format", choices=_FORMATS, help="default: by the suffix of OUT, else text")
    command.add_argument("--ignore", metavar="PATTERN", action="append", default=[], help="modules to show as one box, can be repeated")
    command.add_argument("--depth", metavar="N", type=int, help="parts of a module's path that are shown; default: up to 300 boxes")
    command.add_argument("--request", metavar="N", type=int, help="number of the request in the report; default: the latest that has it")
    command.add_argument("--step", metavar="N", type=int, help="number of the step; default: the first recorded one")
    command.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from inferspan.report.data_flow import flow_of
    from inferspan.report.files import session_files
    from inferspan.report.output.writing import write_text
    from inferspan.report.session import SessionFileError, read_sessions

    path: Path = arguments.output
    suffix = path.suffix.lstrip(".").lower()
    kind = arguments.format or (suffix if suffix in _FORMATS else "text")
    try:
        files = session_files(arguments.files)
        session = read_sessions(files)
    except SessionFileError as error:
        raise Failure(str(error)) from None
    wanted = arguments.request
    if wanted is not None and not 1 <= wanted <= len(session.requests):
        raise Failure(f"--request {wanted}: the session has {len(session.requests)} requests")
    flow = flow_of(session, wanted, arguments.step)
    if flow is None:
        chosen = "" if wanted is None and arguments.step is None else " of this request and step"
        raise Failure(f"no data flow{chosen} in {session.name}: record with the settings data_flow=operations and modules=all")
    for file in files:
        if path != STDOUT and path.exists() and file.exists() and path.samefile(file):
            raise Failure(f"the graph would overwrite the session file {path}: give another name with -o")
    try:
        if kind == "text":
            text = f"{flow}\n"
        elif kind == "json":
            text = flow.to_json(indent=1) + "\n"
        else:
            picture = flow.picture(arguments.ignore, arguments.depth)
            text = picture.to_dot() if kind == "dot" else picture.to_svg()
    except ValueError as error:
        raise Failure(str(error)) from None
    try:
        write_text(path, [text])
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror or error}; give another path with -o") from None
