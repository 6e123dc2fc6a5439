"""The command ``diff``: two recordings side by side, and a gate for CI."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .failure import Failure
from .paths import STDIN, STDOUT, one_on_stdout, output, source

__all__ = ["add_diff"]

_END = """\
Requests of both sides are paired by their order, within the same operation, model and size of the input. The first request of a process,
requests with a compilation inside, failed and nested ones do not count. Intervals come from a bootstrap over requests, or over runs of the
program from five a side on. With --gate 3% an estimated slow-down above half of it, 1.5 %, whose interval does not hold "no change" is a
regression: of slow-downs of 3 % that the noise allows to see, at least 95 of 100 are found. Record both sides in turns on one machine, or
in five runs each; of what ran one after the other nobody can tell a change from a machine that drifts.

exit codes: 0 no regression, or no gate; 1 regression; 2 cannot be judged: bad input, too few requests, too much noise, other hardware

examples:
  inferspan diff base.jsonl new.jsonl
  inferspan diff base.jsonl new.jsonl --gate 3% --markdown >> "$GITHUB_STEP_SUMMARY"
  inferspan diff base/ new/ --gate 5% -o diff.html --json diff.json
"""


def add_diff(commands: Any) -> None:
    """Add ``diff`` to a parser's commands."""
    command = commands.add_parser(
        "diff",
        help="compare two recordings, with a gate for CI",
        usage="inferspan diff A B [--gate SHARE] [--markdown [FILE]] [--json [FILE]] [-o HTML]",
        description="Compare two recordings: time of requests, phases and modules, memory, energy, tokens, logits, and what\n"
        "differs in versions, model, settings, driver and clocks. Changes are told apart from noise.",
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("a", metavar="A", type=source, help="session file of the base, folder of them, or - for standard input")
    command.add_argument("b", metavar="B", type=source, help="the same of what is compared with it")
    command.add_argument(
        "--gate", metavar="SHARE", type=_gate, help="slow-down to look for, such as 3%% or 0.03; the exit code then is the verdict"
    )
    command.add_argument(
        "--markdown", metavar="FILE", type=output, nargs="?", const=STDOUT, help="write Markdown; default: to standard output, without text"
    )
    command.add_argument(
        "--json", metavar="FILE", type=output, nargs="?", const=STDOUT,
        help="write JSON; default: to standard output, the text then goes to standard error",
    )  # fmt: skip
    command.add_argument("-o", "--output", metavar="HTML", type=output, help="page to write; - for standard output")
    command.set_defaults(run=_run)


def _gate(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not a share above 0 and up to 10, such as 3% or 0.03")
    return value


def _run(arguments: argparse.Namespace) -> int:
    from inferspan.diff.compare import REGRESSION, UNDECIDED, DiffError, compare
    from inferspan.diff.document import document
    from inferspan.diff.html import render
    from inferspan.diff.text import markdown_lines, text_lines
    from inferspan.report.files import session_files
    from inferspan.report.session import SessionFileError, read_sessions

    outputs: dict[str, Path | None] = {"--markdown": arguments.markdown, "--json": arguments.json, "-o": arguments.output}
    told = sys.stderr if one_on_stdout(outputs.items()) else sys.stdout
    if arguments.a == arguments.b == STDIN:
        raise Failure("one of both recordings can be standard input, not both")
    try:
        files = [session_files([path]) for path in (arguments.a, arguments.b)]
        shared = [one for one in files[0] if any(_same_file(one, other) for other in files[1])]
        if shared:
            raise Failure(f"{shared[0]} is given on both sides: give two recordings")
        for option, path in outputs.items():
            if path is not None and any(_same_file(path, file) for side in files for file in side):
                raise Failure(f"{option} would overwrite the recording {path}: give another name")
        found = compare(read_sessions(files[0]), read_sessions(files[1]), gate=arguments.gate)
    except (SessionFileError, DiffError) as error:
        raise Failure(str(error)) from None
    if arguments.markdown != STDOUT:
        for line in text_lines(found):
            print(line, file=told)
    if arguments.markdown is not None:
        _write(arguments.markdown, (f"{line}\n" for line in markdown_lines(found)), "--markdown")
    if arguments.json is not None:
        _write(arguments.json, [json.dumps(document(found), indent=1, allow_nan=False), "\n"], "--json")
    if arguments.output is not None:
        _write(arguments.output, [render(found)], "-o")
    return {REGRESSION: 1, UNDECIDED: 2}.get(found.verdict or "", 0)


def _write(path: Path, parts: Iterable[str], option: str) -> None:
    from inferspan.report.output.writing import write_text

    try:
        write_text(path, parts)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise Failure(f"cannot write {path}: {reason}; give another path with {option}") from None


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False
